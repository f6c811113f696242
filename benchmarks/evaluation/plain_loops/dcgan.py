"""DCGAN with the non-saturating loss."""

import tensorflow as tf

from hvdgan.recipes.dcgan import DCGAN
from plain_loops.loop import Loop, Numbers


class PlainDCGAN(Loop):
    """Updates the discriminator in each step, the generator in every `d_updates`-th."""

    recipe = DCGAN

    def due(self, step: int) -> tuple[bool, ...]:
        """Whether the generator is updated."""
        return ((step + 1) % self.options.d_updates == 0,)

    def update(self, images: tf.Tensor, drawn: Numbers, fool: bool) -> list[tf.Tensor]:
        """Update the discriminator, then the generator against the new one; the images are generated once."""
        generator, discriminator = self.networks["generator"], self.networks["discriminator"]
        with tf.GradientTape() as g_tape:
            fakes = generator(drawn["latents"], training=True)
        with tf.GradientTape() as d_tape:
            real_logits, fake_logits = discriminator(images, training=True), discriminator(fakes, training=True)
            d_loss = tf.reduce_mean(tf.nn.softplus(-real_logits)) + tf.reduce_mean(tf.nn.softplus(fake_logits))
        self.apply("discriminator", d_tape, d_loss)
        if not fool:
            return [d_loss]
        with g_tape:
            g_loss = tf.reduce_mean(tf.nn.softplus(-discriminator(fakes, training=True)))
        self.apply("generator", g_tape, g_loss)
        self.average()
        return [d_loss, g_loss]
