"""Flips, the augmentations of --diff-augment, and those of --ada. Modules: recipe.ada"""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from building import data_of, stage_step, tiny_run
from hvdgan.cli.errors import UserError
from hvdgan.recipe import ada, losses
from hvdgan.recipe.ada import adaptive, next_state
from hvdgan.recipe.augment import diff_augment, flip
from hvdgan.recipe.batch import Parts
from hvdgan.recipe.draws import Random
from tiny import Tiny


def random(step=0, part=0, parts=1, count=64):
    return Random(0, tf.constant(step, tf.int64), part * (count // parts), count // parts)


def images(count=64, channels=3):
    return tf.constant(np.random.default_rng(0).uniform(-1, 1, (count, 16, 16, channels)).astype(np.float32))


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
    given = images()
    whole = diff_augment(given, (kind,), random(), "real").numpy()
    parts = [diff_augment(given[16 * p : 16 * p + 16], (kind,), random(part=p, parts=4), "real") for p in range(4)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    for other in (diff_augment(given, (kind,), random(1), "real"), diff_augment(given, (kind,), random(), "fake")):
        assert np.mean(np.any(other.numpy() != whole, axis=(1, 2, 3))) > 0.9


COUNT, SIZE = 6, 8


def draws_of(first=0, count=COUNT):
    return Random(0, tf.constant(3, tf.int64), first, count)


def pictures(channels=3, count=COUNT):
    return np.random.default_rng(0).uniform(-1, 1, (count, SIZE, SIZE, channels)).astype(np.float32)


def moved(images, matrix):
    matrices = tf.tile(tf.constant(matrix, tf.float32)[None], (len(images), 1, 1))
    return ada.sampled(tf.constant(images), matrices).numpy()


def test_nothing_changes_at_probability_0_and_all_pictures_do_at_1():
    images = pictures()
    np.testing.assert_allclose(adaptive(images, tf.constant(0.0), draws_of(), "real"), images, atol=1e-5)
    changed = adaptive(images, tf.constant(1.0), draws_of(), "real").numpy()
    assert changed.shape == images.shape and np.isfinite(changed).all()
    assert all(np.abs(one - other).max() > 0.05 for one, other in zip(changed, images, strict=True))
    other_key = adaptive(images, tf.constant(1.0), draws_of(), "fake").numpy()
    assert not np.allclose(changed, other_key)


def test_a_sample_is_changed_in_the_same_way_on_any_rank():
    images = pictures()
    whole = adaptive(images, tf.constant(0.7), draws_of(), "real").numpy()
    half = adaptive(images[3:], tf.constant(0.7), draws_of(3, 3), "real").numpy()
    np.testing.assert_allclose(half, whole[3:], atol=1e-5)


def test_places_are_those_of_numpy():
    images = pictures()
    turn, mirror = [[0, -1, 0], [1, 0, 0], [0, 0, 1]], [[-1, 0, 0], [0, 1, 0], [0, 0, 1]]
    np.testing.assert_allclose(moved(images, mirror), images[:, :, ::-1], atol=1e-5)
    ways = [np.rot90(images, way, (1, 2)) for way in (1, -1)]
    assert any(np.allclose(moved(images, turn), way, atol=1e-5) for way in ways)
    half = moved(images, [[1, 0, 0.5], [0, 1, 0], [0, 0, 1]])
    np.testing.assert_allclose(half[:, :, :-1], (images[:, :, :-1] + images[:, :, 1:]) / 2, atol=1e-5)


def test_the_probability_moves_every_fourth_step_towards_the_target():
    state = tf.constant([0.0, 0.0])
    seen = []
    for step, sign in enumerate([0.9, 0.9, 0.5, 0.5, 0.1, 0.1, 0.1, 0.1, -1.0, -1.0, -1.0, -1.0]):
        state = next_state(state, tf.constant(sign), tf.constant(step, tf.int64), target=0.6, change=0.01)
        seen.append(round(float(state[0]), 4))
    assert seen == [0, 0, 0, 0.04, 0.04, 0.04, 0.04, 0, 0, 0, 0, 0]


class Adaptive(Tiny):
    def judge(self, nets, batch):
        real = nets.discriminator(batch.augment(batch.images, "real"))
        fake = nets.discriminator(batch.augment(nets.generator(batch.latents), "fake"))
        return losses.non_saturating_discriminator(real, fake), {"real_sign": tf.reduce_mean(tf.sign(real))}


def test_a_run_with_it_logs_its_probability():
    run = tiny_run(Adaptive, ada=0.0, ada_images=64)  # a change of 1/4 a step
    for step in range(8):
        metrics, finite = stage_step(run)(step, step, data_of(run, step))
        assert all(finite)
    p = float(run.state.kept.shared()["state/ada"].numpy()[0])
    assert p in (0.0, 1.0) and "ada/p" in metrics


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
