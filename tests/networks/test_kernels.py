"""Layers and optimizers with fast kernels compute what Keras computes, and are used where they are faster.
Modules: networks.kernels, networks.cpu_or_gpu, networks.equalised"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hvdgan.networks import cpu_or_gpu, equalised, kernels
from hvdgan.networks.kernels import (
    FastConv2D,
    FastConv2DTranspose,
    FastLeakyReLU,
    FusedAdam,
    FusedBatchNormalization,
    use_fast_kernels,
)

DRAWS = np.random.default_rng(0)


def both_orders(compute, inputs):
    """The output, the gradients of an uneven loss, and those of the norm of these, with the types of the operations."""

    @tf.function(autograph=False)
    def run():
        with tf.GradientTape() as outer:
            outer.watch(inputs)
            with tf.GradientTape() as inner:
                inner.watch(inputs)
                output = compute()
                loss = tf.reduce_sum(tf.cast(output, tf.float32) ** 3)
            slopes = inner.gradient(loss, inputs)
            penalty = tf.add_n([tf.reduce_sum(tf.cast(slope, tf.float32) ** 2) for slope in slopes])
        return output, slopes, outer.gradient(penalty, inputs)

    function = run.get_concrete_function()
    values = [tf.cast(each, tf.float32).numpy() for each in tf.nest.flatten(function())]
    return values, [each.type for each in function.graph.get_operations()]


def of_layer(layer, images, **keywords):
    x = tf.constant(images)
    variables = [variable.value for variable in layer.trainable_variables]
    return both_orders(lambda: layer(x, **keywords), [x, *variables])


def assert_close(values, expected, tolerance):
    for mine, other in zip(values, expected, strict=True):
        np.testing.assert_allclose(mine, other, rtol=tolerance, atol=tolerance * np.abs(other).max())


def use_fast(layer):
    use_fast_kernels([keras.Sequential([layer])], [])
    return layer


def _norm(dtype="float32", shape=(None, None, None, 5), **options):
    layer = keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5, dtype=dtype, **options)
    layer.build(shape)
    draw = np.random.default_rng(1)
    layer.set_weights([draw.normal(size=weight.shape) ** 2 + 0.5 for weight in layer.get_weights()])
    return layer


@pytest.mark.parametrize("shape", [(8, 6, 4, 5), (1, 1, 1, 5)])
@pytest.mark.parametrize("options", [{}, {"center": False, "scale": False}])
def test_batch_norm_and_its_gradients_of_both_orders(shape, options):
    images = DRAWS.normal(2.0, 3.0, shape).astype(np.float32)
    plain, fused = _norm(**options), use_fast(_norm(**options))
    assert type(fused) is FusedBatchNormalization and type(plain) is keras.layers.BatchNormalization
    assert_close(of_layer(fused, images, training=True)[0], of_layer(plain, images, training=True)[0], 2e-3)
    assert_close(fused.get_weights(), plain.get_weights(), 1e-5)


def test_batch_norm_at_inference_frozen_on_vectors_or_on_volumes_is_keras_own():
    images = DRAWS.normal(size=(8, 6, 4, 5)).astype(np.float32)
    volumes = images.reshape(8, 2, 3, 4, 5)
    cases = ((False, True, images), (True, False, images), (True, True, images[:, 0, 0]), (True, True, volumes))
    for training, trainable, inputs in cases:
        plain, fused = (_norm(shape=(None,) * (inputs.ndim - 1) + (5,)) for _ in range(2))
        use_fast(fused)
        plain.trainable = fused.trainable = trainable
        np.testing.assert_array_equal(fused(inputs, training=training), plain(inputs, training=training))
        assert_close(fused.get_weights(), plain.get_weights(), 0)


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


def _pair(kind, options, shape):
    """Equal layers with Keras' kernels and with the fast ones."""
    pair = [kind(24, kernel_initializer=keras.initializers.RandomNormal(seed=1), **options) for _ in range(2)]
    for layer in pair:
        layer.build((None, *shape[1:]))
    use_fast_kernels([keras.Sequential([keras.Input(shape[1:]), pair[1]])], [])
    return pair


@pytest.mark.parametrize(("positions", "convolutions"), [(10**6, 0), (0, 2)], ids=["all", "filter gradient"])
@pytest.mark.parametrize("name", LAYERS)
def test_convolutions_and_their_gradients_of_both_orders(name, positions, convolutions, monkeypatch):
    monkeypatch.setattr(kernels, "FEW_POSITIONS", positions)
    monkeypatch.setattr(kernels, "WEIGHTS_PER_POSITION", 1)
    monkeypatch.setattr(kernels, "WEIGHTS_PER_POSITION_FILTER", 1)
    kind, options, shape = LAYERS[name]
    plain, fast = _pair(kind, options, shape)
    assert type(fast) in (FastConv2D, FastConv2DTranspose)
    images = DRAWS.normal(size=shape).astype(np.float32)
    assert_close(of_layer(fast, images)[0], of_layer(plain, images)[0], 2e-4)

    def slopes(x):
        return tf.gradients(fast(x), [x, fast.trainable_variables[0].value])

    graph = tf.function(slopes, autograph=False).get_concrete_function(tf.TensorSpec(shape)).graph
    assert sum(operation.type.startswith("Conv2D") for operation in graph.get_operations()) == convolutions


