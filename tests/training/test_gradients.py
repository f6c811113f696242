"""Gradients of micro-batches and of Keras' layers, and TensorFlow's remapper."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from building import changed, data_of, stage_step, tiny_run, values_of
from hvdgan.cli.errors import UserError
from hvdgan.recipe.draws import Random
from keras_parts import (
    Forgotten,
    Half,
    HalfSamples,
    InBranch,
    Regularised,
    Reshaped,
    Shared,
    SpectralNaN,
)
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


@pytest.fixture(autouse=True)
def _as_before():
    tf.config.optimizer.set_experimental_options({"remapping": True})  # other tests of this process may switch it off
    yield
    tf.config.optimizer.set_experimental_options({"remapping": True})


def _remaps():
    return tf.config.optimizer.get_experimental_options().get("remapping", True)


class Convolutional(Tiny):
    """A discriminator of convolutions whose activation is given by its name."""

    activation = "leaky_relu"

    def networks(self):
        pixels = (self.data.image_size, self.data.image_size, self.data.channels)
        convolutions = [layers.Conv2D(filters, 3, padding="same", activation=self.activation) for filters in (4, 8)]
        discriminator = keras.Sequential([keras.Input(pixels), *convolutions, layers.Flatten(), layers.Dense(1)])
        return {**super().networks(), "discriminator": discriminator}


def test_a_leaky_relu_that_is_no_layer_passes_the_graph_optimizer(capfd):
    run = tiny_run(Convolutional, accumulate=2)
    stage_step(run)(0, 0, data_of(run))
    assert not _remaps()
    assert "remapper failed" not in capfd.readouterr().err


def test_the_losses_of_layers_count_once_per_update_as_in_a_plain_loop():
    """Those of weights once, those of outputs once for each call; the step is that of Keras' optimizer on their sum."""
    run = tiny_run(Regularised)
    critic = run.state.networks["critic"]
    images = tf.reshape(tf.cast(data_of(run)["images"], tf.float32) / 127.5 - 1, (-1, 64))
    random = Random(run.config.seed, tf.constant(0, tf.int64), 0, 16)
    fake = random.scoped("judge_critic").normal("fake", (64,))
    before = [variable.numpy() for variable in critic.trainable_variables]
    with tf.GradientTape() as tape:
        real_scores = critic(images, training=True)
        *of_real, kernel, bias = critic.losses
        fake_scores = critic(fake, training=True)
        *of_fake, _, _ = critic.losses
        own = tf.add_n([*of_real, *of_fake, kernel, bias])
        loss = tf.reduce_mean(tf.nn.relu(1 - real_scores)) + tf.reduce_mean(tf.nn.relu(1 + fake_scores)) + own
    gradients = tape.gradient(loss, [variable.value for variable in critic.trainable_variables])
    metrics, _ = stage_step(run)(0, 0, data_of(run))
    np.testing.assert_allclose(metrics["judge_critic/loss"], loss, rtol=1e-5)
    np.testing.assert_allclose(metrics["judge_critic/network_losses"], own, rtol=1e-5)
    for variable, start, gradient in zip(critic.trainable_variables, before, gradients, strict=True):
        np.testing.assert_allclose(variable.numpy(), start - 0.01 * gradient, rtol=1e-4, atol=1e-6)


def test_a_call_that_another_update_has_made_counts_for_its_owner():
    runs = [tiny_run(Shared), tiny_run(Shared, accumulate=2)]  # without and with each update's own forward passes
    shared, apart = (stage_step(run)(0, 0, data_of(run))[0] for run in runs)
    assert "judge/network_losses" not in shared and float(shared["fool/network_losses"]) > 0
    for name, value in shared.items():
        np.testing.assert_allclose(value, apart[name], rtol=1e-5, err_msg=name)
    for one, other in zip(*(run.state.networks["generator"].trainable_variables for run in runs), strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("recipe", "precision", "complaint"),
    [
        (Half, "float32", r"critic trains .*dense.*/kernel in bfloat16, .* give the layer dtype=\"mixed_bfloat16\""),
        (Reshaped, "mixed_float16", r"network generator ends in float16, with layer to_image; .* dtype=\"float32\""),
        (HalfSamples, "mixed_bfloat16", r"sample\(\) returns bfloat16 .*; give its last layer dtype=\"float32\""),
        (Forgotten, "float32", r"network critic, layer scale: gain is a tf.Variable, which .*add_weight"),
        (InBranch, "float32", r"judge_critic: network critic has losses of its own .* outside of tf.cond"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_what_to_write(recipe, precision, complaint):
    with pytest.raises(UserError, match=complaint):
        tiny_run(recipe, precision=precision)


def test_spectral_normalisation_of_keras_is_undone_in_an_update_that_is_not_finite():
    run = tiny_run(SpectralNaN)
    step = stage_step(run)
    assert all(step(0, 0, data_of(run))[1])
    before = values_of(run)
    _, (judged, fooled) = step(1, 1, data_of(run, 1))
    assert judged and not fooled
    assert not [name for name in changed(before, values_of(run)) if "/generator/" in name]
