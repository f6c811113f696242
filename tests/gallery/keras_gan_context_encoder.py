"""Keras-GAN's context_encoder: fills a square hole, which lies at a random place of each picture."""

import keras
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Recipe, Stage, Update

RUN = "--data synthetic --channels 3 --image-size 16 --sync-batch-norm"
PROGRAM = {"name": "Keras-GAN context_encoder", "needs": "random layers, training=False", "run": RUN}
HOLE, FILTERS = 4, 4
cross_entropy = keras.losses.BinaryCrossentropy()


class ContextEncoder(Recipe):
    shows_data = True

    def networks(self):
        generator = [keras.Input(self.data.shape)]
        for filters in (FILTERS, 2 * FILTERS, 4 * FILTERS):
            generator += [layers.Conv2D(filters, 3, strides=2, padding="same"), layers.LeakyReLU(0.2)]
            generator += [layers.BatchNormalization(momentum=0.8)]
        generator += [layers.Conv2D(16 * FILTERS, 1, strides=2), layers.LeakyReLU(0.2), layers.Dropout(0.5)]
        for filters in (4 * FILTERS, 2 * FILTERS):
            generator += [layers.UpSampling2D(), layers.Conv2D(filters, 3, padding="same")]
            generator += [layers.Activation("relu"), layers.BatchNormalization(momentum=0.8)]
        generator += [layers.Conv2D(self.data.channels, 3, padding="same", activation="tanh")]
        discriminator = [keras.Input((HOLE, HOLE, self.data.channels))]
        for filters, strides in ((2 * FILTERS, 2), (4 * FILTERS, 2), (8 * FILTERS, 1)):
            discriminator += [layers.Conv2D(filters, 3, strides=strides, padding="same"), layers.LeakyReLU(0.2)]
            discriminator += [layers.BatchNormalization(momentum=0.8)]
        discriminator += [layers.Flatten(), layers.Dense(1, activation="sigmoid")]
        return {"generator": keras.Sequential(generator), "discriminator": keras.Sequential(discriminator)}

    def optimizers(self):
        return {name: keras.optimizers.Adam(2e-4, 0.5) for name in ("generator", "discriminator")}

    def stages(self):
        updates = [
            Update("real", ["discriminator"], self.real),
            Update("fake", ["discriminator"], self.fake),
            Update("fill", ["generator"], self.fill),
        ]
        return [Stage("train", 30_000, updates)]

    def draw(self, random):
        places = self.data.image_size - HOLE + 1
        return {"top": random.integers("top", (), places), "left": random.integers("left", (), places)}

    def rows_and_columns(self, batch):
        """1 for each row, and for each column, of a hole, (B, HOLE, size)."""
        return [tf.one_hot(first[:, None] + tf.range(HOLE), self.data.image_size) for first in (batch.top, batch.left)]

    def split(self, batch):
        """Pictures that are 0 in their holes, and what was there."""
        rows, columns = self.rows_and_columns(batch)
        masked = batch.images * (1 - tf.einsum("bir,bjc->brc", rows, columns)[..., None])
        return masked, tf.einsum("bir,bjc,brck->bijk", rows, columns, batch.images)

    def real(self, nets, batch):
        valid = nets.discriminator(self.split(batch)[1])
        return cross_entropy(tf.ones_like(valid), valid), {}

    def fake(self, nets, batch):
        valid = nets.discriminator(nets.generator(self.split(batch)[0], training=False))
        return cross_entropy(tf.zeros_like(valid), valid), {}

    def fill(self, nets, batch):
        masked, missing = self.split(batch)
        made = nets.generator(masked)
        valid = nets.discriminator(made)
        error = tf.reduce_mean((made - missing) ** 2)
        return 0.999 * error + 0.001 * cross_entropy(tf.ones_like(valid), valid), {"error": error}

    def sample(self, nets, batch):
        """Pictures with their holes, filled, and as they were."""
        masked, _ = self.split(batch)
        filled = masked + tf.einsum("bir,bjc,bijk->brck", *self.rows_and_columns(batch), nets.generator(masked))
        return tf.concat([masked, filled, batch.images], 2)
