"""Records become samples, with crops, flips, the augmentations of --diff-augment, and those of --ada.
Modules: recipe.ada, recipe.batch"""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

from building import data_of, stage_step, tiny_run
from hvdgan.errors import UserError
from hvdgan.recipe import DataSpec, Stage, ada, losses
from hvdgan.recipe.ada import adaptive, next_state
from hvdgan.recipe.augment import diff_augment, flip
from hvdgan.recipe.batch import Parts, unpack
from hvdgan.recipe.draws import Random
from hvdgan.values.sample_values import Layout
from tiny import Tiny


def random(step=0, first=0, count=64, seed=0):
    return Random(seed, tf.constant(step, tf.int64), first, count)


VOLUMES = np.random.default_rng(1).normal(size=(64, 4, 5, 6, 2)).astype(np.float32)


def test_volumes_are_mirrored_along_each_axis_with_their_inputs_and_constants():
    """Each axis has draws of its own; the input is half as long, and shows the same."""
    inputs, constants = VOLUMES[:, ::2, :, ::2], np.repeat(VOLUMES[:1], 64, axis=0)
    parts = Parts(tf.constant(VOLUMES), tf.constant(inputs), tf.constant(constants))
    flipped = flip(parts, ("depth", "height", "width"), random())
    seen = set()
    for number in range(64):
        ways = [
            way
            for way in itertools.product((1, -1), repeat=3)
            if np.array_equal(VOLUMES[number][tuple(slice(None, None, step) for step in way)], flipped.images[number])
        ]
        assert len(ways) == 1
        for given, got in ((inputs, flipped.inputs), (constants, flipped.constants)):
            mirrored = given[number][tuple(slice(None, None, step) for step in ways[0])]
            np.testing.assert_array_equal(got[number], mirrored)
        seen.add(ways[0])
    assert len(seen) == 8


