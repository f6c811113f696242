"""SNGAN with the hinge loss (Miyato et al. 2018), without classes."""

import tensorflow as tf

from hvdgan.recipes.sngan import SNGAN
from plain_loops.loop import Loop, Numbers


class PlainSNGAN(Loop):
    """Updates the discriminator in each step, the generator in every `d_updates`-th."""

    recipe = SNGAN

    def due(self, step: int) -> tuple[bool, ...]:
        """Whether the generator is updated."""
        return ((step + 1) % self.options.d_updates == 0,)

    def update(self, images: tf.Tensor, drawn: Numbers, fool: bool) -> list[tf.Tensor]:
        """Update the discriminator, then the generator against the new one; the images are generated once."""
        generator, discriminator = self.networks["generator"], self.networks["discriminator"]
        with tf.GradientTape() as g_tape:
            fakes = generator(drawn["latents"], training=True)
        with tf.GradientTape() as d_tape:
            real_logits, fake_logits = tf.split(discriminator(tf.concat([images, fakes], axis=0), training=True), 2)
            d_loss = tf.reduce_mean(tf.nn.relu(1.0 - real_logits)) + tf.reduce_mean(tf.nn.relu(1.0 + fake_logits))
        self.apply("discriminator", d_tape, d_loss)
        if not fool:
            return [d_loss]
        with g_tape:
            # Outside of training mode the norms are estimated in the same way, and their vectors are not saved.
            g_loss = -tf.reduce_mean(discriminator(fakes, training=False))
        self.apply("generator", g_tape, g_loss)
        self.average()
        return [d_loss, g_loss]
