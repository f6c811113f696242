"""The recipe wgan_gp."""

import numpy as np
import tensorflow as tf

from building import batch_of, data_of, stage_step, tiny_run, values_of
from hvdgan.recipes.wgan_gp import WGANGP, WGANGPOptions

SMALL = WGANGPOptions(nf=2, latent_size=8, steps=10)


def test_the_critics_loss_and_gradient_are_those_of_equation_3():
    """By hand, image by image; Adam's mean of the gradients with beta_1 = 0 is the gradient itself."""
    run = tiny_run(WGANGP, SMALL, image_size=32)
    batch, critic = batch_of(run, "critic"), run.state.networks["critic"]
    fake = run.state.networks["generator"](batch.latents, training=True)
    run = tiny_run(WGANGP, SMALL, image_size=32)  # that call has moved the statistics
    critic = run.state.networks["critic"]
    mix = batch.random.uniform("mix", ()).numpy()
    with tf.GradientTape() as tape:
        penalties = []
        for number in range(16):
            point = tf.constant(mix[number] * batch.images[number] + (1 - mix[number]) * fake[number])[None]
            with tf.GradientTape() as inner:
                inner.watch(point)
                score = critic(point)[0]
            penalties.append((tf.norm(inner.gradient(score, point)) - 1) ** 2)
        distance = tf.reduce_mean(critic(batch.images)) - tf.reduce_mean(critic(fake))
        loss = -distance + 10 * tf.add_n(penalties) / 16
    gradients = tape.gradient(loss, [variable.value for variable in critic.trainable_variables])
    metrics, _ = stage_step(run)(0, 0, data_of(run))
    np.testing.assert_allclose(metrics["critic/loss"], loss, rtol=1e-4)
    np.testing.assert_allclose(metrics["critic/wasserstein"], distance, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(metrics["critic/gradient_penalty"], tf.add_n(penalties) / 16, rtol=1e-4)
    after = values_of(run)
    for variable, gradient in zip(critic.trainable_variables, gradients, strict=True):
        momentum = after[f"optimizers/critic/{variable.path}/momentum"]
        np.testing.assert_allclose(momentum, gradient, rtol=2e-3, atol=1e-5)
