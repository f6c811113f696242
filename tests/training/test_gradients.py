"""Gradients of micro-batches, of Keras' layers and in its RematScope, and TensorFlow's remapper."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import small
from building import changed, data_of, stage_step, tiny_run, values_of
from hvdgan.cli.errors import UserError
from hvdgan.recipe import losses
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
    Wide,
)
from tiny import Labelled, Staged, Tiny, TinyOptions


def trained(recipe=Tiny, steps=5, **settings):
    run = tiny_run(recipe, options=TinyOptions(steps=20), **settings)
    step = stage_step(run, len(run.schedule.stages) - 1)
    for number in range(steps):
        metrics, _ = step(number, number, data_of(run, number))
    return values_of(run), {name: float(value) for name, value in metrics.items()}


@pytest.mark.parametrize("parts", [2, 16])
def test_micro_batches_equal_the_whole_batch(parts):
    whole, metrics = trained(Staged)
    cut, cut_metrics = trained(Staged, accumulate=parts)
    for name, value in whole.items():
        assert np.linalg.norm(cut[name] - value) <= 1e-4 * np.linalg.norm(value) + 1e-7, name
    assert cut_metrics == pytest.approx(metrics, rel=1e-4)


def test_labels_and_flips_go_with_their_images():
    run = tiny_run(Labelled, accumulate=4, flip=True)
    labels = run.source.labels[:16]
    metrics, _ = stage_step(run)(0, 0, {**data_of(run), "labels": tf.constant(labels)})
    assert float(metrics["judge/label"]) == pytest.approx(labels.mean())


def test_parts_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="--accumulate 3: a rank's 16 images of each global batch of 16"):
        tiny_run(accumulate=3)


def scoped(name, mode):
    recipe, options = small.small(name)

    class Remat(recipe):
        def networks(self):
            with keras.RematScope(mode=mode):
                return super().networks()

    return tiny_run(Remat, options, image_size=32), tiny_run(recipe, options, image_size=32)


def test_activations_that_are_computed_again_change_no_bit():
    runs = scoped("dcgan", "activations")
    for run in runs:
        for step in range(2):
            run.steps[0](step, step, data_of(run, step))
    counts = [sum(len(each.graph.get_operations()) for each in run.steps[0].traced.values()) for run in runs]
    assert counts[0] > counts[1]
    for mine, its in zip(*(run.state.tensors().values() for run in runs), strict=True):
        np.testing.assert_array_equal(mine.numpy(), its.numpy())


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


def test_losses_of_layers_that_cannot_be_taken_are_refused():
    with pytest.raises(UserError, match=r"judge_critic: network critic has losses of its own .* outside of tf.cond"):
        tiny_run(InBranch)


def test_layers_in_float64_and_bfloat16_train_as_in_a_plain_loop():
    """Clipping and the averages included."""
    run = tiny_run(Wide, ema_decay=0.5)
    critic = run.state.networks["critic"]
    images = tf.cast(data_of(run)["images"], tf.float32) / 127.5 - 1
    fake = Random(run.config.seed, tf.constant(0, tf.int64), 0, 16).scoped("judge_critic").normal("fake", (8, 8, 1))
    plain, weights = keras.models.clone_model(critic), critic.get_weights()
    plain.set_weights(weights)
    with tf.GradientTape() as tape:
        loss = losses.hinge_discriminator(plain(images, training=True), plain(fake, training=True))
    gradients = tape.gradient(loss, [variable.value for variable in plain.trainable_variables])
    factor = 0.01 * min(1.0, 0.5 / np.sqrt(sum(np.sum(np.square(gradient)) for gradient in gradients)))
    keras.optimizers.SGD(1.0).apply([factor * gradient for gradient in gradients], plain.trainable_variables)
    stage_step(run)(0, 0, data_of(run))
    for variable, expected, start, average in zip(
        critic.variables, plain.variables, weights, run.state.ema["critic"], strict=True
    ):
        assert variable.dtype == expected.dtype == average.dtype
        np.testing.assert_allclose(variable.numpy(), expected.numpy(), rtol=1e-4, atol=1e-5, err_msg=variable.path)
        mean = 0.1 * start.astype(np.float64) + 0.9 * expected.numpy().astype(np.float64)  # in the first step
        np.testing.assert_allclose(average.numpy().astype(np.float64), mean, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize(
    ("recipe", "precision", "complaint"),
    [
        (
            Half,
            "float32",
            r"network critic trains .*dense.*/kernel in bfloat16, .* give the layer dtype=\"mixed_bfloat16\"",
        ),
        (Reshaped, "mixed_float16", r"network generator ends in float16, with layer to_image; .* dtype=\"float32\""),
        (HalfSamples, "mixed_bfloat16", r"sample\(\) returns bfloat16 .*; give its last layer dtype=\"float32\""),
    ],
)
def test_weights_and_results_in_half_precision_are_refused_with_what_to_write(recipe, precision, complaint):
    with pytest.raises(UserError, match=complaint):
        tiny_run(recipe, precision=precision)


def test_a_bare_variable_in_a_layer_is_refused_by_name():
    with pytest.raises(UserError, match=r"network critic, layer scale: gain is a tf.Variable, which .*add_weight"):
        tiny_run(Forgotten)


def test_spectral_normalisation_of_keras_is_undone_in_an_update_that_is_not_finite():
    run = tiny_run(SpectralNaN)
    step = stage_step(run)
    assert all(step(0, 0, data_of(run))[1])
    before = values_of(run)
    _, (judged, fooled) = step(1, 1, data_of(run, 1))
    assert judged and not fooled
    assert not [name for name in changed(before, values_of(run)) if "/generator/" in name]
