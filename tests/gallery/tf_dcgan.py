"""TensorFlow's tutorial dcgan: a discriminator with Dropout; both gradients are computed before either is applied."""

import keras
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Recipe, Stage, Update

PROGRAM = {"name": "TF dcgan", "needs": "random layers, together", "run": "--image-size 12 --sync-batch-norm"}
cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)


def normalised(x):
    return layers.LeakyReLU(negative_slope=0.3)(layers.BatchNormalization()(x))


class DCGAN(Recipe):
    def networks(self):
        size = self.data.image_size // 4
        noise = keras.Input((100,))
        x = normalised(layers.Dense(size * size * 16, use_bias=False)(noise))
        x = layers.Reshape((size, size, 16))(x)
        x = normalised(layers.Conv2DTranspose(8, 5, padding="same", use_bias=False)(x))
        x = normalised(layers.Conv2DTranspose(4, 5, strides=2, padding="same", use_bias=False)(x))
        options = {"strides": 2, "padding": "same", "use_bias": False, "activation": "tanh"}
        x = layers.Conv2DTranspose(self.data.channels, 5, **options)(x)
        critic = [keras.Input(self.data.shape)]
        for filters in (8, 16):
            critic += [layers.Conv2D(filters, 5, 2, padding="same"), layers.LeakyReLU(0.3), layers.Dropout(0.3)]
        critic += [layers.Flatten(), layers.Dense(1)]
        return {"generator": keras.Model(noise, x), "discriminator": keras.Sequential(critic)}

    def optimizers(self):
        return {name: keras.optimizers.Adam(1e-4) for name in ("generator", "discriminator")}

    def stages(self):
        updates = [Update("fool", ["generator"], self.fool), Update("judge", ["discriminator"], self.judge)]
        return [Stage("train", 10_000, updates, together=True)]

    def draw(self, random):
        return {"latents": random.normal("latents", (100,))}

    def fool(self, nets, batch):
        scores = nets.discriminator(nets.generator(batch.latents, training=True), training=True)
        return cross_entropy(tf.ones_like(scores), scores), {}

    def judge(self, nets, batch):
        real = nets.discriminator(batch.images, training=True)
        fake = nets.discriminator(nets.generator(batch.latents, training=True), training=True)
        return cross_entropy(tf.ones_like(real), real) + cross_entropy(tf.zeros_like(fake), fake), {}

    def sample(self, nets, batch):
        return nets.generator(batch.latents, training=False)
