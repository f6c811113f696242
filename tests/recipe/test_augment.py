"""Flips, and the augmentations of --diff-augment, of pictures, fields and volumes."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from building import data_of, stage_step, tiny_run
from hvdgan.cli.config import Config
from hvdgan.cli.data_config import ArrayConfig
from hvdgan.cli.errors import UserError
from hvdgan.recipe.augment import check_augmentations, diff_augment, flip
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


@pytest.mark.parametrize(
    ("settings", "shape", "message"),
    [
        ({"flip": True}, (7,), r"^--flip: no axis width in samples of shape \(7,\), which have no axes in space$"),
        ({"arrays": ArrayConfig(flip_axes=("depth",))}, (8, 8, 1), "^--flip-axes: no axis depth .* axes width, height"),
        ({"diff_augment": ("color", "cutout")}, (7,), "^--diff-augment cutout: moves samples in space"),
        # A vector has no width: mirrored along it, inputs would go to other samples of the batch.
        ({"flip": True}, ((4, 4, 1), (3,)), r"^--flip: mirrors inputs .* of shape \(3,\) have other .*; leave the "),
    ],
)
def test_what_samples_of_a_shape_cannot_have_is_refused(settings, shape, message):
    shapes = shape if isinstance(shape[0], tuple) else (shape,)
    with pytest.raises(UserError, match=message):
        check_augmentations(Config(**settings), *shapes)


@pytest.mark.parametrize("kind", ["color", "translation", "cutout"])
def test_any_number_of_ranks_augments_equally_and_each_step_and_key_otherwise(kind):
    given = images()
    whole = diff_augment(given, (kind,), random(), "real").numpy()
    parts = [diff_augment(given[16 * p : 16 * p + 16], (kind,), random(part=p, parts=4), "real") for p in range(4)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    for other in (diff_augment(given, (kind,), random(1), "real"), diff_augment(given, (kind,), random(), "fake")):
        assert np.mean(np.any(other.numpy() != whole, axis=(1, 2, 3))) > 0.9


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
