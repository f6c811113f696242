"""Progressive growing of GANs (Karras et al. 2018, arXiv:1710.10196)."""

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from hvdgan.networks.progressive import ProgressiveLayers, sizes_of
from hvdgan.recipe import Batch, Count, DataSpec, Decay, NonNegative, Positive, Random, Recipe, Stage, Update, losses
from hvdgan.recipe.schedule import Schedule


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgressiveOptions:
    """Options of the recipe progressive."""

    fade_steps: Count = 10_000
    """steps in which a size fades in"""
    size_steps: Count = 10_000
    """steps of each size after it has faded in, except the last size"""
    steps: Count = 20_000
    """steps of the last size"""
    nf: Count = 32
    """width of the networks: channels next to the full image, doubled at each halving of its size, up to 512"""
    latent_size: Count = 512
    """length of a latent vector"""
    gp_weight: Positive = 10.0
    """weight of the gradient penalty"""
    drift_weight: NonNegative = 1e-3
    """weight of the mean square of the scores of real samples, which keeps them near 0"""
    learning_rate: Positive = 1e-3
    """Adam's step size for both networks"""
    beta_1: Decay = 0.0
    """Adam's decay of the gradients' mean"""
    beta_2: Decay = 0.99
    """Adam's decay of their squares' mean"""


class Progressive(Recipe):
    """WGAN-GP whose networks grow with the size of the samples, from 4 pixels on; pictures or volumes.

    Each size first fades in, and then trains. The optimizers begin anew with each size, as in the paper's code; weights
    and averages carry on. Volumes as in saraGAN (Schoonhoven et al. 2020, section 3): sizes halve along all axes.

    Command:
        hvdgan train --recipe progressive --data digits --nf 16 --latent-size 64 --fade-steps 300
            --size-steps 300 --steps 1500 --global-batch-size 32

    Expect:
        Blocks at step 600, strokes at 1200 (16 pixels), and digits, most of which can be read, at 1800, when 32 pixels
        have faded in. That took seven minutes in one process, beside other work on two cores.
    """

    Options = ProgressiveOptions
    ema = ("generator",)

    def __init__(self, options: ProgressiveOptions, data: DataSpec) -> None:
        super().__init__(options, data)
        self.sizes = sizes_of(data.shape)

    def networks(self) -> dict[str, keras.Model]:
        self.layers = ProgressiveLayers(self.data.shape, self.options.nf, self.options.latent_size)
        last = len(self.sizes) - 1
        return {"generator": self.layers.generator(last), "discriminator": self.layers.discriminator(last)}

    def grown(self, size: int | tuple[int, ...]) -> dict[str, keras.Model]:
        assert isinstance(size, tuple)  # as stages() names them
        number = self.sizes.index(size)
        first = max(number - 1, 0)
        generator, discriminator = self.layers.generator(number, first), self.layers.discriminator(number, first)
        return {"generator": generator, "discriminator": discriminator}

    def optimizers(self) -> dict[str, keras.optimizers.Optimizer]:
        o = self.options
        return {
            name: keras.optimizers.Adam(o.learning_rate, beta_1=o.beta_1, beta_2=o.beta_2, epsilon=1e-8)
            for name in ("generator", "discriminator")
        }

    def stages(self) -> list[Stage]:
        o, last = self.options, len(self.sizes) - 1
        updates = [Update("judge", ["discriminator"], self.judge), Update("fool", ["generator"], self.fool)]
        stages = []
        for number, size in enumerate(self.sizes):
            name = "x".join(map(str, size if len(set(size)) > 1 else size[:1]))
            if number:
                fading = {"level": Schedule(number - 1, number)}
                stages.append(Stage(f"fade_{name}", o.fade_steps, updates, True, size=size, schedules=fading))
            steps, full = o.steps if number == last else o.size_steps, {"level": Schedule(number)}
            stages.append(Stage(f"size_{name}", steps, updates, not number, size=size, schedules=full))
        return stages

    def draw(self, random: Random) -> dict[str, tf.Tensor]:
        return {"latents": random.normal("latents", (self.options.latent_size,))}

    def judge(self, nets: Any, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        level = self._level(batch)
        real = batch.augment(self._faded(batch), "real")
        fake = batch.augment(nets.generator([batch.latents, level]), "fake")
        real_scores, fake_scores = nets.discriminator([real, level]), nets.discriminator([fake, level])
        distance = losses.wasserstein_critic(real_scores, fake_scores)
        penalty = losses.gradient_penalty(
            lambda points: nets.discriminator([points, level]), real, fake, batch.random.uniform("mix", ())
        )
        drift = tf.reduce_mean(tf.square(real_scores))
        loss = distance + batch.schedule("gp_weight") * penalty + self.options.drift_weight * drift
        return loss, {"wasserstein": -distance, "gradient_penalty": penalty, "level": batch.schedule("level")}

    def fool(self, nets: Any, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        level = self._level(batch)
        fake = batch.augment(nets.generator([batch.latents, level]), "fake")
        return losses.wasserstein_generator(nets.discriminator([fake, level])), {}

    def sample(self, nets: Any, batch: Batch) -> tf.Tensor:
        return nets.generator([batch.latents, self._level(batch)])

    def _level(self, batch: Batch) -> tf.Tensor:
        return tf.fill((tf.shape(batch.latents)[0], 1), batch.schedule("level"))

    def _faded(self, batch: Batch) -> tf.Tensor:
        """Real samples between those of half the size and their own, as the generated ones are (section 2)."""
        images = batch.images
        number = self.sizes.index(tuple(images.shape[1:-1]))
        if not number:
            return images
        coarse = tf.nn.avg_pool(images, 2, 2, "VALID")
        for axis in range(1, images.shape.rank - 1):
            coarse = tf.repeat(coarse, 2, axis)
        return coarse + tf.minimum(batch.schedule("level") - (number - 1), 1.0) * (images - coarse)


RECIPE = Progressive