GROUPED = {
    "joined": (keras.layers.Conv2D, {"kernel_size": 3, "padding": "same"}, 4, (2, 8, 8, 16)),
    "joined to two": (
        keras.layers.Conv2D,
        {"kernel_size": (3, 2), "strides": (2, 1), "use_bias": False},
        8,
        (2, 7, 5, 64),
    ),
    "wide": (keras.layers.Conv2D, {"kernel_size": 3, "dilation_rate": 2, "activation": "tanh"}, 3, (2, 7, 7, 108)),
    "of one channel": (keras.layers.Conv2D, {"kernel_size": 3, "strides": 2, "padding": "same"}, 6, (2, 7, 5, 6)),
    "in one dimension": (keras.layers.Conv1D, {"kernel_size": 5, "strides": 2, "padding": "same"}, 3, (2, 11, 12)),
    "causal": (keras.layers.Conv1D, {"kernel_size": 3, "dilation_rate": 2, "padding": "causal"}, 2, (2, 11, 4)),
    "causal, of one channel": (keras.layers.Conv1D, {"kernel_size": 3, "padding": "causal"}, 4, (2, 11, 4)),
    "in three dimensions": (keras.layers.Conv3D, {"kernel_size": 2, "strides": (1, 2, 1)}, 4, (2, 4, 4, 4, 4)),
}


@pytest.mark.parametrize("name", GROUPED)
def test_groups_and_their_gradients_of_both_orders(name):
    """The values are compared with Keras' own; the gradients with those of a layer per group, since XLA is slow."""
    kind, options, groups, shape = GROUPED[name]
    plain, fast = (kind(24, groups=groups, dtype="float64", **options) for _ in range(2))
    of_group = kind(24 // groups, dtype="float64", **options)
    for layer, channels in ((plain, shape[-1]), (fast, shape[-1]), (of_group, shape[-1] // groups)):
        layer.build((*shape[:-1], channels))
    plain.set_weights(fast.get_weights())
    assert type(use_fast(fast)) is getattr(kernels, f"Fast{kind.__name__}")
    inputs = [tf.constant(DRAWS.normal(size=shape)), *(variable.value for variable in fast.trainable_variables)]

    def one_by_one():
        parts = zip(*(tf.split(each, groups, axis=-1) for each in inputs), strict=True)
        return tf.concat([of_group.stateless_call(weights, [], x)[0] for x, *weights in parts], axis=-1)

    values, kinds = both_orders(lambda: fast(inputs[0]), inputs)
    assert_close(values[:1], [plain(inputs[0])], 1e-6)
    assert_close(values, both_orders(one_by_one, inputs)[0], 1e-6)
    assert not any("PartitionedCall" in each for each in kinds)  # XLA's


def test_layers_of_one_channel_each_keep_their_classes():
    own = [keras.layers.DepthwiseConv2D(3), keras.layers.SeparableConv2D(4, 3), keras.layers.SeparableConv1D(4, 3)]
    use_fast_kernels([keras.Sequential([each]) for each in own], [])
    assert [type(each).__module__.partition(".")[0] for each in own] == ["keras"] * 3


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_leaky_relu_has_keras_values_and_gradients(policy):
    x = tf.cast(np.linspace(-3, 3, 61), tf.as_dtype(policy.removeprefix("mixed_")))
    plain, fast = (keras.layers.LeakyReLU(0.2, dtype=policy) for _ in range(2))
    assert type(use_fast(fast)) is FastLeakyReLU
    values, expected = (both_orders(lambda layer=layer: layer(x), [x])[0] for layer in (fast, plain))
    # TensorFlow rounds the slope to the narrow type before it multiplies.
    assert_close(values, expected, {"float32": 1e-6, "mixed_bfloat16": 2**-6}[policy])


def changed():
    """The classes of layers and of an optimizer with fast kernels."""
    layers = [conv(4, 3), keras.layers.BatchNormalization(), keras.layers.LeakyReLU()]
    optimizer = keras.optimizers.Adam()
    use_fast_kernels([keras.Sequential([keras.Input((8, 8, 3)), *layers])], [optimizer])
    return [type(each) for each in (*layers, optimizer)]


def test_a_gpu_has_kerass_own_convolutions_and_a_keras_that_no_test_has_run_with_all_of_its_own(monkeypatch, capsys):
    alike = [FusedBatchNormalization, FastLeakyReLU, FusedAdam]
    assert cpu_or_gpu.chosen() == cpu_or_gpu.CPU and changed() == [FastConv2D, *alike]
    with cpu_or_gpu.computing_as(cpu_or_gpu.GPU):
        assert changed() == [conv, *alike]
    monkeypatch.setattr(keras, "__version__", "3.99.0")
    assert changed() == [conv, keras.layers.BatchNormalization, keras.layers.LeakyReLU, keras.optimizers.Adam]
    assert "were not tested with Keras 3.99.0; Keras' slower ones are used" in capsys.readouterr().err


@pytest.mark.parametrize("resize", [equalised.halved, equalised.doubled])
def test_a_blur_apart_gives_the_same_with_gradients_of_both_orders(resize):
    images = tf.constant(DRAWS.normal(size=(2, 8, 6, 5)), tf.float32)
    kernel = tf.constant(0.3 * DRAWS.normal(size=(3, 3, 5, 4)), tf.float32)
    found = []
    for choice in (cpu_or_gpu.CPU, cpu_or_gpu.GPU):
        with cpu_or_gpu.computing_as(choice):
            values, kinds = both_orders(lambda: resize(images, kernel), [images, kernel])
        assert ("DepthwiseConv2dNative" in kinds) == choice.blurs_apart
        found.append(values)
    assert_close(*found, 1e-3)
