"""hvdgan's networks of StyleGAN2 in a plain loop of Keras: no kernels of hvdgan, and Keras' own Adam.

A forward pass of the generator for each of the two updates; the R1 penalty is an update of its own.
"""

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf
from work import CHANNELS, StyleGAN2, Work

from hvdgan.networks.stylegan2 import noise_numbers, style_count, stylegan2_discriminator, stylegan2_generator


class Trainer:
    """Both networks with their optimizers and the average of the generator, built, and the updates that train them."""

    def __init__(self, work: Work) -> None:
        keras.mixed_precision.set_global_policy(work.precision)
        self.work = work
        shape = {"image_size": work.image_size, "channels": CHANNELS, "nf": work.nf}
        latent = {"latent_size": StyleGAN2.LATENT_SIZE, "mapping_layers": StyleGAN2.MAPPING_LAYERS}
        self.generator = stylegan2_generator(**shape, **latent)
        self.discriminator = stylegan2_discriminator(**shape, mbstd_group=StyleGAN2.GROUP)
        self.networks = self.generator, self.discriminator
        self.optimizers = [_adam(1.0), _adam(StyleGAN2.LAZY)]
        for network, optimizer in zip(self.networks, self.optimizers, strict=True):
            optimizer.build(network.trainable_variables)
        self.averages = [tf.Variable(variable.value) for variable in self.generator.variables]
        self.updates: list[tuple[int, Callable[[tf.Tensor], Sequence[tf.Tensor]]]]
        self.updates = [(1, self.step), (StyleGAN2.R1_EVERY, self.r1)]

    def step(self, pixels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """One update of the discriminator, then one of the generator; pixels (B, H, W, C) uint8."""
        drawn = self._draw()
        fakes = self.generator(drawn, training=True)
        with tf.GradientTape() as tape:
            real_logits = self.discriminator(_images(pixels), training=True)
            fake_logits = self.discriminator(fakes, training=True)
            d_loss = tf.reduce_mean(tf.nn.softplus(-real_logits)) + tf.reduce_mean(tf.nn.softplus(fake_logits))
        self._apply(1, tape, d_loss)
        with tf.GradientTape() as tape:
            fakes = self.generator(drawn, training=True)
            g_loss = tf.reduce_mean(tf.nn.softplus(-self.discriminator(fakes, training=True)))
        self._apply(0, tape, g_loss)
        for average, variable in zip(self.averages, self.generator.variables, strict=True):
            average.assign(StyleGAN2.DECAY * average + (1.0 - StyleGAN2.DECAY) * variable.value)
        return d_loss, g_loss

    def r1(self, pixels: tf.Tensor) -> tuple[tf.Tensor]:
        """One update of the discriminator with the R1 penalty alone."""
        images = _images(pixels)
        with tf.GradientTape() as tape:
            with tf.GradientTape(watch_accessed_variables=False) as inner:
                inner.watch(images)
                logits = self.discriminator(images, training=True)
            squares = tf.reduce_sum(tf.square(inner.gradient(logits, images)), axis=(1, 2, 3))
            # Adding 0 * logits gives the last bias, which does not affect the penalty, a gradient of 0.
            penalty = tf.reduce_mean(squares) + 0.0 * tf.reduce_sum(logits)
            loss = 0.5 * StyleGAN2.R1_GAMMA * StyleGAN2.R1_EVERY * penalty
        self._apply(1, tape, loss)
        return (loss,)

    def _apply(self, place: int, tape: tf.GradientTape, loss: tf.Tensor) -> None:
        variables = self.networks[place].trainable_variables
        self.optimizers[place].apply(tape.gradient(loss, [variable.value for variable in variables]), variables)

    def _draw(self) -> list[tf.Tensor]:
        batch, size = self.work.batch_size, self.work.image_size
        styles = style_count(size)
        mixed, place = tf.unstack(tf.random.uniform((batch, 2)), axis=1)
        crossover = tf.where(mixed < StyleGAN2.MIXING, 1.0 + tf.floor(place * (styles - 1)), float(styles))
        latents = tf.random.normal((batch, 2, StyleGAN2.LATENT_SIZE))
        return [latents, crossover, tf.random.normal((batch, noise_numbers(size)))]


def _adam(lazy: float) -> keras.optimizers.Adam:
    rate, beta_2 = lazy * StyleGAN2.LEARNING_RATE, StyleGAN2.BETA_2**lazy
    return keras.optimizers.Adam(rate, 0.0, beta_2, epsilon=StyleGAN2.EPSILON)


def _images(pixels: tf.Tensor) -> tf.Tensor:
    return tf.cast(pixels, tf.float32) / 127.5 - 1.0
