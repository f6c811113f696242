"""What is chosen by the device computes the same.

Modules: networks.device, networks.blurring.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hvdgan.networks import blurring, device
from hvdgan.networks.fast.kernels import FastConv2D, FastLeakyReLU, FusedAdam, FusedBatchNormalization, use_fast_kernels


def _changed():
    """The classes that the layers and the optimizer of a small network get."""
    layers = [keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization(), keras.layers.LeakyReLU()]
    optimizer = keras.optimizers.Adam()
    use_fast_kernels([keras.Sequential([keras.Input((8, 8, 3)), *layers])], [optimizer])
    return [type(each) for each in (*layers, optimizer)]


def test_a_gpu_has_kerass_own_convolutions_and_the_same_fused_kernels():
    assert device.chosen() == device.CPU  # of the machines that run the tests
    alike = [FusedBatchNormalization, FastLeakyReLU, FusedAdam]
    assert _changed() == [FastConv2D, *alike]
    with device.computing_as(device.GPU):
        assert _changed() == [keras.layers.Conv2D, *alike]
    assert device.chosen() == device.CPU


def _run(resize, images, kernel, choice):
    """The result, and the gradients of both orders of all inputs, traced for a kind of device."""
    x, weights = tf.constant(images), tf.constant(kernel)

    @tf.function(autograph=False)
    def run():
        with tf.GradientTape() as outer:
            outer.watch([x, weights])
            with tf.GradientTape() as inner:
                inner.watch([x, weights])
                y = resize(x, weights)
                loss = tf.reduce_sum(tf.cast(y, tf.float32) ** 3)
            slopes = inner.gradient(loss, [x, weights])
            penalty = tf.add_n([tf.reduce_sum(tf.cast(slope, tf.float32) ** 2) for slope in slopes])
        return y, slopes, outer.gradient(penalty, [x, weights])

    with device.computing_as(choice):
        function = run.get_concrete_function()
    kinds = {each.type for each in function.graph.get_operations()}
    return [each.numpy() for each in tf.nest.flatten(function())], kinds


@pytest.mark.parametrize(("resize", "size"), [(blurring.halved, 1), (blurring.halved, 3), (blurring.doubled, 3)])
def test_a_blur_apart_gives_the_same_with_gradients_of_both_orders(resize, size):
    random = np.random.default_rng(0)
    images = random.normal(size=(2, 8, 6, 5)).astype(np.float32)
    kernel = 0.3 * random.normal(size=(size, size, 5, 4)).astype(np.float32)
    joined, of_joined = _run(resize, images, kernel, device.CPU)
    apart, of_apart = _run(resize, images, kernel, device.GPU)
    assert "DepthwiseConv2dNative" not in of_joined
    assert "DepthwiseConv2dNative" in of_apart
    for mine, expected in zip(apart, joined, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


def test_whole_numbers_reach_a_gpu_as_they_are():
    """By the kernel of tf.range, which is tried on the CPU."""
    numbers = [0, 1, -1, 7, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63)]
    for some in (numbers, *numbers):
        given = tf.constant(some, tf.int64)
        with device.computing_as(device.GPU):
            traced = tf.function(device.to_device, autograph=False).get_concrete_function(given)
        assert traced(given).numpy().tolist() == given.numpy().tolist()
        assert any(each.type == "Range" for each in traced.graph.get_operations())