@pytest.mark.parametrize("kind", ["color", "translation", "cutout"])
def test_any_number_of_ranks_augments_equally_and_each_step_and_key_otherwise(kind):
    given = tf.constant(np.random.default_rng(0).uniform(-1, 1, (64, 16, 16, 3)).astype(np.float32))
    whole = diff_augment(given, (kind,), random(), "real").numpy()
    parts = [diff_augment(given[at : at + 16], (kind,), random(0, at, 16), "real") for at in range(0, 64, 16)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    for other in (diff_augment(given, (kind,), random(1), "real"), diff_augment(given, (kind,), random(), "fake")):
        assert np.mean(np.any(other.numpy() != whole, axis=(1, 2, 3))) > 0.9


def test_colours_shifts_and_holes_have_the_sizes_of_the_paper():
    """Zhao et al. 2020: shifts by up to an eighth of the side, holes of half the side that lie anywhere."""
    given = np.random.default_rng(0).uniform(-1, 1, (512, 16, 16, 3)).astype(np.float32)
    brightness, saturation, contrast = random(count=512).uniform("real/color", (3,)).numpy().T[..., None, None, None]
    bright = given + brightness - 0.5
    grey = bright.mean(axis=-1, keepdims=True)
    coloured = grey + (bright - grey) * saturation * 2
    mean = coloured.mean(axis=(1, 2, 3), keepdims=True)
    found = diff_augment(tf.constant(given), ("color",), random(count=512), "real")
    np.testing.assert_allclose(found, mean + (coloured - mean) * (contrast + 0.5), atol=1e-5)
    ones = tf.ones((512, 16, 16, 1))
    shifted = diff_augment(ones, ("translation",), random(count=512), "real").numpy()[..., 0]
    holes = 1 - diff_augment(ones, ("cutout",), random(count=512), "real").numpy()[..., 0]
    for axis in (1, 2):
        left = shifted.max(axis=axis).sum(axis=1) - 16  # the shift's length, below 0
        begins = shifted.max(axis=axis)[:, 0] == 0
        assert {int(length) if first else -int(length) for length, first in zip(left, begins, strict=True)} == set(
            range(-2, 3)
        )
        lengths, at_first = holes.max(axis=axis).sum(axis=1), holes.max(axis=axis)[:, 0] == 1
        assert set(lengths) == set(range(4, 9)) and set(lengths[at_first]) == set(lengths)
        assert set(lengths[holes.max(axis=axis)[:, -1] == 1]) == set(lengths)


PICTURES = np.random.default_rng(0).uniform(-1, 1, (6, 8, 8, 3)).astype(np.float32)


def moved(matrix):
    matrices = tf.tile(tf.constant(matrix, tf.float32)[None], (len(PICTURES), 1, 1))
    return ada.sampled(tf.constant(PICTURES), matrices).numpy()


def test_nothing_changes_at_probability_0_and_all_pictures_do_at_1_in_the_same_way_on_any_rank():
    draws = random(3, count=6)
    np.testing.assert_allclose(adaptive(PICTURES, tf.constant(0.0), draws, "real"), PICTURES, atol=1e-5)
    changed = adaptive(PICTURES, tf.constant(1.0), draws, "real").numpy()
    assert changed.shape == PICTURES.shape and np.isfinite(changed).all()
    assert all(np.abs(one - other).max() > 0.05 for one, other in zip(changed, PICTURES, strict=True))
    other_key = adaptive(PICTURES, tf.constant(1.0), draws, "fake").numpy()
    assert not np.allclose(changed, other_key)
    half = adaptive(PICTURES[3:], tf.constant(1.0), random(3, 3, 3), "real").numpy()
    np.testing.assert_allclose(half, changed[3:], atol=1e-5)


def test_places_are_those_of_numpy():
    turn, mirror = [[0, -1, 0], [1, 0, 0], [0, 0, 1]], [[-1, 0, 0], [0, 1, 0], [0, 0, 1]]
    np.testing.assert_allclose(moved(mirror), PICTURES[:, :, ::-1], atol=1e-5)
    ways = [np.rot90(PICTURES, way, (1, 2)) for way in (1, -1)]
    assert any(np.allclose(moved(turn), way, atol=1e-5) for way in ways)
    half = moved([[1, 0, 0.5], [0, 1, 0], [0, 0, 1]])
    np.testing.assert_allclose(half[:, :, :-1], (PICTURES[:, :, :-1] + PICTURES[:, :, 1:]) / 2, atol=1e-5)


@pytest.mark.parametrize(
    ("target", "signs", "skipped", "expected"),
    [
        (0.6, [0.9, 0.9, 0.5, 0.5, 0.1, 0.1, 0.1, 0.1, -1, -1, -1, -1], (), [0] * 3 + [0.04] * 4 + [0] * 5),
        (0.65, [0.8, np.nan, 0.8, 0.8, 0.5], (1, 3), [0] * 4 + [0.05]),
    ],
)
def test_the_probability_moves_every_fourth_step_towards_the_target(target, signs, skipped, expected):
    """A step that was skipped has no sign, and its images count."""
    state, seen = tf.zeros(4), []
    for step, sign in enumerate(signs):
        finite = tf.constant(step not in skipped)
        state = next_state(state, tf.constant(sign, tf.float32), finite, target=target, change=0.01)
        seen.append(round(float(state[0]), 4))
    assert seen == expected


class Adaptive(Tiny):
    def judge(self, nets, batch):
        real = nets.discriminator(batch.augment(batch.images, "real"))
        fake = nets.discriminator(batch.augment(nets.generator(batch.latents), "fake"))
        return losses.non_saturating_discriminator(real, fake), {"real_sign": tf.reduce_mean(tf.sign(real))}


class Sure(Adaptive):
    """The discriminator steps in some steps, and tells all real pictures."""

    every = 1

    def stages(self):
        judge, fool = super().stages()[0].updates
        return [Stage("both", 12, [dataclasses.replace(judge, every=self.every), fool])]

    def judge(self, nets, batch):
        return super().judge(nets, batch)[0], {"real_sign": tf.ones(())}


@pytest.mark.parametrize(
    ("every", "moves"), [(1, {4: 0.1, 8: 0.2, 12: 0.3}), (2, {4: 0.1, 8: 0.2, 12: 0.3}), (3, {6: 0.15, 12: 0.3})]
)
def test_the_probability_grows_by_the_images_of_all_steps_wherever_the_sign_is_reported(every, moves):
    run = tiny_run(type("Rarely", (Sure,), {"every": every}), ada=0.6, ada_images=640)  # 1/40 a step
    seen, before = {}, 0.0
    for step in range(12):
        metrics, _ = stage_step(run)(step, step, data_of(run, step))
        p = float(run.state.declared_state.shared()["state/ada"].numpy()[0])
        seen |= {} if p == before else {step + 1: p}
        before = p
    assert seen == pytest.approx(moves) and "ada/p" in metrics


class Silent(Adaptive):
    def judge(self, nets, batch):
        return super().judge(nets, batch)[0], {}


@pytest.mark.parametrize(
    ("recipe", "complaint"),
    [(Tiny, "no loss of the recipe calls batch.augment"), (Silent, "reports the metric real_sign")],
)
def test_recipes_without_what_it_needs_are_refused(recipe, complaint):
    with pytest.raises(UserError, match=complaint):
        tiny_run(recipe, ada=0.6)


def spec_of(layout, constants=None):
    return DataSpec(layout.seen, 99, input_shape=layout.input_seen, layout=layout, constants=constants)


def test_pixels_become_minus_one_to_one_and_floats_stay():
    pixels = np.array([0, 51, 102, 255], np.uint8).reshape(1, 2, 2, 1)
    seen = unpack({"images": pixels}, DataSpec((2, 2, 1), 9)).images.numpy()
    np.testing.assert_array_equal(seen, pixels.astype(np.float32) / 127.5 - 1)
    floats = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    np.testing.assert_array_equal(unpack({"images": floats}, DataSpec((5,), 9)).images, floats)


def places_of(crops, whole):
    """Where each crop lies: its samples hold their own places."""
    assert (crops[:, 1:, :, 0] - crops[:, :-1, :, 0] == 1).all() and (np.diff(crops[..., 1], axis=2) == 1).all()
    for crop, place in zip(crops, crops[:, 0, 0].astype(int), strict=True):
        down, across = place[:2]
        np.testing.assert_array_equal(crop, whole[down : down + crop.shape[0], across : across + crop.shape[1]])
    return crops[:, 0, 0].astype(int)


def grid(height, width):
    """A field whose two channels are its rows and its columns."""
    return np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij"), axis=-1).astype(np.float32)


def test_crops_lie_anywhere_and_depend_on_seed_and_step():
    spec, records = spec_of(Layout((10, 14, 2), crop=(4, 6))), {"images": np.repeat(grid(10, 14)[None], 12, axis=0)}
    crops = [unpack(records, spec, random(step, count=12)).images.numpy() for step in range(40)]
    seen = [places_of(each, grid(10, 14)) for each in crops]
    everywhere = np.concatenate(seen)
    assert set(everywhere[:, 0]) == set(range(7)) and set(everywhere[:, 1]) == set(range(9))
    assert not np.array_equal(seen[0], seen[1])
    np.testing.assert_array_equal(unpack(records, spec, random(3, 0, 12)).images[:, 0, 0], seen[3])
    assert not np.array_equal(unpack(records, spec, random(3, 0, 12, seed=1)).images[:, 0, 0], seen[3])
    half = unpack({"images": records["images"][6:]}, spec, random(3, 6, 6)).images  # of another rank
    np.testing.assert_array_equal(half[:, 0, 0], seen[3][6:])


@pytest.mark.parametrize("is_random", [False, True])
def test_inputs_constants_and_arrays_show_the_same_region(is_random):
    """The input is half as high and a third as wide; its channels are the rows and columns of the sample."""
    layout = Layout((8, 18, 2), (4, 6, 2), crop=(4, 6))
    images = np.repeat(grid(8, 18)[None], 12, axis=0)
    inputs = images[:, ::2, ::3]
    constants = 1000 + grid(8, 18)
    arrays = {"arrays/map": 2000 + images, "arrays/vector": np.eye(12, dtype=np.float32)}
    data = {"images": images, "inputs": inputs, **arrays}
    parts = unpack(data, spec_of(layout, constants), random(count=12) if is_random else None)
    assert parts.images.shape == parts.constants.shape == (12, 4, 6, 2) and parts.inputs.shape == (12, 2, 2, 2)
    places_of(parts.images.numpy(), grid(8, 18))
    np.testing.assert_array_equal(parts.inputs, parts.images[:, ::2, ::3])
    np.testing.assert_array_equal(parts.constants, parts.images + 1000)
    assert len(set(map(tuple, parts.images[:, 0, 0].numpy()))) > 3 if is_random else True
    flipped = flip(parts, ["height", "width"], random(count=12))
    assert not np.array_equal(flipped.images, parts.images)
    for each in (parts, flipped):
        np.testing.assert_array_equal(each.arrays["map"], each.images + 2000)
        np.testing.assert_array_equal(each.arrays["vector"], np.eye(12))


def test_a_sample_is_changed_in_the_same_way_on_any_rank():
    whole = adaptive(PICTURES, tf.constant(0.7), random(3, count=6), "real").numpy()
    half = adaptive(PICTURES[3:], tf.constant(0.7), random(3, 3, 3), "real").numpy()
    np.testing.assert_allclose(half, whole[3:], atol=1e-5)
