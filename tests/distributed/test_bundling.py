"""Bundled gradients are the same after unbundling."""

import keras
import numpy as np
import tensorflow as tf

from hvdgan.distributed import bundling


def _like_a_network():
    shapes = [(3, 5), (7,), (512, 512), (2, 2, 3), (256, 300), ()]
    random = np.random.default_rng(0)
    tensors = [tf.constant(random.normal(size=shape), tf.float32) for shape in shapes]
    return [*tensors, tf.constant([1.0, 2.0], tf.float16), tf.constant([3.0], tf.float16)]


def test_small_gradients_of_a_dtype_are_one_bundle_and_a_large_one_is_its_own():
    assert bundling.bundles(_like_a_network()) == [[0, 1, 3, 5], [2], [4], [6, 7]]


def test_unbundling_reverses_bundling():
    tensors = _like_a_network()
    back = bundling.unbundle(bundling.bundle(tensors, tensors), tensors)
    for before, after in zip(tensors, back, strict=True):
        assert before.dtype == after.dtype
        np.testing.assert_array_equal(before, after)


def test_a_gradient_of_unknown_static_shape_is_bundled_too():
    variables = [keras.Variable(np.ones(shape, np.float32)).value for shape in [(5, 3), (4,)]]

    @tf.function(input_signature=[tf.TensorSpec(None), tf.TensorSpec(None)])
    def there_and_back(first, second):
        return bundling.unbundle(bundling.bundle([first, second], variables), variables)

    sent = [np.arange(15, dtype=np.float32).reshape(5, 3), np.arange(4, dtype=np.float32)]
    for before, after in zip(sent, there_and_back(*sent), strict=True):
        np.testing.assert_array_equal(before, after)
