"""A least-squares GAN (Mao et al. 2017): --recipe my_gan:MyGAN --data digits --image-size 16"""

import dataclasses

import keras
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Count, Positive, Recipe, Stage, Update


@dataclasses.dataclass(frozen=True, kw_only=True)
class MyOptions:
    """Each field is a flag, with its string in --help and its value in config.json."""

    steps: Count = 4000
    """number of steps"""
    width: Count = 128
    """units of the hidden layers"""
    learning_rate: Positive = 5e-4
    """Adam's step size"""


class MyGAN(Recipe):
    """Two dense networks, trained in one stage."""

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
        judge = Update("judge", owns=["discriminator"], loss=self.judge)
        fool = Update("fool", owns=["generator"], loss=self.fool)
        return [Stage("adversarial", self.options.steps, [judge, fool])]

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
