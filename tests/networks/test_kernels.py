"""Layers and optimizers with fast kernels compute what Keras computes, and are used where they are faster.

Modules: networks.fast.convolution.
"""

import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from hvdgan.cli import launcher
from hvdgan.networks.fast import convolution, kernels
from hvdgan.networks.fast.kernels import (
    FastConv2D,
    FastConv2DTranspose,
    FastLeakyReLU,
    FusedAdam,
    FusedBatchNormalization,
    use_fast_kernels,
)


def _norm(dtype="float32", shape=(None, None, None, 5), **options):
    layer = keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5, dtype=dtype, **options)
    layer.build(shape)
    draw = np.random.default_rng(1)
    layer.set_weights([draw.normal(size=weight.shape) ** 2 + 0.5 for weight in layer.get_weights()])
    return layer


def _run_norm(layer, images):
    """Output, gradients of an uneven loss and of the norm of its gradient, and the moving statistics."""
    x = tf.constant(images)
    weights = tf.random.stateless_normal(x.shape, (2, 3))
    variables = [variable.value for variable in layer.trainable_variables]

    @tf.function(autograph=False)
    def run():
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                output = layer(x, training=True)
                loss = tf.reduce_mean(weights * tf.cast(output, tf.float32) ** 2)
            penalty = tf.reduce_sum(inner.gradient(loss, x) ** 2)
        return output, outer.gradient({"loss": loss, "penalty": 10 * penalty}, [x, *variables])

    output, gradients = run()
    return output.numpy(), [g.numpy() for g in gradients], [v.numpy() for v in layer.non_trainable_variables]


