"""A class-conditional convolutional GAN (Gulrajani et al. 2017): --recipe my_conv_gan:MyConvGAN --image-size 16"""

import dataclasses

import keras
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Count, Positive, Recipe, Stage, Update, UserError, losses


@dataclasses.dataclass(frozen=True, kw_only=True)
class MyConvOptions:
    steps: Count = 4000
    """steps; each is one update of the critic"""
    n_critic: Count = 3
    """critic updates for each update of the generator"""
    width: Count = 32
    """channels of the layers next to the image"""
    learning_rate: Positive = 5e-4
    """Adam's step size of both networks"""


class MyConvGAN(Recipe):
    """Generator and critic get the class. The data must have classes, and 4 must divide the image size."""

    Options = MyConvOptions
    ema = ("generator",)

    def networks(self):
        count, width, size = self.data.num_classes, self.options.width, self.data.image_size // 4
        if not count or self.data.image_size % 4:
            raise UserError("recipe MyConvGAN: it needs --data with classes and an --image-size that 4 divides")
        latents, classes = keras.Input((64,), name="latents"), keras.Input((), dtype="int32", name="classes")
        x = layers.Concatenate()([latents, layers.Embedding(count, 16)(classes)])
        x = layers.Dense(size * size * 2 * width, activation="relu")(x)
        x = layers.Reshape((size, size, 2 * width))(x)
        x = layers.Conv2DTranspose(width, 4, 2, padding="same", activation="relu")(x)
        x = layers.Conv2DTranspose(self.data.channels, 4, 2, padding="same", activation="tanh", dtype="float32")(x)
        generator = keras.Model([latents, classes], x, name="generator")
        images = keras.Input((self.data.image_size, self.data.image_size, self.data.channels), name="images")
        x = layers.Conv2D(width, 4, 2, padding="same", activation="leaky_relu")(images)
        x = layers.Conv2D(2 * width, 4, 2, padding="same", activation="leaky_relu")(x)
        x = layers.Concatenate()([layers.Flatten()(x), layers.Embedding(count, 64)(classes)])
        x = layers.Dense(128, activation="leaky_relu")(x)
        scores = layers.Dense(1, dtype="float32")(x)
        return {"generator": generator, "critic": keras.Model([images, classes], scores, name="critic")}

    def optimizers(self):
        return {name: keras.optimizers.Adam(self.options.learning_rate, 0.0, 0.9) for name in ("generator", "critic")}

    def stages(self):
        judge = Update("judge", owns=["critic"], loss=self.judge)
        fool = Update("fool", owns=["generator"], loss=self.fool, every=self.options.n_critic)
        return [Stage("adversarial", self.options.steps, [judge, fool])]

    def draw(self, random):
        # hvdgan.sample looks for both names: --interpolate sets the latents, --class the classes.
        return {
            "latents": random.normal("latents", (64,)),
            "classes": random.integers("classes", (), self.data.num_classes),
        }

    def judge(self, nets, batch):
        fake = nets.generator([batch.latents, batch.labels])
        distance = losses.wasserstein_critic(
            nets.critic([batch.images, batch.labels]), nets.critic([fake, batch.labels])
        )
        mix = batch.random.uniform("mix", ())
        penalty = losses.gradient_penalty(lambda x: nets.critic([x, batch.labels]), batch.images, fake, mix)
        return distance + 10.0 * penalty, {"wasserstein": -distance, "penalty": penalty}

    def fool(self, nets, batch):
        fake = nets.generator([batch.latents, batch.classes])
        scores = nets.critic([fake, batch.classes])
        return losses.wasserstein_generator(scores), {"score": tf.reduce_mean(scores)}

    def sample(self, nets, batch):
        return nets.generator([batch.latents, batch.classes])
