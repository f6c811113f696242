"""Records become samples, inputs and constants; crops depend on seed, step and place in the global batch alone."""

import numpy as np
import pytest
import tensorflow as tf

from hvdgan.recipe import DataSpec
from hvdgan.recipe.batch import unpack
from hvdgan.recipe.draws import Random
from hvdgan.values.sample_values import Layout

RNG = np.random.default_rng(0)


def random(step=0, first=0, count=12, seed=0):
    return Random(seed, tf.constant(step, tf.int64), first, count)


def spec_of(layout, constants=None):
    return DataSpec(layout.seen, 99, input_shape=layout.input_seen, layout=layout, constants=constants)


def test_pixels_become_minus_one_to_one_and_floats_stay():
    pixels = np.array([0, 51, 102, 255], np.uint8).reshape(1, 2, 2, 1)
    seen = unpack(tf.constant(pixels), DataSpec((2, 2, 1), 9)).images.numpy()
    np.testing.assert_array_equal(seen, pixels.astype(np.float32) / 127.5 - 1)
    floats = RNG.normal(size=(3, 5)).astype(np.float32)
    np.testing.assert_array_equal(unpack(tf.constant(floats), DataSpec((5,), 9)).images, floats)


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


LAYOUT = Layout((10, 14, 2), crop=(4, 6))
RECORDS = np.repeat(grid(10, 14)[None], 12, axis=0)


def test_crops_lie_anywhere_and_depend_on_seed_and_step():
    spec, records = spec_of(LAYOUT), tf.constant(RECORDS)
    seen = [places_of(unpack(records, spec, random(step)).images.numpy(), grid(10, 14)) for step in range(40)]
    everywhere = np.concatenate(seen)
    assert set(everywhere[:, 0]) == set(range(7)) and set(everywhere[:, 1]) == set(range(9))
    assert not np.array_equal(seen[0], seen[1])
    np.testing.assert_array_equal(unpack(records, spec, random(3)).images[:, 0, 0], seen[3])
    assert not np.array_equal(unpack(records, spec, random(3, seed=1)).images[:, 0, 0], seen[3])
    half = unpack(records[6:], spec, random(3, 6, 6)).images  # of another rank
    np.testing.assert_array_equal(half[:, 0, 0], seen[3][6:])


@pytest.mark.parametrize("is_random", [False, True])
def test_inputs_and_constants_show_the_same_region(is_random):
    """The input is half as high and a third as wide; its channels are the rows and columns of the sample."""
    layout = Layout((8, 18, 2), (4, 6, 2), crop=(4, 6))
    images = np.repeat(grid(8, 18)[None], 12, axis=0)
    inputs = images[:, ::2, ::3]
    constants = 1000 + grid(8, 18)
    records = tf.constant(layout.joined(inputs, images, np.dtype(np.float32)))
    parts = unpack(records, spec_of(layout, constants), random() if is_random else None)
    assert (parts.images.shape, parts.inputs.shape, parts.constants.shape) == (
        (12, 4, 6, 2),
        (12, 2, 2, 2),
        (12, 4, 6, 2),
    )
    places_of(parts.images.numpy(), grid(8, 18))
    np.testing.assert_array_equal(parts.inputs, parts.images[:, ::2, ::3])
    np.testing.assert_array_equal(parts.constants, parts.images + 1000)
    assert len(set(map(tuple, parts.images[:, 0, 0].numpy()))) > 3 if is_random else True
