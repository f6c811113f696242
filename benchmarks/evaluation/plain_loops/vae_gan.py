"""VAE/GAN (Larsen et al. 2016), with three updates one after another."""

import keras
import tensorflow as tf

from hvdgan.recipes.vae_gan import VAEGAN
from plain_loops.loop import Loop, Numbers


class PlainVAEGAN(Loop):
    """Updates encoder, decoder and discriminator; the last two wait while one is far ahead of the other."""

    recipe = VAEGAN
    averaged = ("encoder", "decoder")

    def adam(self, name: str) -> keras.optimizers.Optimizer:
        """The optimizer of a network."""
        return keras.optimizers.Adam(self.options.learning_rate, self.options.beta_1)

    def draw(self, count: int) -> Numbers:
        """Draw latents from the prior, and noise for the latents of images."""
        return {**super().draw(count), "noise": tf.random.normal((count, self.options.latent_size))}

    def update(self, images: tf.Tensor, drawn: Numbers) -> list[tf.Tensor]:
        """Update the three networks; the real images are judged once, since the discriminator is updated last."""
        o, encoder, decoder, discriminator = self.options, *self.networks.values()
        with tf.GradientTape() as d_tape:
            real_logits, real = discriminator(images, training=True)
        with tf.GradientTape() as e_tape:
            mean, log_variance = encoder(images, training=True)
            _, rebuilt = discriminator(decoder(_latents(mean, log_variance, drawn), training=True), training=True)
            divergence = 0.5 * (tf.square(mean) + tf.exp(log_variance) - 1.0 - log_variance)
            kl = tf.reduce_mean(tf.reduce_sum(divergence, axis=1))
            e_loss = o.kl_weight * kl + _distance(real, rebuilt)
        self.apply("encoder", e_tape, e_loss)
        latents = _latents(*encoder(images, training=True), drawn)
        with tf.GradientTape() as g_tape:
            rebuilt_logits, rebuilt = discriminator(decoder(latents, training=True), training=True)
            drawn_logits, _ = discriminator(decoder(drawn["latents"], training=True), training=True)
            fool = tf.reduce_mean(tf.nn.softplus(-rebuilt_logits)) + tf.reduce_mean(tf.nn.softplus(-drawn_logits))
            g_loss = o.gamma * _distance(real, rebuilt) + fool
        ahead, behind = self._balance(*_costs(real_logits, rebuilt_logits, drawn_logits))
        self._apply_if(~behind | ahead, "decoder", g_tape, g_loss)
        rebuilt, others = decoder(latents, training=True), decoder(drawn["latents"], training=True)
        with d_tape:
            rebuilt_logits, _ = discriminator(rebuilt, training=True)
            drawn_logits, _ = discriminator(others, training=True)
            real_cost, fake_cost = _costs(real_logits, rebuilt_logits, drawn_logits)
            d_loss = real_cost + 2.0 * fake_cost
        ahead, behind = self._balance(real_cost, fake_cost)
        self._apply_if(~ahead | behind, "discriminator", d_tape, d_loss)
        self.average()
        return [e_loss, g_loss, d_loss]

    def sample(self, drawn: Numbers) -> tf.Tensor:
        """Draw pictures from the prior."""
        return self.networks["decoder"](drawn["latents"], training=False)

    def _apply_if(self, wanted: tf.Tensor, name: str, tape: tf.GradientTape, loss: tf.Tensor) -> None:
        """Let the optimizer of a network make one step, or none."""
        weights = self.networks[name].trainable_variables
        gradients = tape.gradient(loss, weights)
        if wanted:
            self.optimizers[name].apply(gradients, weights)

    def _balance(self, *costs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Whether a cost of the discriminator is far below the equilibrium, and whether one is far above it."""
        o, both = self.options, tf.stack(costs)
        return tf.reduce_any(both < o.equilibrium - o.margin), tf.reduce_any(both > o.equilibrium + o.margin)


def _latents(mean: tf.Tensor, log_variance: tf.Tensor, drawn: Numbers) -> tf.Tensor:
    return mean + tf.exp(0.5 * log_variance) * drawn["noise"]


def _distance(features: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(0.5 * tf.reduce_sum(tf.square(features - others), axis=1))


def _costs(real_logits: tf.Tensor, rebuilt_logits: tf.Tensor, drawn_logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The discriminator's cross-entropies of real images, and of rebuilt and drawn ones on average."""
    rebuilt, drawn = tf.reduce_mean(tf.nn.softplus(rebuilt_logits)), tf.reduce_mean(tf.nn.softplus(drawn_logits))
    return tf.reduce_mean(tf.nn.softplus(-real_logits)), 0.5 * (rebuilt + drawn)
