"""Keras-SRGAN: super-resolution with the features of VGG19, and noise on the labels of real and fake pictures."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Recipe, Stage, Update

PROGRAM = {
    "name": "Keras-SRGAN",
    "needs": "tf.random in losses, pairs, frozen network, training=False",
    "run": "--data {data}:images --inputs small --sync-batch-norm",
}
FILTERS, BLOCKS = 4, 2  # 64 and 16 in the program
cross_entropy = keras.losses.BinaryCrossentropy()


def arrays():
    """Pictures in [-1, 1], and the same ones four times smaller."""
    large = np.random.default_rng(0).uniform(-1, 1, (24, 16, 16, 3)).astype(np.float32)
    return {"images": large, "small": large.reshape(24, 4, 4, 4, 4, 3).mean((2, 4))}


def normed(x, filters, strides=1):
    x = layers.Conv2D(filters, 3, strides=strides, padding="same")(x)
    return layers.BatchNormalization(momentum=0.5)(x)


def features(shape):
    """Stands for VGG19 and its ImageNet weights."""
    image = keras.Input(shape)
    made = keras.Model(image, layers.Conv2D(8, 3, 2, activation="relu")(image))
    made.trainable = False
    return made


class SRGAN(Recipe):
    paired = True
    shows_data = True

    def networks(self):
        small = keras.Input(self.data.input_shape)
        x = first = layers.PReLU(shared_axes=[1, 2])(layers.Conv2D(FILTERS, 9, padding="same")(small))
        for _ in range(BLOCKS):
            y = normed(layers.PReLU(shared_axes=[1, 2])(normed(x, FILTERS)), FILTERS)
            x = layers.Add()([x, y])
        x = layers.Add()([first, normed(x, FILTERS)])
        for _ in range(2):
            x = layers.LeakyReLU(0.2)(layers.UpSampling2D()(layers.Conv2D(4 * FILTERS, 3, padding="same")(x)))
        x = layers.Conv2D(self.data.channels, 9, padding="same", activation="tanh")(x)
        return {
            "generator": keras.Model(small, x),
            "discriminator": self.discriminator(),
            "vgg": features(self.data.shape),
        }

    def discriminator(self):
        image = keras.Input(self.data.shape)
        x = layers.LeakyReLU(0.2)(layers.Conv2D(FILTERS, 3, padding="same")(image))
        for factor, strides in ((1, 2), (2, 1), (2, 2), (4, 1), (4, 2)):
            x = layers.LeakyReLU(0.2)(normed(x, factor * FILTERS, strides))
        x = layers.LeakyReLU(0.2)(layers.Dense(16 * FILTERS)(layers.Flatten()(x)))
        return keras.Model(image, layers.Dense(1, activation="sigmoid")(x))

    def optimizers(self):
        return {name: keras.optimizers.Adam(1e-4, epsilon=1e-8) for name in ("generator", "discriminator")}

    def stages(self):
        updates = [
            Update("real", ["discriminator"], self.real),
            Update("fake", ["discriminator"], self.fake),
            Update("restore", ["generator"], self.restore),
        ]
        return [Stage("train", 100_000, updates)]

    def real(self, nets, batch):
        valid = nets.discriminator(batch.images)
        return cross_entropy(1 - 0.2 * tf.random.uniform(tf.shape(valid)), valid), {}

    def fake(self, nets, batch):
        valid = nets.discriminator(nets.generator(batch.inputs, training=False))
        return cross_entropy(0.2 * tf.random.uniform(tf.shape(valid)), valid), {}

    def restore(self, nets, batch):
        made = nets.generator(batch.inputs)
        valid = nets.discriminator(made)
        content = tf.reduce_mean((nets.vgg(made) - nets.vgg(batch.images)) ** 2)
        fool = cross_entropy(1 - 0.2 * tf.random.uniform(tf.shape(valid)), valid)
        return content + 1e-3 * fool, {"content": content, "fool": fool}

    def sample(self, nets, batch):
        return nets.generator(batch.inputs)
