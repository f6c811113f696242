"""Gradients of micro-batches and of Keras' layers, and TensorFlow's remapper."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from building import changed, data_of, stage_step, tiny_run, values_of
from hvdgan.errors import UserError
from tiny import Staged, Tiny, TinyOptions


def trained(recipe=Tiny, steps=5, **settings):
    run = tiny_run(recipe, options=TinyOptions(steps=20), **settings)
    step = stage_step(run, len(run.schedule.stages) - 1)
    for number in range(steps):
        metrics, _ = step(number, number, data_of(run, number))
    return values_of(run), {name: float(value) for name, value in metrics.items()}


def test_micro_batches_equal_the_whole_batch():
    whole, metrics = trained(Staged)
    cut, cut_metrics = trained(Staged, accumulate=4)
    for name, value in whole.items():
        assert np.linalg.norm(cut[name] - value) <= 1e-4 * np.linalg.norm(value) + 1e-7, name
    assert cut_metrics == pytest.approx(metrics, rel=1e-4)


class Generating(Tiny):
    """A generator with other layers between its latents and the pictures, and plain gradient descent."""

    def networks(self):
        generator = keras.Sequential([keras.Input((8,)), *self.inner(), layers.Reshape((8, 8, 1), name="to_image")])
        return {**super().networks(), "generator": generator}

    def optimizers(self):
        return {name: keras.optimizers.SGD(0.01) for name in ("generator", "discriminator")}

    def inner(self):
        return [layers.Dense(64, "tanh", dtype="float32")]


class Judging(Tiny):
    """A discriminator with other layers between the pictures and its logit."""

    def networks(self):
        parts = [keras.Input((8, 8, 1)), *self.inner(), layers.Flatten(), layers.Dense(1)]
        return {**super().networks(), "discriminator": keras.Sequential(parts)}

    def inner(self):
        """A leaky ReLU that is no layer."""
        return [layers.Conv2D(filters, 3, padding="same", activation="leaky_relu") for filters in (4, 8)]


def test_a_leaky_relu_that_is_no_layer_passes_the_graph_optimizer(capfd):
    tf.config.optimizer.set_experimental_options({"remapping": True})  # other tests of this process may switch it off
    run = tiny_run(Judging, accumulate=2)
    stage_step(run)(0, 0, data_of(run))
    assert not tf.config.optimizer.get_experimental_options()["remapping"]
    assert "remapper failed" not in capfd.readouterr().err
    tf.config.optimizer.set_experimental_options({"remapping": True})


class Regularised(Generating):
    """A generator with a loss of its own, whose call in the judge's update is used again in its own update."""

    def inner(self):
        return [layers.Dense(64, "tanh", activity_regularizer="l2")]


def test_a_call_that_another_update_has_made_counts_for_its_owner():
    runs = [tiny_run(Regularised), tiny_run(Regularised, accumulate=2)]  # without and with own forward passes
    shared, apart = (stage_step(run)(0, 0, data_of(run))[0] for run in runs)
    assert "judge/network_losses" not in shared and float(shared["fool/network_losses"]) > 0
    for name, value in shared.items():
        np.testing.assert_allclose(value, apart[name], rtol=1e-5, err_msg=name)
    for one, other in zip(*(run.state.networks["generator"].trainable_variables for run in runs), strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-6)


class Half(Judging):
    def inner(self):
        return [layers.Dense(8, dtype="bfloat16")]


class OfKeras2(layers.Layer):
    """A layer written for Keras 2: its weight is a tf.Variable."""

    def __init__(self):
        super().__init__(name="scale")
        self.gain = tf.Variable(tf.ones(1), name="weight")

    def call(self, x):
        return x * self.gain


class Forgotten(Judging):
    """A discriminator with such a layer in a network within it."""

    def inner(self):
        return [keras.Sequential([OfKeras2()])]


@pytest.mark.parametrize(
    ("recipe", "precision", "complaint"),
    [
        (Half, "float32", r"discriminator trains .*/kernel in bfloat16, .* give the layer dtype=\"mixed_bfloat16\""),
        (Generating, "mixed_float16", r"network generator ends in float16, with layer to_image; .* dtype=\"float32\""),
        (Forgotten, "float32", r"network discriminator, layer scale: gain is a tf.Variable, which .*add_weight"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_what_to_write(recipe, precision, complaint):
    with pytest.raises(UserError, match=complaint):
        tiny_run(recipe, precision=precision)


class SpectralNaN(Generating):
    """SpectralNormalization changes the weights of its layer in each call; the second loss is not finite."""

    def inner(self):
        return [layers.SpectralNormalization(layers.Dense(64, "tanh"))]

    def fool(self, nets, batch):
        loss, metrics = super().fool(nets, batch)
        return loss * tf.where(tf.equal(batch.random.step, 1), tf.constant(float("nan")), 1.0), metrics


def test_spectral_normalisation_of_keras_is_undone_in_an_update_that_is_not_finite():
    run = tiny_run(SpectralNaN)
    step = stage_step(run)
    assert all(step(0, 0, data_of(run))[1])
    before = values_of(run)
    _, (judged, fooled) = step(1, 1, data_of(run, 1))
    assert judged and not fooled
    assert not [name for name in changed(before, values_of(run)) if "/generator/" in name]
