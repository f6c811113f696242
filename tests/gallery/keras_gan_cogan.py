"""Keras-GAN's cogan: two generators share their first layers, and so do two discriminators; each has its own domain."""

import math

import keras
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Recipe, Stage, Update

RUN = "--data synthetic --data digits --channels 1 --image-size 16 --sync-batch-norm"
PROGRAM = {"name": "Keras-GAN cogan", "needs": "shared layers, domains, training=False", "run": RUN}
LATENTS, WIDTH = 16, 16
cross_entropy = keras.losses.BinaryCrossentropy()


class CoGAN(Recipe):
    domains = ("A", "B")

    def networks(self):
        shape = self.data.shape
        noise, image = keras.Input((LATENTS,)), keras.Input(shape)
        body = [keras.Input((LATENTS,))]
        for units in (WIDTH, 2 * WIDTH):
            body += [layers.Dense(units), layers.LeakyReLU(0.2), layers.BatchNormalization(momentum=0.8)]
        made = keras.Sequential(body)(noise)
        body = [keras.Input(shape), layers.Flatten()]
        for units in (2 * WIDTH, WIDTH):
            body += [layers.Dense(units), layers.LeakyReLU(0.2)]
        judged = keras.Sequential(body)(image)
        networks = {}
        for number in (1, 2):
            x = layers.LeakyReLU(0.2)(layers.Dense(4 * WIDTH)(made))
            x = layers.BatchNormalization(momentum=0.8)(x)
            x = layers.Reshape(shape)(layers.Dense(math.prod(shape), activation="tanh")(x))
            networks[f"generator_{number}"] = keras.Model(noise, x)
            networks[f"discriminator_{number}"] = keras.Model(image, layers.Dense(1, activation="sigmoid")(judged))
        return networks

    def optimizers(self):
        names = ("generator_1", "generator_2", "discriminator_1", "discriminator_2")
        return {name: keras.optimizers.Adam(2e-4, 0.5) for name in names}

    def stages(self):
        updates = [
            Update("real_1", ["discriminator_1"], self.real_1),
            Update("real_2", ["discriminator_2"], self.real_2),
            Update("fake_1", ["discriminator_1"], self.fake_1),
            Update("fake_2", ["discriminator_2"], self.fake_2),
            Update("fool", ["generator_1", "generator_2"], self.fool),
        ]
        return [Stage("train", 30_000, updates)]

    def draw(self, random):
        return {"latents": random.normal("latents", (LATENTS,))}

    def real_1(self, nets, batch):
        valid = nets.discriminator_1(batch.domains["A"].images)
        return cross_entropy(tf.ones_like(valid), valid), {}

    def real_2(self, nets, batch):
        valid = nets.discriminator_2(batch.domains["B"].images)
        return cross_entropy(tf.ones_like(valid), valid), {}

    def fake_1(self, nets, batch):
        valid = nets.discriminator_1(nets.generator_1(batch.latents, training=False))
        return cross_entropy(tf.zeros_like(valid), valid), {}

    def fake_2(self, nets, batch):
        valid = nets.discriminator_2(nets.generator_2(batch.latents, training=False))
        return cross_entropy(tf.zeros_like(valid), valid), {}

    def fool(self, nets, batch):
        first = nets.discriminator_1(nets.generator_1(batch.latents))
        second = nets.discriminator_2(nets.generator_2(batch.latents))
        return cross_entropy(tf.ones_like(first), first) + cross_entropy(tf.ones_like(second), second), {}

    def sample(self, nets, batch):
        """What both generators make of the same latents, side by side."""
        return tf.concat([nets.generator_1(batch.latents), nets.generator_2(batch.latents)], 2)
