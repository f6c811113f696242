"""Analyzing and improving the image quality of StyleGAN (Karras et al. 2020, arXiv:1912.04958)."""

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from hvdgan.networks.stylegan2 import noise_numbers, style_count, stylegan2_discriminator, stylegan2_generator
from hvdgan.recipe import Batch, Count, Decay, Fraction, NonNegative, Positive, Random, Recipe, Stage, Update, losses


@dataclasses.dataclass(frozen=True, kw_only=True)
class StyleGAN2Options:
    """Options of the recipe stylegan2."""

    steps: Count = 20_000
    """steps of the only stage"""
    nf: Count = 32
    """channels of the networks at full size, doubled at each halving up to 512; in the paper 128 at 256 pixels"""
    latent_size: Count = 512
    """length of a latent vector and of a style"""
    mapping_layers: Count = 8
    """layers of the network that maps latents to styles"""
    mixing: Fraction = 0.9
    """fraction of images with style mixing: one latent for the coarse layers, another for the fine layers"""
    mbstd_group: Count = 4
    """samples in a group of the minibatch standard deviation; should divide each rank's batch"""
    r1_gamma: NonNegative = 1.0
    """weight of the R1 penalty on the discriminator's gradient, larger for larger images: 10 at 1024 pixels; 0: off"""
    r1_every: Count = 16
    """steps between two updates with the R1 penalty, which is also weighted by this number"""
    path_length_weight: NonNegative = 0.0
    """weight of the path-length penalty on the generator, in the paper 2; 0: off"""
    path_length_every: Count = 8
    """steps between two updates with the path-length penalty, which is also weighted by this number"""
    learning_rate: Positive = 2.5e-3
    """Adam's step size for both networks, before the correction for lazy regularisation"""
    beta_1: Decay = 0.0
    """Adam's decay of the gradients' mean"""
    beta_2: Decay = 0.99
    """Adam's decay of their squares' mean"""


class StyleGAN2(Recipe):
    """StyleGAN2 with the non-saturating loss; each penalty is an update of its own, every few steps.

    Differences from the paper: the path-length penalty is off by default, and uses the whole batch if it is on; all
    styles are truncated by the same factor. Each rank has its own running mean of styles; checkpoints and samples use
    the mean over ranks.

    Command:
        hvdgan launch -np 2 train --recipe stylegan2 --data digits --nf 8 --latent-size 64
            --global-batch-size 32 --steps 3000

    Expect:
        Blurred and varied digits from step 500 on, about half of which can be read at step 1500; both losses stay near
        1.1. At step 3000 a classifier finds all classes, with a mean confidence of 0.94. It took 251 s on two cores, in
        one process.
    """

    Options = StyleGAN2Options
    ema = ("generator",)
    truncates = True

    def networks(self) -> dict[str, keras.Model]:
        o, data = self.options, self.data
        shape: dict[str, Any] = {"image_size": data.image_size, "channels": data.channels, "nf": o.nf}
        return {
            "generator": stylegan2_generator(**shape, latent_size=o.latent_size, mapping_layers=o.mapping_layers),
            "discriminator": stylegan2_discriminator(**shape, mbstd_group=o.mbstd_group),
        }

    def optimizers(self) -> dict[str, keras.optimizers.Optimizer]:
        o = self.options
        return {
            "generator": self._adam(o.path_length_every if o.path_length_weight else None),
            "discriminator": self._adam(o.r1_every if o.r1_gamma else None),
        }

    def _adam(self, every: int | None) -> keras.optimizers.Optimizer:
        """Adam, slowed by every / (every + 1) for the additional update of lazy regularisation (appendix B)."""
        o = self.options
        c = 1.0 if every is None else every / (every + 1)
        return keras.optimizers.Adam(c * o.learning_rate, o.beta_1**c, o.beta_2**c, epsilon=1e-8)

    def stages(self) -> list[Stage]:
        o = self.options
        updates = [
            Update("judge", owns=["discriminator"], loss=self.judge),
            Update("r1", owns=["discriminator"], loss=self.r1, every=o.r1_every),
            Update("fool", owns=["generator"], loss=self.fool),
            Update("path_length", owns=["generator"], loss=self.path_length, every=o.path_length_every),
        ]
        off = {name for name, weight in (("r1", o.r1_gamma), ("path_length", o.path_length_weight)) if not weight}
        return [Stage("adversarial", o.steps, [update for update in updates if update.name not in off])]

    def draw(self, random: Random) -> dict[str, tf.Tensor]:
        """Draw two `latents` (B, 2, latent_size), the `crossover` (B,) between them, and `noise` (B, numbers)."""
        mixed, place = tf.unstack(random.uniform("crossover", (2,)), axis=1)
        styles = style_count(self.data.image_size)
        crossover = tf.where(mixed < self.options.mixing, 1.0 + tf.floor(place * (styles - 1)), float(styles))
        return {
            "latents": random.normal("latents", (2, self.options.latent_size)),
            "crossover": crossover,
            "noise": random.normal("noise", (noise_numbers(self.data.image_size),)),
        }

    def judge(self, nets: Any, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        real_logits = nets.discriminator(batch.augment(batch.images, "real"))
        fake_logits = self._fake_logits(nets, batch)
        return losses.non_saturating_discriminator(real_logits, fake_logits), {
            "real_score": tf.reduce_mean(tf.sigmoid(real_logits)),
            "fake_score": tf.reduce_mean(tf.sigmoid(fake_logits)),
            "real_sign": tf.reduce_mean(tf.sign(real_logits)),
        }

    def r1(self, nets: Any, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The squared gradient at the real images, after augmentation (Mescheder et al. 2018, equation 9)."""
        penalty = losses.r1(nets.discriminator, batch.augment(batch.images, "real"))
        return 0.5 * self.options.r1_gamma * self.options.r1_every * penalty, {"penalty": penalty}

    def fool(self, nets: Any, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        return losses.non_saturating_generator(self._fake_logits(nets, batch)), {}

    def path_length(self, nets: Any, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The path-length penalty (equation 4)."""
        size, channels = self.data.image_size, self.data.channels
        directions = batch.random.normal("directions", (size, size, channels))
        penalty = tf.reduce_mean(nets.generator([batch.latents, batch.crossover, batch.noise], directions=directions))
        return self.options.path_length_weight * self.options.path_length_every * penalty, {"penalty": penalty}

    def sample(self, nets: Any, batch: Batch) -> tf.Tensor:
        # One latent for each image, so that the crossover changes nothing.
        return nets.generator([batch.latents[:, :1], batch.crossover, batch.noise], truncation=batch.truncation)

    def _fake_logits(self, nets: Any, batch: Batch) -> tf.Tensor:
        fakes = nets.generator([batch.latents, batch.crossover, batch.noise])
        return nets.discriminator(batch.augment(fakes, "fake"))


RECIPE = StyleGAN2
