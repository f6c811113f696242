"""The GAN is dead; long live the GAN! A modern baseline GAN (Huang et al. 2024, arXiv:2501.05441)."""

import dataclasses
from typing import Any, Literal

import keras
import tensorflow as tf

from hvdgan.networks.r3gan import r3gan_discriminator, r3gan_generator
from hvdgan.recipe import Batch, Count, Decay, Fraction, Positive, Random, Recipe, Schedule, Stage, Update, losses


@dataclasses.dataclass(frozen=True, kw_only=True)
class R3GANOptions:
    """Options of the recipe r3gan."""

    burn_in_steps: Count = 10_000
    """steps in which rate, beta2, gamma, half-life and augmentation change; in the paper 20 million images"""
    steps: Count = 10_000
    """steps after the burn-in, with their last values"""
    nf: Count = 32
    """channels of the networks at full size, doubled at each halving up to 768; in the paper 768 at 32 pixels, 384 at
    64, 96 at 256"""
    blocks: Count = 2
    """residual blocks at each size"""
    group_width: Count = 16
    """channels of a group of the 3x3 convolutions, whose input has two times the channels of the networks"""
    latent_size: Count = 64
    """length of a latent vector"""
    conditional: Literal["auto", "none"] = "auto"
    """auto: class-conditional networks if the data has labels; none: ignore the labels"""
    learning_rate: Positive = 2e-4
    """Adam's step size for both networks, at first"""
    final_learning_rate: Positive = 5e-5
    """Adam's step size after the burn-in"""
    beta_2: Decay = 0.9
    """Adam's decay of the squares' mean, at first; that of the gradients' mean is 0"""
    final_beta_2: Decay = 0.99
    """the same after the burn-in"""
    gamma: Positive = 2.0
    """weight of the penalties R1 and R2, at first; in the paper 0.05 for CIFAR-10, 2 at 64 pixels, 150 at 256"""
    final_gamma: Positive = 0.2
    """weight of the penalties after the burn-in; in the paper a tenth of the first"""
    final_half_life: Positive = 500_000
    """half-life of the generator's average after the burn-in (images); it grows from 1 image"""
    augment: Fraction = 0.3
    """probability of each transform of --ada after the burn-in; it grows from 0; for pictures alone; 0: off"""


class R3GAN(Recipe):
    """R3GAN: pairs of real and generated images under a relativistic loss, with R1 and R2 in every step.

    Differences from the authors' code: the augmentations are those of --ada, without cutout, and colours change as
    often as places; the penalties are on the gradients at augmented images. Generated images have the classes of the
    real ones that they are compared with.

    Command:
        hvdgan train --recipe r3gan --data digits --nf 8 --blocks 1 --augment 0 --gamma 0.5 --final-gamma 0.05
            --learning-rate 1e-3 --final-learning-rate 2e-4 --final-half-life 5000 --global-batch-size 32
            --burn-in-steps 600 --steps 200

    Expect:
        The shapes of most digits can be seen at step 300, and most can be read at step 800, with grey around them;
        then the discriminator's loss is about 0.55, the generator's 1.4. A step needs 0.25 to 0.45 s of one core.
    """

    Options = R3GANOptions
    ema = ("generator",)

    def networks(self) -> dict[str, keras.Model]:
        o, data = self.options, self.data
        shape: dict[str, Any] = {"image_size": data.image_size, "channels": data.channels, "nf": o.nf}
        shape |= {"blocks": o.blocks, "group_width": o.group_width, "num_classes": self._classes()}
        return {
            "generator": r3gan_generator(**shape, latent_size=o.latent_size),
            "discriminator": r3gan_discriminator(**shape),
        }

    def optimizers(self) -> dict[str, keras.optimizers.Optimizer]:
        rate, beta_2 = self.options.learning_rate, self.options.beta_2
        return {name: keras.optimizers.Adam(rate, 0.0, beta_2, epsilon=1e-8) for name in ("generator", "discriminator")}

    def stages(self) -> list[Stage]:
        """The burn-in, half a cosine from the first values to the last ones, and the steps that keep these."""
        o = self.options

        def updates(learning_rate: float | Schedule, beta_2: float | Schedule) -> list[Update]:
            adam: dict[str, Any] = {"learning_rate": learning_rate, "betas": (0.0, beta_2)}
            judge = Update("judge", owns=["discriminator"], loss=self.judge, **adam)
            return [judge, Update("fool", owns=["generator"], loss=self.fool, **adam)]

        def cosine(first: float, last: float) -> Schedule:
            return Schedule(first, last, "cosine")

        schedules = {"gamma": cosine(o.gamma, o.final_gamma), "ema_half_life": cosine(1.0, o.final_half_life)}
        if o.augment and self.data.is_pictures:
            schedules["augment"] = cosine(0.0, o.augment)
        changing = updates(cosine(o.learning_rate, o.final_learning_rate), cosine(o.beta_2, o.final_beta_2))
        burn_in = Stage("burn_in", o.burn_in_steps, changing, schedules=schedules)
        return [burn_in, Stage("rest", o.steps, updates(o.final_learning_rate, o.final_beta_2))]

    def draw(self, random: Random) -> dict[str, tf.Tensor]:
        drawn = {"latents": random.normal("latents", (self.options.latent_size,))}
        if count := self._classes():
            drawn["classes"] = random.integers("classes", (), count)
        return drawn

    def judge(self, nets: Any, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The loss of the pairs, and both penalties (equations 2 and 3)."""
        logits = []

        def critic(images: tf.Tensor) -> tf.Tensor:
            logits.append(nets.discriminator(self._inputs(images, batch.labels)))
            return logits[-1]

        real, fake = self._pairs(nets, batch)
        r1, r2 = losses.r1(critic, real), losses.r2(critic, fake)
        real_logits, fake_logits = logits  # those of the penalties, to save two forward passes
        loss = losses.relativistic(real_logits, fake_logits)
        # The sign is that of the difference, because the loss does not depend on the mean of all logits.
        metrics = {"r1": r1, "r2": r2, "real_sign": tf.reduce_mean(tf.sign(real_logits - fake_logits))}
        return loss + 0.5 * batch.schedule("gamma") * (r1 + r2), {"relativistic": loss, **metrics}

    def fool(self, nets: Any, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        real, fake = (nets.discriminator(self._inputs(each, batch.labels)) for each in self._pairs(nets, batch))
        return losses.relativistic(fake, real), {}

    def sample(self, nets: Any, batch: Batch) -> tf.Tensor:
        return nets.generator(self._inputs(batch.latents, batch.classes if self._classes() else None))

    def _classes(self) -> int:
        """The number of classes of the networks; 0: they are unconditional."""
        return self.data.num_classes if self.options.conditional == "auto" else 0

    def _pairs(self, nets: Any, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Augmented real images, and generated ones of the same classes."""
        fake = nets.generator(self._inputs(batch.latents, batch.labels))
        return batch.augment(batch.images, "real"), batch.augment(fake, "fake")

    def _inputs(self, inputs: tf.Tensor, classes: tf.Tensor | None) -> Any:
        return [inputs, classes] if self._classes() else inputs


RECIPE = R3GAN
