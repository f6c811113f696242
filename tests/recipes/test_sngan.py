"""The recipe sngan."""

import keras
import numpy as np
import tensorflow as tf

from building import batch_of, data_of, stage_step, tiny_run
from hvdgan.networks.sngan import ConditionalBatchNormalization, sngan_discriminator
from hvdgan.recipe import Nets
from hvdgan.recipes.sngan import SNGAN, SNGANOptions


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
    run = tiny_run(SNGAN, SNGANOptions(nf=2, latent_size=8, steps=10, d_updates=2), image_size=32)
    batch, labels = batch_of(run, "discriminator"), tf.constant(run.source.labels[:16])
    nets = Nets(run.state.networks, training=True)
    fake = nets.generator([batch.latents, batch.classes])
    real_logits = nets.discriminator([batch.images, labels]).numpy()
    fake_logits = nets.discriminator([fake, batch.classes]).numpy()
    by_hand = np.maximum(0, 1 - real_logits).mean() + np.maximum(0, 1 + fake_logits).mean()
    metrics, _ = stage_step(run)(0, 0, {**data_of(run), "labels": labels})
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
