"""What is computed by TensorFlow's single kernels is what Keras computes by many operations."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hvdgan.networks.fused import FusedAdam, FusedBatchNormalization, use_fused_kernels


def _norm(dtype="float32", shape=(None, None, None, 5), **options):
    layer = keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5, dtype=dtype, **options)
    layer.build(shape)
    draw = np.random.default_rng(1)
    layer.set_weights([draw.normal(size=weight.shape) ** 2 + 0.5 for weight in layer.get_weights()])
    return layer


def _run(layer, images):
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


@pytest.mark.parametrize("shape", [(8, 6, 4, 5), (1, 1, 1, 5), (3, 1, 1, 5)])
@pytest.mark.parametrize("options", [{}, {"scale": False}, {"center": False, "scale": False}])
def test_batch_norm_and_its_gradients_of_both_orders(shape, options):
    images = np.random.default_rng(0).normal(2.0, 3.0, shape).astype(np.float32)
    plain, fused = _norm(**options), _norm(**options)
    network = keras.Sequential([keras.Input((None, None, 5)), fused])
    use_fused_kernels([network], [])
    assert type(fused) is FusedBatchNormalization and type(plain) is keras.layers.BatchNormalization
    for mine, expected in zip(_run(fused, images), _run(plain, images), strict=True):
        for one, other in zip(mine, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_batch_norm_in_mixed_precision_keeps_its_statistics_in_float32(policy):
    images = np.random.default_rng(0).normal(2.0, 3.0, (8, 6, 4, 5)).astype(np.float32)
    fused, plain = _norm(policy), _norm()
    use_fused_kernels([keras.Sequential([keras.Input((None, None, 5)), fused])], [])
    output, _, statistics = _run(fused, images)
    expected, _, expected_statistics = _run(plain, images)
    assert output.dtype == tf.as_dtype(policy.removeprefix("mixed_")).as_numpy_dtype
    np.testing.assert_allclose(output.astype(np.float32), expected, atol=0.06)
    for mine, other in zip(statistics, expected_statistics, strict=True):
        np.testing.assert_allclose(mine, other, rtol=0.01)


def test_batch_norm_at_inference_frozen_or_on_vectors_is_keras_own():
    images = np.random.default_rng(0).normal(size=(8, 6, 4, 5)).astype(np.float32)
    for training, trainable, inputs in ((False, True, images), (True, False, images), (True, True, images[:, 0, 0])):
        plain, fused = (_norm(shape=(None,) * (inputs.ndim - 1) + (5,)) for _ in range(2))
        use_fused_kernels([keras.Sequential([fused])], [])
        plain.trainable = fused.trainable = trainable
        np.testing.assert_array_equal(fused(inputs, training=training), plain(inputs, training=training))
        for mine, other in zip(fused.get_weights(), plain.get_weights(), strict=True):
            np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("options", [{}, {"beta_1": 0.0, "beta_2": 0.9}, {"epsilon": 1e-3}])
def test_adam_steps_as_keras_does(options):
    def train(fused):
        variables = [keras.Variable(np.linspace(-1, 1, size).astype(np.float32)) for size in (7, 3)]
        optimizer = keras.optimizers.Adam(0.01, **options)
        optimizer.build(variables)
        if fused:
            use_fused_kernels([], [optimizer])
            assert type(optimizer) is FusedAdam
        step = tf.function(optimizer.apply, autograph=False)
        for number in range(20):
            step([tf.sin(variable.value * 3 + number) for variable in variables])
        return [variable.numpy() for variable in (*variables, *optimizer.variables)]

    for mine, expected in zip(train(True), train(False), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-6)


def test_other_optimizers_are_left_alone():
    kept = [keras.optimizers.SGD(), keras.optimizers.AdamW(), keras.optimizers.Adam(amsgrad=True)]
    use_fused_kernels([], kept)
    assert [type(each).__name__ for each in kept] == ["SGD", "AdamW", "Adam"]
