"""esrgan-tf2: super-resolution by dense blocks and a relativistic discriminator, after a stage of pixels alone."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Recipe, Stage, Update, losses

PROGRAM = {
    "name": "esrgan-tf2",
    "needs": "together, two optimizers for a network, pairs, frozen network",
    "run": "--data {data}:images --inputs small --sync-batch-norm --stages pixel=1,train=2",
}
FILTERS, GROWTH, BLOCKS = 4, 2, 1  # 64, 32 and 23 in the program
cross_entropy = keras.losses.BinaryCrossentropy()


def arrays():
    """Pictures in [-1, 1], and the same ones four times smaller."""
    large = np.random.default_rng(0).uniform(-1, 1, (24, 16, 16, 3)).astype(np.float32)
    return {"images": large, "small": large.reshape(24, 4, 4, 4, 4, 3).mean((2, 4))}


def conv(x, filters, size=3, strides=1, **keywords):
    return layers.Conv2D(filters, size, strides=strides, padding="same", **keywords)(x)


def dense_block(x):
    found = [x]
    for _ in range(4):
        y = layers.Concatenate()(found) if found[1:] else x
        found.append(layers.LeakyReLU(0.2)(conv(y, GROWTH)))
    y = conv(layers.Concatenate()(found), FILTERS)
    return layers.Add()([layers.Rescaling(0.2)(y), x])


def features(shape):
    """Stands for VGG19 and its ImageNet weights."""
    image = keras.Input(shape)
    made = keras.Model(image, layers.Conv2D(8, 3, 2)(image))
    made.trainable = False
    return made


def adam(peak):
    """A rate that halves, and halves again."""
    rates = keras.optimizers.schedules.PiecewiseConstantDecay([50_000, 100_000], [peak, peak / 2, peak / 4])
    return keras.optimizers.Adam(rates, 0.9, 0.99)


class ESRGAN(Recipe):
    paired = True
    shows_data = True

    def networks(self):
        small = keras.Input(self.data.input_shape)
        x = first = conv(small, FILTERS)
        for _ in range(BLOCKS):
            y = dense_block(dense_block(dense_block(x)))
            x = layers.Add()([layers.Rescaling(0.2)(y), x])
        x = layers.Add()([first, conv(x, FILTERS)])
        for _ in range(2):
            x = layers.LeakyReLU(0.2)(conv(layers.UpSampling2D()(x), FILTERS))
        x = conv(layers.LeakyReLU(0.2)(conv(x, FILTERS)), self.data.channels)
        return {
            "generator": keras.Model(small, x),
            "discriminator": self.discriminator(),
            "vgg": features(self.data.shape),
        }

    def discriminator(self):
        image = keras.Input(self.data.shape)
        x = layers.LeakyReLU(0.2)(conv(image, FILTERS))
        for factor, size in ((1, 4), (2, 3), (2, 4), (4, 3), (4, 4)):
            x = conv(x, factor * FILTERS, size, 2 if size == 4 else 1, use_bias=False)
            x = layers.LeakyReLU(0.2)(layers.BatchNormalization(momentum=0.9)(x))
        x = layers.LeakyReLU(0.2)(layers.Dense(100)(layers.Flatten()(x)))
        return keras.Model(image, layers.Dense(1)(x))

    def optimizers(self):
        return {"generator": {"pixel": adam(2e-4), "train": adam(1e-4)}, "discriminator": adam(1e-4)}

    def stages(self):
        pixel = Update("pixel", ["generator"], self.pixel, optimizer="pixel")
        fool = Update("fool", ["generator"], self.fool, optimizer="train")
        judge = Update("judge", ["discriminator"], self.judge)
        return [Stage("pixel", 1_000_000, [pixel]), Stage("train", 400_000, [fool, judge], together=True)]

    def pixel(self, nets, batch):
        return losses.absolute_error(batch.images, nets.generator(batch.inputs, training=True)), {}

    def relativistic(self, batch, higher, lower):
        """How far scores are from being above the mean of the others, which shall be below the mean of these."""
        above, below = (tf.sigmoid(a - batch.mean(b)) for a, b in ((higher, lower), (lower, higher)))
        return 0.5 * (cross_entropy(tf.ones_like(above), above) + cross_entropy(tf.zeros_like(below), below))

    def fool(self, nets, batch):
        made = nets.generator(batch.inputs, training=True)
        real, fake = nets.discriminator(batch.images, training=True), nets.discriminator(made, training=True)
        pixel = losses.absolute_error(batch.images, made)
        content = losses.absolute_error(nets.vgg(batch.images), nets.vgg(made))
        return 1e-2 * pixel + content + 5e-3 * self.relativistic(batch, fake, real), {
            "pixel": pixel,
            "content": content,
        }

    def judge(self, nets, batch):
        made = nets.generator(batch.inputs, training=True)
        real, fake = nets.discriminator(batch.images, training=True), nets.discriminator(made, training=True)
        return self.relativistic(batch, real, fake), {}

    def sample(self, nets, batch):
        return nets.generator(batch.inputs)
