"""StyleGAN2 (Karras et al. 2020) with the non-saturating loss and lazy regularisation."""

import keras
import tensorflow as tf

from hvdgan.networks.stylegan2 import noise_numbers, style_count
from hvdgan.recipes.stylegan2 import StyleGAN2
from plain_loops.loop import Loop, Numbers


class PlainStyleGAN2(Loop):
    """Updates both networks in each step, and again with a penalty of their own every few steps."""

    recipe = StyleGAN2

    def adam(self, name: str) -> keras.optimizers.Optimizer:
        """Adam, slowed down for the additional updates with a penalty (appendix B)."""
        o = self.options
        weight, every = {
            "generator": (o.path_length_weight, o.path_length_every),
            "discriminator": (o.r1_gamma, o.r1_every),
        }[name]
        c = every / (every + 1) if weight else 1.0
        return keras.optimizers.Adam(c * o.learning_rate, o.beta_1**c, o.beta_2**c, epsilon=1e-8)

    def due(self, step: int) -> tuple[bool, ...]:
        """Whether R1 and the path-length penalty are applied."""
        o = self.options
        r1 = o.r1_gamma > 0 and (step + 1) % o.r1_every == 0
        return r1, o.path_length_weight > 0 and (step + 1) % o.path_length_every == 0

    def draw(self, count: int) -> Numbers:
        """Draw two latents per image, the crossover between their styles, noise, and directions if they are used."""
        o, (size, _, channels) = self.options, self.networks["discriminator"].input_shape[1:]
        styles = style_count(size)
        mixed, place = tf.random.uniform((count,)), tf.random.uniform((count,))
        drawn = {
            "latents": tf.random.normal((count, 2, o.latent_size)),
            "crossover": tf.where(mixed < o.mixing, 1.0 + tf.floor(place * (styles - 1)), float(styles)),
            "noise": tf.random.normal((count, noise_numbers(size))),
        }
        if o.path_length_weight > 0:
            drawn["directions"] = tf.random.normal((count, size, size, channels))
        return drawn

    def update(self, images: tf.Tensor, drawn: Numbers, r1: bool, path_length: bool) -> list[tf.Tensor]:
        """Update the discriminator, then the generator against the new one; the images are generated once."""
        generator, discriminator = self.networks["generator"], self.networks["discriminator"]
        inputs = [drawn["latents"], drawn["crossover"], drawn["noise"]]
        with tf.GradientTape() as g_tape:
            fakes = generator(inputs, training=True)
        with tf.GradientTape() as d_tape:
            real_logits, fake_logits = discriminator(images, training=True), discriminator(fakes, training=True)
            d_loss = tf.reduce_mean(tf.nn.softplus(-real_logits)) + tf.reduce_mean(tf.nn.softplus(fake_logits))
        self.apply("discriminator", d_tape, d_loss)
        if r1:
            self._apply_r1(images)
        with g_tape:
            g_loss = tf.reduce_mean(tf.nn.softplus(-discriminator(fakes, training=True)))
        self.apply("generator", g_tape, g_loss)
        if path_length:
            self._apply_path_length(inputs, drawn["directions"])
        self.average()
        return [d_loss, g_loss]

    def sample(self, drawn: Numbers) -> tf.Tensor:
        """Draw pictures of one latent each."""
        inputs = [drawn["latents"][:, :1], drawn["crossover"], drawn["noise"]]
        return self.networks["generator"](inputs, training=False)

    def _apply_r1(self, images: tf.Tensor) -> None:
        """Update the discriminator with R1 (Mescheder et al. 2018, equation 9)."""
        o = self.options
        with tf.GradientTape() as d_tape:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(images)
                logits = self.networks["discriminator"](images, training=True)
            squares = tf.reduce_sum(tf.square(tape.gradient(logits, images)), axis=(1, 2, 3))
            loss = 0.5 * o.r1_gamma * o.r1_every * tf.reduce_mean(squares)
        self.apply("discriminator", d_tape, loss)

    def _apply_path_length(self, inputs: list[tf.Tensor], directions: tf.Tensor) -> None:
        """Update the generator with the path-length penalty, which its network computes (equation 4)."""
        o = self.options
        with tf.GradientTape() as g_tape:
            penalties = self.networks["generator"](inputs, training=True, directions=directions)
            loss = o.path_length_weight * o.path_length_every * tf.reduce_mean(penalties)
        self.apply("generator", g_tape, loss)
