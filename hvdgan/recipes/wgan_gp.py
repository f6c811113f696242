"""Improved training of Wasserstein GANs (Gulrajani et al. 2017, arXiv:1704.00028)."""

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from hvdgan.networks.dcgan import dcgan_discriminator, dcgan_generator
from hvdgan.recipe import Batch, Count, Decay, Positive, Random, Recipe, Stage, Update, losses


@dataclasses.dataclass(frozen=True, kw_only=True)
class WGANGPOptions:
    """Options of the recipe wgan_gp."""

    steps: Count = 20_000
    """steps of the only stage; each is one update of the critic"""
    nf: Count = 64
    """width of the networks: channels next to the image, doubled at each halving of its size"""
    latent_size: Count = 128
    """length of a latent vector"""
    n_critic: Count = 5
    """critic updates for each update of the generator"""
    gp_weight: Positive = 10.0
    """weight of the gradient penalty in the critic's loss"""
    learning_rate: Positive = 1e-4
    """Adam's step size for both networks"""
    beta_1: Decay = 0.0
    """Adam's decay of the gradients' mean"""
    beta_2: Decay = 0.9
    """Adam's decay of their squares' mean"""


class WGANGP(Recipe):
    """Wasserstein GAN with a penalty that keeps the critic's slope near 1 (algorithm 1), and DCGAN's networks.

    The critic has no BatchNorm, because the penalty is on the gradient of each score with respect to its own image
    (section 4).

    Command:
        horovodrun -np 2 python -m hvdgan.train --recipe wgan_gp --data digits --nf 32 --n-critic 3
            --learning-rate 5e-4 --steps 4000

    Expect:
        Many digits can be read from step 1000 on; the critic's loss, -19 at step 100, is then about -2. It took 275 s
        on two cores, in one process.
    """

    Options = WGANGPOptions
    ema = ("generator",)

    def networks(self) -> dict[str, keras.Model]:
        o, data = self.options, self.data
        shape: dict[str, Any] = {"image_size": data.image_size, "channels": data.channels, "nf": o.nf}
        return {
            "generator": dcgan_generator(**shape, latent_size=o.latent_size),
            "critic": dcgan_discriminator(**shape, norm="none"),
        }

    def optimizers(self) -> dict[str, keras.optimizers.Optimizer]:
        o = self.options
        return {
            name: keras.optimizers.Adam(o.learning_rate, beta_1=o.beta_1, beta_2=o.beta_2)
            for name in ("generator", "critic")
        }

    def stages(self) -> list[Stage]:
        judge = Update("critic", owns=["critic"], loss=self.judge)
        fool = Update("generator", owns=["generator"], loss=self.fool, every=self.options.n_critic)
        return [Stage("adversarial", self.options.steps, [judge, fool])]

    def draw(self, random: Random) -> dict[str, tf.Tensor]:
        return {"latents": random.normal("latents", (self.options.latent_size,))}

    def judge(self, nets: Any, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        real = batch.augment(batch.images, "real")
        fake = batch.augment(nets.generator(batch.latents), "fake")
        loss = losses.wasserstein_critic(nets.critic(real), nets.critic(fake))
        penalty = losses.gradient_penalty(nets.critic, real, fake, batch.random.uniform("mix", ()))
        return loss + batch.schedule("gp_weight") * penalty, {"wasserstein": -loss, "gradient_penalty": penalty}

    def fool(self, nets: Any, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        fake = batch.augment(nets.generator(batch.latents), "fake")
        return losses.wasserstein_generator(nets.critic(fake)), {}

    def sample(self, nets: Any, batch: Batch) -> tf.Tensor:
        return nets.generator(batch.latents)


RECIPE = WGANGP
