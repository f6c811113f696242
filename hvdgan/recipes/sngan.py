"""Spectral normalisation (Miyato et al. 2018, arXiv:1802.05957) and projection (Miyato, Koyama, arXiv:1802.05637)."""

import dataclasses
from typing import Any, Literal

import keras
import tensorflow as tf

from hvdgan.networks.sngan import sngan_discriminator, sngan_generator
from hvdgan.recipe import Batch, Count, Decay, Positive, Random, Recipe, Stage, Update, losses


@dataclasses.dataclass(frozen=True, kw_only=True)
class SNGANOptions:
    """Options of the recipe sngan."""

    steps: Count = 50_000
    """steps of the only stage; each is one update of the discriminator"""
    nf: Count = 64
    """width of the networks; at 32 pixels the generator has 4 nf channels, the discriminator 2 nf"""
    latent_size: Count = 128
    """length of a latent vector"""
    conditional: Literal["auto", "none"] = "auto"
    """auto: class-conditional networks if the data has labels; none: ignore the labels"""
    d_updates: Count = 5
    """discriminator updates for each update of the generator"""
    learning_rate: Positive = 2e-4
    """Adam's step size for both networks"""
    beta_1: Decay = 0.0
    """Adam's decay of the gradients' mean"""
    beta_2: Decay = 0.9
    """Adam's decay of their squares' mean"""


class SNGAN(Recipe):
    """SNGAN with residual networks and the hinge loss, class-conditional if the data has labels.

    Command:
        hvdgan launch -np 2 train --recipe sngan --data digits --nf 8 --d-updates 1
            --learning-rate 5e-4 --steps 2000

    Expect:
        The first digits can be read from step 450 on, all at step 2000; the discriminator's loss rises to about 2, its
        value for equal real and fake logits near 0. It took 464 s on two cores, in one process on a busy machine.
    """

    Options = SNGANOptions
    ema = ("generator",)

    def networks(self) -> dict[str, keras.Model]:
        o, data = self.options, self.data
        shape = {"image_size": data.image_size, "channels": data.channels, "nf": o.nf, "num_classes": self._classes()}
        return {
            "generator": sngan_generator(**shape, latent_size=o.latent_size),
            "discriminator": sngan_discriminator(**shape),
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
        drawn = {"latents": random.normal("latents", (self.options.latent_size,))}
        if count := self._classes():
            drawn["classes"] = random.integers("classes", (), count)
        return drawn

    def judge(self, nets: Any, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        real = batch.augment(batch.images, "real")
        fake = batch.augment(self._generate(nets, batch), "fake")
        # One call for both, so that both are judged by the same weights: a call updates the estimates of their norms.
        images = tf.concat([real, fake], axis=0)
        # Joined in int64, which GPUs copy themselves.
        both = [tf.cast(each, tf.int64) for each in (batch.labels, batch.classes)] if self._classes() else []
        classes = tf.concat(both, axis=0) if both else None
        real_logits, fake_logits = tf.split(self._judged(nets, images, classes), 2)
        return losses.hinge_discriminator(real_logits, fake_logits), {
            "real_logits": tf.reduce_mean(real_logits),
            "fake_logits": tf.reduce_mean(fake_logits),
            "real_sign": tf.reduce_mean(tf.sign(real_logits)),
        }

    def fool(self, nets: Any, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        fake = batch.augment(self._generate(nets, batch), "fake")
        return losses.hinge_generator(self._judged(nets, fake, batch.classes if self._classes() else None)), {}

    def sample(self, nets: Any, batch: Batch) -> tf.Tensor:
        return self._generate(nets, batch)

    def _classes(self) -> int:
        """The number of classes of the networks; 0: they are unconditional."""
        return self.data.num_classes if self.options.conditional == "auto" else 0

    def _generate(self, nets: Any, batch: Batch) -> tf.Tensor:
        return nets.generator([batch.latents, batch.classes] if self._classes() else batch.latents)

    def _judged(self, nets: Any, images: tf.Tensor, classes: tf.Tensor | None) -> tf.Tensor:
        return nets.discriminator(images if classes is None else [images, classes])


RECIPE = SNGAN
