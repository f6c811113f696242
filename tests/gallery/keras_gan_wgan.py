"""Keras-GAN's wgan: several steps of a critic, whose weights are clipped, for each of the generator."""

import keras
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Recipe, Stage, Update

RUN = "--image-size 16 --sync-batch-norm"
PROGRAM = {"name": "Keras-GAN wgan", "needs": "random layers, clip_weights, training=False", "run": RUN}
LATENTS, FILTERS, STEPS_OF_CRITIC = 16, 4, 3  # 100, 16 and 5 in the program


class WGAN(Recipe):
    def networks(self):
        size = self.data.image_size // 4
        generator = [keras.Input((LATENTS,)), layers.Dense(size * size * 8 * FILTERS, activation="relu")]
        generator += [layers.Reshape((size, size, 8 * FILTERS))]
        for filters in (8 * FILTERS, 4 * FILTERS):
            generator += [layers.UpSampling2D(), layers.Conv2D(filters, 4, padding="same")]
            generator += [layers.BatchNormalization(momentum=0.8), layers.Activation("relu")]
        generator += [layers.Conv2D(self.data.channels, 4, padding="same", activation="tanh")]
        critic = [keras.Input(self.data.shape)]
        for factor, strides in ((1, 2), (2, 2), (4, 2), (8, 1)):
            critic += [layers.Conv2D(factor * FILTERS, 3, strides=strides, padding="same")]
            critic += [layers.BatchNormalization(momentum=0.8)] * (factor > 1)
            critic += [layers.LeakyReLU(0.2), layers.Dropout(0.25)]
        critic += [layers.Flatten(), layers.Dense(1)]
        return {"generator": keras.Sequential(generator), "critic": keras.Sequential(critic)}

    def optimizers(self):
        return {name: keras.optimizers.RMSprop(5e-5) for name in ("generator", "critic")}

    def stages(self):
        updates = [
            Update("real", ["critic"], self.real),
            Update("fake", ["critic"], self.fake, clip_weights=0.01),
            Update("fool", ["generator"], self.fool, every=STEPS_OF_CRITIC),
        ]
        return [Stage("train", 20_000, updates)]

    def draw(self, random):
        return {"latents": random.normal("latents", (LATENTS,))}

    def real(self, nets, batch):
        return -tf.reduce_mean(nets.critic(batch.images)), {}

    def fake(self, nets, batch):
        return tf.reduce_mean(nets.critic(nets.generator(batch.latents, training=False))), {}

    def fool(self, nets, batch):
        return -tf.reduce_mean(nets.critic(nets.generator(batch.latents))), {}

    def sample(self, nets, batch):
        return nets.generator(batch.latents)
