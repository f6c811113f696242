"""A least-squares GAN (Mao et al. 2017): --recipe my_gan:MyGAN --image-size 16"""

import dataclasses

import keras
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Count, Positive, Recipe, Schedule, Stage, Update


@dataclasses.dataclass(frozen=True, kw_only=True)
class MyOptions:
    """Each field is a flag, with its string in --help and its value in config.json."""

    warmup_steps: Count = 100
    """steps of the first stage, which trains the discriminator alone"""
    steps: Count = 4000
    """steps of the second stage, which trains both networks"""
    width: Count = 128
    """units of the hidden layers"""
    learning_rate: Positive = 5e-4
    """Adam's step size at the beginning of a stage"""


class MyGAN(Recipe):
    """Two dense networks. The discriminator is trained alone first, then both, with rates that decay to zero."""

    Options = MyOptions
    ema = ("generator",)

    def networks(self):
        shape = (self.data.image_size, self.data.image_size, self.data.channels)
        pixels = self.data.image_size**2 * self.data.channels
        hidden = [layers.Dense(self.options.width, activation="relu") for _ in range(2)]
        generator = [keras.Input((32,)), *hidden, layers.Dense(pixels, activation="tanh"), layers.Reshape(shape)]
        hidden = [layers.Dense(self.options.width, activation="leaky_relu") for _ in range(2)]
        discriminator = [keras.Input(shape), layers.Flatten(), *hidden, layers.Dense(1)]
        return {
            "generator": keras.Sequential(generator, name="generator"),
            "discriminator": keras.Sequential(discriminator, name="discriminator"),
        }

    def optimizers(self):
        return {name: keras.optimizers.Adam(self.options.learning_rate, 0.5) for name in ("generator", "discriminator")}

    def stages(self):
        decay = Schedule(self.options.learning_rate, 0)
        judge = Update("judge", owns=["discriminator"], loss=self.judge)
        both = [
            dataclasses.replace(judge, learning_rate=decay),
            Update("fool", owns=["generator"], loss=self.fool, learning_rate=decay),
        ]
        return [Stage("warmup", self.options.warmup_steps, [judge]), Stage("both", self.options.steps, both)]

    def draw(self, random):
        return {"latents": random.normal("latents", (32,))}

    def judge(self, nets, batch):
        real, fake = nets.discriminator(batch.images), nets.discriminator(nets.generator(batch.latents))
        loss = tf.reduce_mean((real - 1) ** 2) + tf.reduce_mean(fake**2)
        return loss, {"real": tf.reduce_mean(real), "fake": tf.reduce_mean(fake)}

    def fool(self, nets, batch):
        return tf.reduce_mean((nets.discriminator(nets.generator(batch.latents)) - 1) ** 2), {}

    def sample(self, nets, batch):
        return nets.generator(batch.latents)
