"""The augmentations of --diff-augment."""

import numpy as np
import pytest
import tensorflow as tf

from building import data_of, stage_step, tiny_run
from hvdgan.cli.errors import UserError
from hvdgan.recipe.draws import Random
from hvdgan.training.steps.augment import diff_augment, flip
from tiny import Tiny


def random(step=0, part=0, parts=1, count=64):
    return Random(0, tf.constant(step, tf.int64), part * (count // parts), count // parts)


def images(count=64, channels=3):
    return tf.constant(np.random.default_rng(0).uniform(-1, 1, (count, 16, 16, channels)).astype(np.float32))


def test_half_of_the_images_are_mirrored():
    given = images()
    flipped = flip(given, random()).numpy()
    mirrored = [
        np.array_equal(image, original[:, ::-1]) for image, original in zip(flipped, given.numpy(), strict=True)
    ]
    same = [np.array_equal(image, original) for image, original in zip(flipped, given.numpy(), strict=True)]
    assert all(a != b for a, b in zip(mirrored, same, strict=True))
    assert 16 < sum(mirrored) < 48


@pytest.mark.parametrize("kind", ["color", "translation", "cutout"])
def test_any_number_of_ranks_augments_equally_and_each_step_and_key_otherwise(kind):
    given = images()
    whole = diff_augment(given, (kind,), random(), "real").numpy()
    parts = [diff_augment(given[16 * p : 16 * p + 16], (kind,), random(part=p, parts=4), "real") for p in range(4)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    for other in (diff_augment(given, (kind,), random(1), "real"), diff_augment(given, (kind,), random(), "fake")):
        assert np.mean(np.any(other.numpy() != whole, axis=(1, 2, 3))) > 0.9


def test_translation_shifts_by_up_to_an_eighth_and_brings_in_zeros():
    given = images().numpy()
    seen = set()
    for image, shifted in zip(
        given, diff_augment(tf.constant(given), ("translation",), random(), "x").numpy(), strict=True
    ):
        padded = np.pad(image, ((2, 2), (2, 2), (0, 0)))
        found = [
            (down, across)
            for down in range(5)
            for across in range(5)
            if np.array_equal(padded[down : down + 16, across : across + 16], shifted)
        ]
        assert len(found) == 1
        seen.add(found[0])
    assert {down for down, _ in seen} == {across for _, across in seen} == set(range(5))


def test_cutout_leaves_out_a_square_of_half_the_side():
    ones = tf.ones((64, 16, 16, 1))
    holes = 1 - diff_augment(ones, ("cutout",), random(), "x").numpy()[..., 0]
    sizes = {(int(hole.any(axis=1).sum()), int(hole.any(axis=0).sum())) for hole in holes}
    assert max(sizes) == (8, 8) and all(hole.sum() == hole.any(axis=1).sum() * hole.any(axis=0).sum() for hole in holes)
    assert all(4 <= down <= 8 and 4 <= across <= 8 for down, across in sizes)


def test_colour_keeps_the_shape_of_an_image():
    """Grey images: an affine map of each, with slope 0.5 to 1.5 and a shift of the mean by up to 0.5."""
    given = images(channels=1).numpy()
    changed = diff_augment(tf.constant(given), ("color",), random(), "x").numpy()
    slopes = []
    for image, other in zip(given, changed, strict=True):
        slope, offset = np.polyfit(image.ravel(), other.ravel(), 1)
        np.testing.assert_allclose(image * slope + offset, other, atol=1e-5)
        assert abs(other.mean() - image.mean()) <= 0.5
        slopes.append(slope)
    assert 0.5 <= min(slopes) < 0.7 and 1.3 < max(slopes) <= 1.5


def test_gradients_flow_through_all_of_it():
    given = images(8)
    with tf.GradientTape() as tape:
        tape.watch(given)
        value = tf.reduce_sum(diff_augment(given, ("color", "translation", "cutout"), random(count=8), "x"))
    slopes = tape.gradient(value, given).numpy()
    assert np.isfinite(slopes).all() and np.any(slopes != 0, axis=(1, 2, 3)).all()


class Augmented(Tiny):
    """Tiny, with its discriminator shown augmented images."""

    def judge(self, nets, batch):
        seen = batch.augment(batch.images, "real")
        return tf.reduce_mean(tf.nn.softplus(-nets.discriminator(seen))), {"mean": tf.reduce_mean(seen)}


def test_the_flag_reaches_the_recipe():
    plain, augmented = tiny_run(Augmented), tiny_run(Augmented, diff_augment=("color", "cutout"))
    means = [float(stage_step(run)(0, 0, data_of(run))[0]["judge/mean"]) for run in (plain, augmented)]
    expected = np.mean(data_of(plain)["images"].numpy() / 127.5 - 1)
    assert means[0] == pytest.approx(expected, abs=1e-5) and abs(means[1] - expected) > 1e-4


def test_a_recipe_that_never_augments_refuses_the_flag():
    with pytest.raises(UserError, match="--diff-augment: no loss of the recipe calls batch.augment"):
        tiny_run(diff_augment=("color",))
