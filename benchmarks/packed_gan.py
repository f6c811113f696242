"""The losses, the optimizers and the order of updates of benchmarks/modes.py, without networks.

`gan` is the non-saturating loss, alone or of packs (Lin et al. 2018, arXiv:1712.04086). The other methods have the same
networks without batch normalisation in the discriminator, and the optimizers of the protocol:

- `sngan`: hinge loss and spectral normalisation of each layer of the discriminator (Miyato et al. 2018).
- `r1r2`: the non-saturating loss with R1 and R2, each with the weight gamma / 2 (Mescheder et al. 2018).
- `relativistic`: the loss of pairs with R1 and R2, as in R3GAN (Huang et al. 2024).
- `wgan_gp`: algorithm 1 of Gulrajani et al. 2017, with its Adam in place of the protocol's: 1e-4, betas 0 and 0.9, and
  five updates of the discriminator for each of the generator. A step is one of the five.
"""

import dataclasses
from typing import ClassVar, Literal

import keras
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Count, Positive, Recipe, Stage, Update, losses

CRITIC_UPDATES = 5
PENALTY_OF_SLOPES = 10.0
JUDGE = {
    "gan": losses.non_saturating_discriminator,
    "r1r2": losses.non_saturating_discriminator,
    "relativistic": losses.relativistic,
    "sngan": losses.hinge_discriminator,
    "wgan_gp": losses.wasserstein_critic,
}
FOOL = {
    "gan": losses.non_saturating_generator,
    "r1r2": losses.non_saturating_generator,
    "sngan": losses.hinge_generator,
    "wgan_gp": losses.wasserstein_generator,
}


@dataclasses.dataclass(frozen=True)
class Adam:
    """Adam's step sizes for the generator and the discriminator, and its decays."""

    generator: float
    discriminator: float
    betas: tuple[float, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackedOptions:
    """Options of both recipes."""

    loss: Literal["gan", "wgan_gp", "sngan", "r1r2", "relativistic"] = "gan"
    """the loss, with what belongs to it"""
    pack: Count = 1
    """samples that the discriminator judges together; the global batch size is a multiple"""
    steps: Count = 400_000
    """steps; each is one update of the discriminator"""
    gamma: Positive = 1.0
    """twice the weight of R1 and of R2"""


class PackedGAN(Recipe):
    """A GAN whose discriminator judges packs of samples, joined along their channels."""

    Options = PackedOptions
    together: ClassVar[bool] = False
    """whether both networks are updated by gradients at the same weights"""

    @property
    def pack(self):
        return self.options.pack

    @property
    def adam(self):
        """The protocol's optimizers."""
        raise NotImplementedError

    @property
    def generator_updates(self):
        """Updates of the generator in a step."""
        return 1

    def optimizers(self):
        adam = Adam(1e-4, 1e-4, (0.0, 0.9)) if self.options.loss == "wgan_gp" else self.adam
        rates = {"generator": adam.generator, "discriminator": adam.discriminator}
        return {name: keras.optimizers.Adam(rate, *adam.betas) for name, rate in rates.items()}

    def stages(self):
        every, count = (CRITIC_UPDATES, 1) if self.options.loss == "wgan_gp" else (1, self.generator_updates)
        fools = [Update(name, ["generator"], self.fool, every=every) for name in ("fool", "fool_again")[:count]]
        judge = Update("judge", ["discriminator"], self.judge)
        return [Stage("adversarial", self.options.steps, [judge, *fools], together=self.together)]

    def judge(self, nets, batch):
        loss, logits = self.options.loss, []

        def critic(packs):
            logits.append(nets.discriminator(packs))
            return logits[-1]

        real, fake = self.packs(batch.images), self.packs(nets.generator(batch.latents))
        if loss in ("r1r2", "relativistic"):
            penalty = self.options.gamma / 2 * (losses.r1(critic, real) + losses.r2(critic, fake))
            return JUDGE[loss](*logits) + penalty, {"penalty": penalty}  # their logits, to save two passes
        if loss == "gan":  # apart, since each has its own statistics in batch normalisation
            return JUDGE[loss](critic(real), critic(fake)), {}
        # Together, since a call moves the estimates of spectral normalisation.
        error = JUDGE[loss](*tf.split(critic(tf.concat([real, fake], axis=0)), 2))
        if loss == "sngan":
            return error, {}
        mix = batch.random.uniform("mix", ())[:: self.pack]
        penalty = PENALTY_OF_SLOPES * losses.gradient_penalty(critic, real, fake, mix)
        return error + penalty, {"penalty": penalty}

    def fool(self, nets, batch):
        fake_logits = nets.discriminator(self.packs(nets.generator(batch.latents)))
        if self.options.loss == "relativistic":
            return losses.relativistic(fake_logits, nets.discriminator(self.packs(batch.images))), {}
        return FOOL[self.options.loss](fake_logits), {}

    def sample(self, nets, batch):
        return nets.generator(batch.latents)

    def packs(self, samples):
        """Samples (B, ..., C) as packs (B / pack, ..., pack C)."""
        packs = tf.reshape(samples, (-1, self.pack, *self.data.shape))
        return tf.concat(tf.unstack(packs, axis=1), axis=-1)

    def judging(self, layer):
        """A layer of the discriminator, with spectral normalisation if the loss asks for it."""
        return layers.SpectralNormalization(layer) if self.options.loss == "sngan" else layer