@pytest.mark.parametrize("shape", [(8, 6, 4, 5), (1, 1, 1, 5)])
@pytest.mark.parametrize("options", [{}, {"center": False, "scale": False}])
def test_batch_norm_and_its_gradients_of_both_orders(shape, options):
    images = np.random.default_rng(0).normal(2.0, 3.0, shape).astype(np.float32)
    plain, fused = _norm(**options), _norm(**options)
    network = keras.Sequential([keras.Input((None, None, 5)), fused])
    use_fast_kernels([network], [])
    assert type(fused) is FusedBatchNormalization and type(plain) is keras.layers.BatchNormalization
    for mine, expected in zip(_run_norm(fused, images), _run_norm(plain, images), strict=True):
        for one, other in zip(mine, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


def test_batch_norm_at_inference_frozen_on_vectors_or_on_volumes_is_keras_own():
    images = np.random.default_rng(0).normal(size=(8, 6, 4, 5)).astype(np.float32)
    volumes = images.reshape(8, 2, 3, 4, 5)
    cases = ((False, True, images), (True, False, images), (True, True, images[:, 0, 0]), (True, True, volumes))
    for training, trainable, inputs in cases:
        plain, fused = (_norm(shape=(None,) * (inputs.ndim - 1) + (5,)) for _ in range(2))
        use_fast_kernels([keras.Sequential([fused])], [])
        plain.trainable = fused.trainable = trainable
        np.testing.assert_array_equal(fused(inputs, training=training), plain(inputs, training=training))
        for mine, other in zip(fused.get_weights(), plain.get_weights(), strict=True):
            np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("options", [{}, {"beta_1": 0.0, "beta_2": 0.9, "epsilon": 1e-3}])
def test_adam_steps_as_keras_does(options):
    def train(fused):
        variables = [keras.Variable(np.linspace(-1, 1, size).astype(np.float32)) for size in (7, 3)]
        optimizer = keras.optimizers.Adam(0.01, **options)
        optimizer.build(variables)
        if fused:
            use_fast_kernels([], [optimizer])
            assert type(optimizer) is FusedAdam
        step = tf.function(optimizer.apply, autograph=False)
        for number in range(20):
            step([tf.sin(variable.value * 3 + number) for variable in variables])
        return [variable.numpy() for variable in (*variables, *optimizer.variables)]

    for mine, expected in zip(train(True), train(False), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-6)
    kept = [keras.optimizers.AdamW(), keras.optimizers.Adam(amsgrad=True)]
    use_fast_kernels([], kept)
    assert [type(each) for each in kept] == [keras.optimizers.AdamW, keras.optimizers.Adam]


conv, conv_transpose = keras.layers.Conv2D, keras.layers.Conv2DTranspose

LAYERS = {
    "stride 2": (conv, {"kernel_size": 4, "strides": 2, "padding": "same"}, (2, 8, 8, 16)),
    "odd sizes": (conv, {"kernel_size": 5, "strides": 2, "padding": "same", "use_bias": False}, (2, 7, 5, 16)),
    "valid": (conv, {"kernel_size": (4, 3), "activation": "relu"}, (2, 4, 4, 16)),
    "transposed, stride 2": (conv_transpose, {"kernel_size": 4, "strides": 2, "padding": "same"}, (2, 4, 4, 16)),
    "transposed, valid": (conv_transpose, {"kernel_size": 4, "padding": "valid", "use_bias": False}, (2, 1, 1, 16)),
}


def _layer(kind, options, shape, *, fast):
    layer = kind(24, kernel_initializer=keras.initializers.RandomNormal(seed=1), **options)
    layer.build((None, *shape[1:]))
    if fast:
        use_fast_kernels([keras.Sequential([keras.Input(shape[1:]), layer])], [])
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
    monkeypatch.setattr(convolution, "FEW_POSITIONS", positions)
    monkeypatch.setattr(convolution, "WEIGHTS_PER_POSITION", 1)
    monkeypatch.setattr(convolution, "WEIGHTS_PER_POSITION_FILTER", 1)
    kind, options, shape = LAYERS[name]
    plain, fast = (_layer(kind, options, shape, fast=fast) for fast in (False, True))
    assert type(fast) in (FastConv2D, FastConv2DTranspose)
    assert _convolutions(fast, shape) == convolutions
    assert _convolutions(plain, shape) == 3
    for mine, expected in zip(_run(fast, shape), _run(plain, shape), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=2e-4, atol=2e-4 * np.abs(expected).max())


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_leaky_relu_has_keras_values_and_gradients(policy):
    x = tf.cast(np.linspace(-3, 3, 61), tf.as_dtype(policy.removeprefix("mixed_")))
    plain, fast = (keras.layers.LeakyReLU(0.2, dtype=policy) for _ in range(2))
    use_fast_kernels([keras.Sequential([fast])], [])
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
        narrow = {"float32": 0.0, "mixed_bfloat16": 2**-7}[policy]
        np.testing.assert_allclose(mine, expected, rtol=narrow)


def test_batch_norm_in_mixed_precision_keeps_its_statistics_in_float32():
    images = np.random.default_rng(0).normal(2.0, 3.0, (8, 6, 4, 5)).astype(np.float32)
    fused, plain = _norm("mixed_bfloat16"), _norm()
    use_fast_kernels([keras.Sequential([keras.Input((None, None, 5)), fused])], [])
    output, _, statistics = _run_norm(fused, images)
    expected, _, expected_statistics = _run_norm(plain, images)
    assert output.dtype == tf.bfloat16.as_numpy_dtype
    np.testing.assert_allclose(output.astype(np.float32), expected, atol=0.06)
    for mine, other in zip(statistics, expected_statistics, strict=True):
        np.testing.assert_allclose(mine, other, rtol=0.01)


@pytest.mark.parametrize("options", [{"dilation_rate": 2}, {"groups": 2}])
def test_dilated_and_grouped_convolutions_are_keras_own(options, monkeypatch):
    monkeypatch.setattr(convolution, "WEIGHTS_PER_POSITION", 1)
    monkeypatch.setattr(convolution, "WEIGHTS_PER_POSITION_FILTER", 1)
    layers = [_layer(conv, {"kernel_size": 3, "padding": "same", **options}, (1, 4, 4, 16), fast=f) for f in (0, 1)]
    plain, fast = (layer(tf.ones((1, 4, 4, 16))) for layer in layers)
    np.testing.assert_array_equal(fast, plain)


def test_the_newest_tested_versions_are_the_pinned_ones_and_newer_ones_get_keras_kernels(monkeypatch, capfd):
    """Those of launch/constraints*.txt; a newer pin comes with tests of its own."""
    launch = Path(__file__).parents[2] / "launch"
    pinned = "".join(path.read_text() for path in launch.glob("constraints*.txt"))
    for name, newest in kernels.NEWEST_TESTED.items():
        found = re.findall(rf"^{name.lower()}==(\d+)\.(\d+)", pinned, re.MULTILINE)
        assert max(tuple(map(int, pair)) for pair in found) == newest
    monkeypatch.setitem(kernels.NEWEST_TESTED, "Keras", (3, 0))
    launcher.warn_once.cache_clear()
    optimizer = keras.optimizers.Adam()
    use_fast_kernels([], [optimizer])
    assert type(optimizer) is keras.optimizers.Adam
    assert f"not tested with Keras {keras.__version__}; Keras' slower ones are used" in capfd.readouterr().err
