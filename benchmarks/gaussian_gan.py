"""The networks of the ring and the grid of Gaussians: --recipe gaussian_gan:GaussianGAN.

Networks, optimizers and steps are those of PacGAN's program (Lin et al. 2018). Two things differ: a batch normalisation
takes the statistics of all packs together, and points are drawn without repetition until each has been seen.
"""

import dataclasses
from typing import Literal

import keras
import tensorflow as tf
from gaussians import CENTRES, DEVIATIONS
from keras import layers
from packed_gan import Adam, PackedGAN, PackedOptions

PIECES = 5
"""linear maps of which a maxout unit is the largest"""
DEVIATIONS_OF_GOOD = 3.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class GaussianOptions(PackedOptions):
    """Options of the recipe."""

    protocol: Literal["ring", "grid"] = "ring"
    """where the modes are"""


class GaussianGAN(PackedGAN):
    """The networks of PacGAN's program for its Table 1; both are updated at once, by gradients at the same weights."""

    Options = GaussianOptions
    together = True
    adam = Adam(1e-4, 1e-4, (0.8, 0.999))

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
            x = keras.ops.max(layers.Reshape((PIECES, 200))(self.judging(dense(PIECES * 200))(x)), axis=1)
        discriminator = keras.Model(packs, self.judging(dense(1, dtype="float32"))(x), name="discriminator")
        return {"generator": generator, "discriminator": discriminator}

    def draw(self, random):
        return {"latents": random.normal("latents", (2,))}

    def features(self, nets, batch):
        """The points, and a one for the nearest centre if it is within three standard deviations, else zeros."""
        centres = tf.constant(CENTRES[self.options.protocol], tf.float32)
        distances = tf.norm(batch.images[:, None] - centres, axis=-1)
        nearest = tf.one_hot(tf.argmin(distances, axis=1), centres.shape[0])
        limit = DEVIATIONS_OF_GOOD * DEVIATIONS[self.options.protocol]
        return batch.images, tf.where(tf.reduce_min(distances, axis=1, keepdims=True) <= limit, nearest, 0.0)
