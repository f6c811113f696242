"""Interpolation between latents."""

import numpy as np
import tensorflow as tf

from hvdgan.recipe.drawing import slerp


def test_slerp_keeps_to_the_arc():
    first, second = np.float32([[3, 0], [1, 0], [2, 0]]), np.float32([[0, 3], [1, 0], [-2, 0]])
    half = np.sqrt(0.5) * 3
    middle = slerp(tf.constant(first), tf.constant(second), tf.constant([0.5, 0.5, 0.25]))
    np.testing.assert_allclose(middle, [[half, half], [1, 0], [1, 0]], atol=1e-6)
    for place, end in ((0.0, first), (1.0, second)):
        np.testing.assert_array_equal(slerp(tf.constant(first), tf.constant(second), tf.fill([3], place)), end)
