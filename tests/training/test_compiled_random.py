"""Draws inside of a compiled function are those of the same batch outside."""

import numpy as np
import pytest
import tensorflow as tf

from hvdgan.recipe.draws import Random
from hvdgan.training.compiler import CompiledRandom


def drawn(kind, name, seed, first, count, shape, compiled):
    """Numbers of a key, at step 4; the place of the first sample is a tensor, as in a loop over micro-batches."""

    def draw(step, first):
        random = kind(seed, step, first, count).scoped("update")
        return random.integers("key", shape, 1000) if name == "integers" else getattr(random, name)("key", shape)

    function = tf.function(draw, jit_compile=compiled, autograph=False)
    return function(tf.constant(4, tf.int64), tf.constant(first, tf.int64)).numpy()


@pytest.mark.parametrize("name", ["uniform", "integers", "normal"])
@pytest.mark.parametrize(
    ("seed", "first", "count", "shape"),
    [(0, 0, 1, ()), (5, 0, 7, (3, 5)), (5, 3, 7, (3,)), (2**31 - 1, 2**40 + 1, 64, (3, 7)), (1, 1, 300, (2, 2, 3))],
)
def test_the_numbers_are_those_of_random(name, seed, first, count, shape):
    """Uniform numbers bit for bit; normal ones but for the rounding of log, sin and cos near numbers up to 5."""
    arguments = name, seed, first, count, shape
    expected, found = drawn(Random, *arguments, compiled=False), drawn(CompiledRandom, *arguments, compiled=True)
    assert found.dtype == expected.dtype and found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=5e-6 if name == "normal" else 0)


def test_xla_alone_would_draw_other_numbers():
    """The reason for the class; if this fails, TensorFlow's operations draw the same everywhere, and it can go."""
    arguments = "uniform", 5, 0, 7, (3, 5)
    outside, inside = drawn(Random, *arguments, compiled=False), drawn(Random, *arguments, compiled=True)
    assert not np.array_equal(outside, inside)
