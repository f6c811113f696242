"""Unsupervised representation learning with deep convolutional GANs (Radford et al. 2016, arXiv:1511.06434)."""

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from hvdgan.networks.dcgan import Norm, dcgan_discriminator, dcgan_generator
from hvdgan.recipe import Batch, Count, Decay, Positive, Random, Recipe, Stage, Update, losses


@dataclasses.dataclass(frozen=True, kw_only=True)
class DCGANOptions:
    """Options of the recipe dcgan."""

    steps: Count = 2000
    """steps of the only stage"""
    nf: Count = 64
    """width of the networks: channels next to the image, doubled at each halving of its size"""
    latent_size: Count = 100
    """length of a latent vector"""
    norm: Norm = "batch"
    """batch normalisation, or none"""
    d_updates: Count = 1
    """discriminator updates for each update of the generator"""
    learning_rate: Positive = 2e-4
    """Adam's step size for both networks"""
    beta_1: Decay = 0.5
    """Adam's decay of the gradients' mean"""
    beta_2: Decay = 0.999
    """Adam's decay of their squares' mean"""


class DCGAN(Recipe):
    """DCGAN with the non-saturating loss.

    Command:
        hvdgan launch -np 2 train --recipe dcgan --data digits --nf 32 --learning-rate 5e-4 --steps 1600

    Expect:
        Most digits can be read from step 500 on; then the discriminator's loss is 0.4 to 1, the generator's 2 to 3. It
        took 107 s on two cores. The paper's learning rate, the default, needs about twice the steps.
    """

    Options = DCGANOptions
    ema = ("generator",)

    def networks(self) -> dict[str, keras.Model]:
        o, data = self.options, self.data
        shape: dict[str, Any] = {"image_size": data.image_size, "channels": data.channels, "nf": o.nf, "norm": o.norm}
        return {
            "generator": dcgan_generator(**shape, latent_size=o.latent_size),
            "discriminator": dcgan_discriminator(**shape),
        }

    def optimizers(self) -> dict[str, keras.optimizers.Optimizer]:
        o = self.options
        return {
            name: keras.optimizers.Adam(o.learning_rate, beta_1=o.beta_1, beta_2=o.beta_2)
            for name in ("generator", "discriminator")
        }

    def stages(self) -> list[Stage]:
        judge = Update("discriminator", owns=["discriminator"], loss=self.judge)
        fool = Update("generator", owns=["generator"], loss=self.fool, every=self.options.d_updates)
        return [Stage("adversarial", self.options.steps, [judge, fool])]

    def draw(self, random: Random) -> dict[str, tf.Tensor]:
        return {"latents": random.normal("latents", (self.options.latent_size,))}

    def judge(self, nets: Any, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        real_logits = nets.discriminator(batch.augment(batch.images, "real"))
        fake_logits = nets.discriminator(batch.augment(nets.generator(batch.latents), "fake"))
        loss = losses.non_saturating_discriminator(real_logits, fake_logits)
        return loss, {
            "real_score": tf.reduce_mean(tf.sigmoid(real_logits)),
            "fake_score": tf.reduce_mean(tf.sigmoid(fake_logits)),
            "real_sign": tf.reduce_mean(tf.sign(real_logits)),
        }

    def fool(self, nets: Any, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        fakes = batch.augment(nets.generator(batch.latents), "fake")
        return losses.non_saturating_generator(nets.discriminator(fakes)), {}

    def sample(self, nets: Any, batch: Batch) -> tf.Tensor:
        return nets.generator(batch.latents)


RECIPE = DCGAN
