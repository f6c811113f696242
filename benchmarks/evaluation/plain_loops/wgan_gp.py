"""Wasserstein GAN with gradient penalty (Gulrajani et al. 2017, algorithm 1)."""

import tensorflow as tf

from hvdgan.recipes.wgan_gp import WGANGP
from plain_loops.loop import Loop, Numbers


class PlainWGANGP(Loop):
    """Updates the critic in each step, the generator in every `n_critic`-th."""

    recipe = WGANGP

    def due(self, step: int) -> tuple[bool, ...]:
        """Whether the generator is updated."""
        return ((step + 1) % self.options.n_critic == 0,)

    def draw(self, count: int) -> Numbers:
        """Draw latents, and the weights of the real images in the points of the penalty."""
        return {**super().draw(count), "mix": tf.random.uniform((count,))}

    def update(self, images: tf.Tensor, drawn: Numbers, fool: bool) -> list[tf.Tensor]:
        """Update the critic, then the generator against the new one; the images are generated once."""
        generator, critic = self.networks["generator"], self.networks["critic"]
        with tf.GradientTape() as g_tape:
            fakes = generator(drawn["latents"], training=True)
        with tf.GradientTape() as d_tape:
            distance = tf.reduce_mean(critic(images, training=True)) - tf.reduce_mean(critic(fakes, training=True))
            d_loss = self.options.gp_weight * self._penalty(images, fakes, drawn["mix"]) - distance
        self.apply("critic", d_tape, d_loss)
        if not fool:
            return [d_loss]
        with g_tape:
            g_loss = -tf.reduce_mean(critic(fakes, training=True))
        self.apply("generator", g_tape, g_loss)
        self.average()
        return [d_loss, g_loss]

    def _penalty(self, images: tf.Tensor, fakes: tf.Tensor, mix: tf.Tensor) -> tf.Tensor:
        """The mean of (|gradient| - 1)^2 at points between real and generated images."""
        weights = mix[:, None, None, None]
        points = weights * images + (1.0 - weights) * fakes
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(points)
            scores = self.networks["critic"](points, training=True)
        squares = tf.reduce_sum(tf.square(tape.gradient(scores, points)), axis=(1, 2, 3))
        return tf.reduce_mean(tf.square(tf.sqrt(squares + 1e-12) - 1.0))
