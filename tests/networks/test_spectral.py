"""Spectral normalisation of layers."""

import numpy as np
import tensorflow as tf

from hvdgan.networks.spectral import SpectralConv2D, SpectralDense, SpectralEmbedding

CLASSES = np.arange(5, dtype=np.int32)
IMAGES = np.random.default_rng(0).normal(size=(2, 4, 4, 3)).astype(np.float32)
ROWS = np.random.default_rng(1).normal(size=(6, 7)).astype(np.float32)


def kinds(**keywords):
    return [
        (SpectralConv2D(8, 3, **keywords), IMAGES),
        (SpectralDense(6, **keywords), ROWS),
        (SpectralEmbedding(5, 6, **keywords), CLASSES),
    ]


def matrix_of(layer):
    kernel = layer.kernel.numpy()
    return kernel.reshape(-1, kernel.shape[-1])


def test_they_are_what_their_names_say_with_the_weight_over_its_norm():
    """One iteration by hand, with the paper's W = the matrix transposed: v = W'u / |W'u|, u = Wv / |Wv|, s = u'Wv."""
    for layer, inputs in kinds():
        layer.build(inputs.shape)
        if hasattr(layer, "bias"):
            layer.bias.assign(np.arange(layer.bias.shape[0]) * 0.1)
        w, u = matrix_of(layer).T, layer.u.numpy()
        v = w.T @ u / np.linalg.norm(w.T @ u)
        u = w @ v / np.linalg.norm(w @ v)
        kernel = layer.kernel.numpy() / (u @ w @ v)
        outputs = layer(inputs, training=True).numpy()
        if isinstance(layer, SpectralConv2D):
            expected = tf.nn.conv2d(inputs, kernel, 1, "SAME").numpy() + layer.bias.numpy()
        elif isinstance(layer, SpectralDense):
            expected = inputs @ kernel + layer.bias.numpy()
        else:
            expected = kernel[inputs]
        np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(layer.u.numpy(), u, rtol=1e-4, atol=1e-6)
        moved = layer.u.numpy()
        layer(inputs, training=False)
        np.testing.assert_array_equal(layer.u.numpy(), moved)


def test_the_gradient_is_that_of_equation_12():
    """(G - <G, W/s> v u') / s, where G is the gradient with respect to the normalised weight."""
    layer = SpectralDense(6)
    layer.build(ROWS.shape)
    for _ in range(3):  # the formula holds wherever the iteration has got to
        layer(ROWS, training=True)
    target = np.random.default_rng(2).normal(size=(6, 6)).astype(np.float32)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(ROWS, training=False) * target)
    gradient = tape.gradient(loss, layer.kernel.value).numpy()
    m, u = matrix_of(layer), layer.u.numpy()
    v = m @ u / np.linalg.norm(m @ u)
    u = v @ m / np.linalg.norm(v @ m)
    sigma = v @ m @ u
    g = ROWS.T @ target
    by_hand = (g - np.sum(g * m / sigma) * np.outer(v, u)) / sigma
    np.testing.assert_allclose(gradient, by_hand, rtol=1e-4, atol=1e-4)
