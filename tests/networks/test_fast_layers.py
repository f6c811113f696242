"""Layers with fast gradients compute what Keras' own do, and are used where they are faster."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hvdgan.networks import convolution
from hvdgan.networks.fast_layers import FastConv2D, FastConv2DTranspose, FastLeakyReLU, use_fast_layers

conv, conv_transpose = keras.layers.Conv2D, keras.layers.Conv2DTranspose

LAYERS = {
    "stride 2": (conv, {"kernel_size": 4, "strides": 2, "padding": "same"}, (2, 8, 8, 16)),
    "odd sizes": (conv, {"kernel_size": 5, "strides": 2, "padding": "same", "use_bias": False}, (2, 7, 5, 16)),
    "stride 1": (conv, {"kernel_size": 3, "padding": "same", "activation": "relu"}, (1, 4, 4, 16)),
    "valid": (conv, {"kernel_size": (4, 3)}, (2, 4, 4, 16)),
    "transposed, stride 2": (conv_transpose, {"kernel_size": 4, "strides": 2, "padding": "same"}, (2, 4, 4, 16)),
    "transposed, valid": (conv_transpose, {"kernel_size": 4, "padding": "valid", "use_bias": False}, (2, 1, 1, 16)),
    "transposed, activation": (
        conv_transpose,
        {"kernel_size": 3, "padding": "same", "activation": "tanh"},
        (1, 4, 4, 9),
    ),
}
KEPT = {
    "dilated": (conv, {"kernel_size": 3, "dilation_rate": 2, "padding": "same"}, (1, 4, 4, 16)),
    "in groups": (conv, {"kernel_size": 3, "groups": 2, "padding": "same"}, (1, 4, 4, 16)),
    "transposed, dilated": (conv_transpose, {"kernel_size": 3, "dilation_rate": 2}, (1, 4, 4, 16)),
}


def _layer(kind, options, shape, *, fast):
    layer = kind(24, kernel_initializer=keras.initializers.RandomNormal(seed=1), **options)
    layer.build((None, *shape[1:]))
    if fast:
        use_fast_layers([keras.Sequential([keras.Input(shape[1:]), layer])])
    return layer


def _run(layer, shape):
    """Output, and the gradients of a loss and of a penalty on the norm of its gradient, both of all inputs."""
    x = tf.random.stateless_normal(shape, (1, 2))
    variables = [variable.value for variable in layer.trainable_variables]

    @tf.function(autograph=False)
    def run():
        with tf.GradientTape(persistent=True) as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                output = layer(x)
                loss = tf.reduce_sum(tf.cast(output, tf.float32) ** 3)
            slopes = inner.gradient(loss, [x, *variables])
            penalty = tf.add_n([tf.reduce_sum(slope**2) for slope in slopes])
        return output, slopes, outer.gradient(penalty, [x, *variables])

    return [value.numpy() for value in tf.nest.flatten(run())]


def _convolutions(layer, shape):
    """How many convolutions of TensorFlow's compute the output and the gradients of input and kernel."""

    def run(x):
        return tf.gradients(layer(x), [x, layer.trainable_variables[0].value])

    graph = tf.function(run, autograph=False).get_concrete_function(tf.TensorSpec(shape)).graph
    return sum(operation.type.startswith("Conv2D") for operation in graph.get_operations())


@pytest.mark.parametrize(("positions", "convolutions"), [(10**6, 0), (0, 2)], ids=["all", "filter gradient"])
@pytest.mark.parametrize("name", LAYERS)
def test_convolutions_and_their_gradients_of_both_orders(name, positions, convolutions, monkeypatch):
    monkeypatch.setattr(convolution, "_FEW_POSITIONS", positions)
    monkeypatch.setattr(convolution, "_WEIGHTS_PER_POSITION", 1)
    monkeypatch.setattr(convolution, "_WEIGHTS_PER_POSITION_FILTER", 1)
    kind, options, shape = LAYERS[name]
    plain, fast = (_layer(kind, options, shape, fast=fast) for fast in (False, True))
    assert type(fast) in (FastConv2D, FastConv2DTranspose)
    assert _convolutions(fast, shape) == convolutions
    assert _convolutions(plain, shape) == 3
    for mine, expected in zip(_run(fast, shape), _run(plain, shape), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=2e-4, atol=2e-4 * np.abs(expected).max())


@pytest.mark.parametrize("name", KEPT)
def test_other_convolutions_are_keras_own(name, monkeypatch):
    monkeypatch.setattr(convolution, "_WEIGHTS_PER_POSITION", 1)
    monkeypatch.setattr(convolution, "_WEIGHTS_PER_POSITION_FILTER", 1)
    kind, options, shape = KEPT[name]
    plain, fast = (_layer(kind, options, shape, fast=fast) for fast in (False, True))
    assert _convolutions(fast, shape) == _convolutions(plain, shape)
    np.testing.assert_array_equal(fast(tf.ones(shape)), plain(tf.ones(shape)))


def test_products_are_for_many_weights_at_few_positions():
    options = {"kernel_size": 4, "strides": 2, "padding": "same", "kernel_initializer": "zeros"}
    inner, middle, outer = (keras.layers.Conv2D(filters, **options) for filters in (512, 256, 64))
    sizes = {(8, 8, 256): inner, (16, 16, 256): middle, (32, 32, 64): outer}
    use_fast_layers([keras.Sequential([keras.Input(size), layer]) for size, layer in sizes.items()])
    assert _convolutions(inner, (16, 8, 8, 256)) == 0
    assert _convolutions(inner, (1024, 8, 8, 256)) == 3
    assert _convolutions(inner, (None, 8, 8, 256)) == 3
    assert _convolutions(middle, (4, 16, 16, 256)) == 2
    assert _convolutions(outer, (16, 32, 32, 64)) == 3


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_leaky_relu_has_keras_values_and_gradients(policy):
    x = tf.cast(np.linspace(-3, 3, 61), tf.as_dtype(policy.removeprefix("mixed_")))
    plain, fast = (keras.layers.LeakyReLU(0.2, dtype=policy) for _ in range(2))
    use_fast_layers([keras.Sequential([fast])])
    assert type(fast) is FastLeakyReLU
    results = []
    for layer in (plain, fast):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = layer(x) ** 2
            slope = inner.gradient(y, x)
        results.append([tf.cast(value, tf.float32).numpy() for value in (y, slope, outer.gradient(slope, x))])
    for mine, expected in zip(*results, strict=True):
        # TensorFlow rounds the slope to the narrow type before it multiplies.
        narrow = {"float32": 0.0, "mixed_bfloat16": 2**-7, "mixed_float16": 2**-10}[policy]
        np.testing.assert_allclose(mine, expected, rtol=narrow)


def test_convolutions_with_leaky_relu_pass_the_graph_optimizer(capfd):
    layers = [
        keras.Input((8, 8, 1)),
        *(keras.layers.Conv2D(4, 3, padding="same"), keras.layers.LeakyReLU(0.2)),
        *(keras.layers.Conv2D(8, 3, padding="same"), keras.layers.LeakyReLU(0.2)),
        *(keras.layers.Flatten(), keras.layers.Dense(1)),
    ]
    network = keras.Sequential(layers)
    use_fast_layers([network])

    @tf.function(autograph=False)
    def gradients(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.softplus(network(x, training=True)))
        return tape.gradient(loss, [variable.value for variable in network.trainable_variables])

    gradients(tf.ones((2, 8, 8, 1)))
    assert "remapper failed" not in capfd.readouterr().err
