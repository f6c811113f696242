"""The networks and losses of the ring and the grid of Gaussians: --recipe gaussian_gan:GaussianGAN.

Networks, optimizers and steps are those of PacGAN's program (Lin et al. 2018). Two things differ: a batch normalisation
takes the statistics of all packs together, and points are drawn without repetition until each has been seen.
"""

import dataclasses
from typing import Literal

import keras
import tensorflow as tf
from gaussians import CENTRES, DEVIATIONS
from keras import layers

from hvdgan.recipe import Count, Positive, Recipe, Stage, Update, losses

PIECES = 5
"""linear maps of which a maxout unit is the largest"""
DEVIATIONS_OF_GOOD = 3.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class GaussianOptions:
    """Options of the recipe."""

    protocol: Literal["ring", "grid"] = "ring"
    """where the modes are"""
    loss: Literal["gan", "r1r2", "relativistic"] = "gan"
    """the non-saturating loss; this one with R1 and R2; or the loss of pairs with R1 and R2"""
    pack: Count = 1
    """points that the discriminator judges together; the global batch size is a multiple"""
    steps: Count = 400_000
    """steps; each is one update of both networks"""
    gamma: Positive = 1.0
    """twice the weight of R1 and of R2"""
    learning_rate: Positive = 1e-4
    """Adam's step size of both networks"""


class GaussianGAN(Recipe):
    """The networks of PacGAN's program for its Table 1; both are updated at once, by gradients at the same weights."""

    Options = GaussianOptions

    @property
    def pack(self):
        return self.options.pack

    def networks(self):
        def dense(units, **more):
            return layers.Dense(units, kernel_initializer=keras.initializers.RandomNormal(stddev=0.02), **more)

        latents = x = keras.Input((2,), name="latents")
        for _ in range(4):
            x = layers.BatchNormalization(momentum=0.95, epsilon=1e-4)(dense(400, use_bias=False)(x))
            x = layers.ReLU()(x)
        generator = keras.Model(latents, dense(2, dtype="float32")(x), name="generator")
        packs = x = keras.Input((2 * self.pack,), name="packs")
        for _ in range(3):
            x = keras.ops.max(layers.Reshape((200, PIECES))(dense(200 * PIECES)(x)), axis=-1)
        discriminator = keras.Model(packs, dense(1, dtype="float32")(x), name="discriminator")
        return {"generator": generator, "discriminator": discriminator}

    def optimizers(self):
        rate = self.options.learning_rate
        return {name: keras.optimizers.Adam(rate, beta_1=0.8) for name in ("generator", "discriminator")}

    def stages(self):
        judge, fool = Update("judge", ["discriminator"], self.judge), Update("fool", ["generator"], self.fool)
        return [Stage("adversarial", self.options.steps, [judge, fool], together=True)]

    def draw(self, random):
        return {"latents": random.normal("latents", (2,))}

    def judge(self, nets, batch):
        real, fake = self.packs(batch.images), self.packs(nets.generator(batch.latents))
        real_logits, fake_logits = nets.discriminator(real), nets.discriminator(fake)
        if self.options.loss == "relativistic":
            loss = losses.relativistic(real_logits, fake_logits)
        else:
            loss = losses.non_saturating_discriminator(real_logits, fake_logits)
        if self.options.loss == "gan":
            return loss, {}
        penalty = losses.r1(nets.discriminator, real) + losses.r2(nets.discriminator, fake)
        return loss + self.options.gamma / 2 * penalty, {"penalty": penalty}

    def fool(self, nets, batch):
        fake_logits = nets.discriminator(self.packs(nets.generator(batch.latents)))
        if self.options.loss == "relativistic":
            return losses.relativistic(fake_logits, nets.discriminator(self.packs(batch.images))), {}
        return losses.non_saturating_generator(fake_logits), {}

    def sample(self, nets, batch):
        return nets.generator(batch.latents)

    def features(self, nets, batch):
        """The points, and a one for the nearest centre if it is within three standard deviations, else zeros."""
        centres = tf.constant(CENTRES[self.options.protocol], tf.float32)
        distances = tf.norm(batch.images[:, None] - centres, axis=-1)
        nearest = tf.one_hot(tf.argmin(distances, axis=1), centres.shape[0])
        limit = DEVIATIONS_OF_GOOD * DEVIATIONS[self.options.protocol]
        return batch.images, tf.where(tf.reduce_min(distances, axis=1, keepdims=True) <= limit, nearest, 0.0)

    def packs(self, points):
        return tf.reshape(points, (-1, 2 * self.pack))
