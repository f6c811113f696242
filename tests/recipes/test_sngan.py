"""The recipe sngan."""

import keras
import numpy as np
import tensorflow as tf

from building import data_of, stage_step, tiny_run
from hvdgan.networks.sngan import ConditionalBatchNormalization, sngan_discriminator
from hvdgan.recipe import Nets, Random
from hvdgan.recipes.sngan import SNGAN, SNGANOptions


def sngan_run(conditional="auto", d_updates=2, **settings):
    options = SNGANOptions(nf=2, latent_size=8, steps=10, conditional=conditional, d_updates=d_updates)
    return tiny_run(SNGAN, options, image_size=32, **settings)


def data_with_labels(run, step=0):
    labels = run.source.labels[16 * step : 16 * step + 16]
    return {**data_of(run, step), "labels": tf.constant(labels)}


def test_the_logit_of_a_class_is_psi_and_the_projection():
    discriminator = sngan_discriminator(image_size=32, channels=1, nf=2, num_classes=3)
    images = tf.random.stateless_uniform((3, 32, 32, 1), (0, 0), -1, 1)
    logits = [discriminator([images, tf.fill(3, number)]).numpy() for number in range(3)]
    last = discriminator.get_layer("features_relu").output
    features = keras.Model(discriminator.inputs[0], last)(images).numpy().sum(axis=(1, 2))
    psi, vectors = (
        discriminator.get_layer(name).normalised_kernel(training=False).numpy()
        for name in ("to_logit", "class_vectors")
    )
    for number in range(3):
        by_hand = (features @ psi)[:, 0] + features @ vectors[number]
        np.testing.assert_allclose(logits[number], by_hand, rtol=1e-4, atol=1e-5)


def test_the_discriminators_loss_is_the_hinge_of_real_and_drawn_classes():
    run = sngan_run()
    random = Random(run.config.seed, tf.constant(0, tf.int64), 0, 16)
    drawn = run.recipe.draw(random.scoped("draw"))
    images = tf.cast(data_of(run)["images"], tf.float32) / 127.5 - 1
    nets = Nets(run.state.networks, training=True)
    fake = nets.generator([drawn["latents"], drawn["classes"]])
    real_logits = nets.discriminator([images, tf.constant(run.source.labels[:16])]).numpy()
    fake_logits = nets.discriminator([fake, drawn["classes"]]).numpy()
    by_hand = np.maximum(0, 1 - real_logits).mean() + np.maximum(0, 1 + fake_logits).mean()
    metrics, _ = stage_step(run)(0, 0, data_with_labels(run))
    np.testing.assert_allclose(metrics["discriminator/loss"], by_hand, rtol=1e-4)
    np.testing.assert_allclose(metrics["discriminator/real_logits"], real_logits.mean(), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(metrics["discriminator/fake_logits"], fake_logits.mean(), rtol=1e-3, atol=1e-5)


def test_conditional_batch_norm_scales_and_shifts_by_class():
    layer = ConditionalBatchNormalization(3)
    images = np.random.default_rng(0).normal(2, 3, size=(4, 5, 5, 2)).astype(np.float32)
    classes = np.array([2, 0, 1, 2], np.int32)
    layer.build([images.shape, classes.shape])
    layer.gamma.assign([[1, 2], [3, 4], [5, 6]])
    layer.beta.assign([[0, 1], [2, 3], [4, 5]])
    mean, variance = images.mean(axis=(0, 1, 2)), images.var(axis=(0, 1, 2))
    normal = (images - mean) / np.sqrt(variance + 1e-5)
    expected = normal * layer.gamma.numpy()[classes][:, None, None] + layer.beta.numpy()[classes][:, None, None]
    np.testing.assert_allclose(
        layer([tf.constant(images), tf.constant(classes)], training=True), expected, rtol=1e-3, atol=1e-4
    )
    np.testing.assert_allclose(layer.norm.moving_mean, 0.1 * mean, rtol=1e-4)
