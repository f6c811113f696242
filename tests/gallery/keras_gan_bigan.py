"""Keras-GAN's bigan: generator and encoder step together against a discriminator of pairs, which steps twice."""

import math

import keras
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Recipe, Stage, Update

RUN = "--image-size 8 --sync-batch-norm"
PROGRAM = {"name": "Keras-GAN bigan", "needs": "random layers, training=False", "run": RUN}
LATENTS = 8


def hidden(width, count, *, norm):
    for _ in range(count):
        yield layers.Dense(width)
        yield layers.LeakyReLU(0.2)
        yield layers.BatchNormalization(momentum=0.8) if norm else layers.Dropout(0.5)


def cross_entropy(label, valid):
    return tf.reduce_mean(keras.losses.binary_crossentropy(label * tf.ones_like(valid), valid))


class BiGAN(Recipe):
    def networks(self):
        shape = self.data.shape
        encoder = [keras.Input(shape), layers.Flatten(), *hidden(32, 2, norm=True), layers.Dense(LATENTS)]
        generator = [keras.Input((LATENTS,)), *hidden(32, 2, norm=True), layers.Dense(math.prod(shape), "tanh")]
        latents, images = keras.Input((LATENTS,)), keras.Input(shape)
        x = layers.Concatenate()([latents, layers.Flatten()(images)])
        for layer in hidden(64, 3, norm=False):
            x = layer(x)
        return {
            "encoder": keras.Sequential(encoder),
            "generator": keras.Sequential([*generator, layers.Reshape(shape)]),
            "discriminator": keras.Model([latents, images], layers.Dense(1, "sigmoid")(x)),
        }

    def optimizers(self):
        return {name: keras.optimizers.Adam(2e-4, 0.5) for name in ("encoder", "generator", "discriminator")}

    def stages(self):
        updates = [
            Update("real", ["discriminator"], self.real),
            Update("fake", ["discriminator"], self.fake),
            Update("fool", ["encoder", "generator"], self.fool),
        ]
        return [Stage("train", 40_000, updates)]

    def draw(self, random):
        return {"latents": random.normal("latents", (LATENTS,))}

    def real(self, nets, batch):
        codes = nets.encoder(batch.images, training=False)
        return cross_entropy(1.0, nets.discriminator([codes, batch.images], training=True)), {}

    def fake(self, nets, batch):
        images = nets.generator(batch.latents, training=False)
        return cross_entropy(0.0, nets.discriminator([batch.latents, images], training=True)), {}

    def fool(self, nets, batch):
        fake = nets.discriminator([batch.latents, nets.generator(batch.latents, training=True)], training=True)
        real = nets.discriminator([nets.encoder(batch.images, training=True), batch.images], training=True)
        return cross_entropy(1.0, fake) + cross_entropy(0.0, real), {}

    def sample(self, nets, batch):
        return nets.generator(batch.latents)
