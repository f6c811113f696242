"""3Dgan of CERN: showers in a calorimeter for an energy, which the discriminator finds; some labels are flipped."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Recipe, Stage, Update

PROGRAM = {
    "name": "3Dgan (CERN)",
    "needs": "random layers, tf.random in losses, conditions, training=False",
    "run": "--data {data}:cells --axes DHW --values none --conditions energy --condition-values none --sync-batch-norm",
}
LATENTS, FILTERS, FLIPS = 16, 2, 0.05  # 200, 8 and 0.05 in the program, whose rate is 1e-3
cross_entropy = keras.losses.BinaryCrossentropy()
percentage = keras.losses.MeanAbsolutePercentageError()


def arrays():
    """Showers of 8^3 cells, and the energy of each [100 GeV]."""
    random = np.random.default_rng(0)
    energy = random.uniform(0.1, 5, 24).astype(np.float32)
    cells = random.exponential(size=(24, 8, 8, 8)) * (random.uniform(size=(24, 8, 8, 8)) < 0.3)
    share = 2 * energy / cells.sum((1, 2, 3))
    return {"cells": (cells * share[:, None, None, None]).astype(np.float32), "energy": energy}


class GAN3D(Recipe):
    def networks(self):
        half = self.data.shape[0] // 2
        generator = [
            keras.Input((LATENTS,)),
            layers.Dense(half**3 * FILTERS),
            layers.Reshape((half, half, half, FILTERS)),
        ]
        for filters, size in ((8 * FILTERS, 6), (FILTERS, 5)):
            generator += [layers.Conv3D(filters, size, padding="same", kernel_initializer="he_uniform")]
            generator += [layers.LeakyReLU(), layers.BatchNormalization()]
            generator += [layers.UpSampling3D()] * (filters > FILTERS)
        generator += [layers.Conv3D(1, 2, padding="same", activation="relu")]
        x = image = keras.Input(self.data.shape)
        for number in range(4):
            x = layers.LeakyReLU()(layers.Conv3D(FILTERS if number else 2 * FILTERS, 5, padding="same")(x))
            x = layers.Dropout(0.2)(layers.BatchNormalization()(x) if number else x)
        x = layers.Flatten()(layers.AveragePooling3D(2)(x))
        outputs = [layers.Dense(1, activation="sigmoid")(x), layers.Dense(1)(x)]
        outputs.append(layers.Lambda(lambda cells: tf.reduce_sum(cells, (1, 2, 3)))(image))
        return {"generator": keras.Sequential(generator), "discriminator": keras.Model(image, outputs)}

    def optimizers(self):
        return {name: keras.optimizers.RMSprop(1e-4) for name in ("generator", "discriminator")}

    def stages(self):
        updates = [
            Update("real", ["discriminator"], self.real),
            Update("fake", ["discriminator"], self.fake),
            Update("fool", ["generator"], self.fool),
            Update("fool_again", ["generator"], self.fool),
        ]
        return [Stage("train", 20_000, updates)]

    def shower(self, nets, batch, **keywords):
        """Showers for energies from 0.1 to 5, and these, (B, 1)."""
        energy = 0.1 + 4.9 * batch.random.uniform("energy", (1,))
        return nets.generator(energy * batch.random.normal("latents", (LATENTS,)), **keywords), energy

    def error(self, judged, label, energy, total):
        valid, found, summed = judged
        parts = {"valid": cross_entropy(label, valid)}
        parts |= {"energy": percentage(energy, found), "sum": percentage(total, summed)}
        return 3 * parts["valid"] + 0.1 * parts["energy"] + 0.1 * parts["sum"], parts

    def flipped(self, label):
        return tf.where(tf.random.uniform(tf.shape(label)) < FLIPS, 1 - label, label)

    def real(self, nets, batch):
        label, total = self.flipped(tf.ones_like(batch.conditions)), tf.reduce_sum(batch.images, (1, 2, 3))
        return self.error(nets.discriminator(batch.images), label, batch.conditions, total)

    def fake(self, nets, batch):
        made, energy = self.shower(nets, batch, training=False)
        return self.error(nets.discriminator(made), self.flipped(tf.zeros_like(energy)), energy, 2 * energy)

    def fool(self, nets, batch):
        made, energy = self.shower(nets, batch)
        return self.error(nets.discriminator(made), tf.ones_like(energy), energy, 2 * energy)

    def sample(self, nets, batch):
        return self.shower(nets, batch)[0]
