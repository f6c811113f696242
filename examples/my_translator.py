"""A GAN for pairs of images, like pix2pix (Isola et al. 2017): --recipe my_translator:MyTranslator --image-size 16"""

import dataclasses

import keras
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Count, NonNegative, Positive, Recipe, Stage, Update, losses, metrics


@dataclasses.dataclass(frozen=True, kw_only=True)
class MyTranslatorOptions:
    steps: Count = 2000
    """steps; each is one update of both networks"""
    width: Count = 32
    """channels of the layers next to the image"""
    error_weight: NonNegative = 10.0
    """weight of the image's error; the adversarial loss has weight 1"""
    learning_rate: Positive = 5e-4
    """Adam's step size of both networks"""


class MyTranslator(Recipe):
    """The generator returns an image and, for each pixel, the error that it expects."""

    Options = MyTranslatorOptions
    ema = ("generator",)
    paired = True
    shows_data = True

    def networks(self):
        shape, width = (self.data.image_size, self.data.image_size, self.data.channels), self.options.width
        inputs, images = keras.Input(shape, name="inputs"), keras.Input(shape, name="images")
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(inputs)
        x = layers.Conv2D(width, 3, padding="same", activation="relu", dilation_rate=2)(x)
        x = layers.Conv2D(width, 3, padding="same", activation="relu", dilation_rate=4)(x)
        x = layers.Concatenate()([inputs, x])
        outputs = {
            "images": layers.Conv2D(shape[-1], 3, padding="same", activation="tanh", dtype="float32")(x),
            "log_error": layers.Conv2D(1, 3, padding="same", dtype="float32")(x),
        }
        both = {"inputs": inputs, "images": images}
        x = layers.Concatenate()([inputs, images])
        x = layers.Conv2D(width, 4, 2, padding="same", activation="leaky_relu")(x)
        logits = layers.Conv2D(1, 4, padding="same", dtype="float32")(x)
        return {
            "generator": keras.Model(inputs, outputs, name="generator"),
            "discriminator": keras.Model(both, logits, name="discriminator"),
        }

    def optimizers(self):
        return {name: keras.optimizers.Adam(self.options.learning_rate, 0.5) for name in ("generator", "discriminator")}

    def stages(self):
        judge = Update("judge", owns=["discriminator"], loss=self.judge)
        fool = Update("fool", owns=["generator"], loss=self.fool)
        return [Stage("joint", self.options.steps, [judge, fool])]

    def judge(self, nets, batch):
        fake = nets.generator(batch.inputs)["images"]
        real_logits = nets.discriminator({"inputs": batch.inputs, "images": batch.images})
        fake_logits = nets.discriminator({"inputs": batch.inputs, "images": fake})
        return losses.hinge_discriminator(real_logits, fake_logits), {}

    def fool(self, nets, batch):
        made = nets.generator(batch.inputs)
        fake_logits = nets.discriminator({"inputs": batch.inputs, "images": made["images"]})
        # The negative logarithm of a Laplace density, without its constant (Kendall and Gal 2017, section 3).
        error = tf.abs(made["images"] - batch.images)
        likelihood = tf.reduce_mean(error * tf.exp(-made["log_error"]) + made["log_error"])
        loss = losses.hinge_generator(fake_logits) + self.options.error_weight * likelihood
        return loss, {"l1": tf.reduce_mean(error), "likelihood": likelihood}

    def sample(self, nets, batch):
        made = nets.generator(batch.inputs)
        error = tf.clip_by_value(2.0 * tf.exp(made["log_error"]) - 1.0, -1.0, 1.0)
        error = tf.repeat(error, self.data.channels, axis=-1)
        return tf.concat([batch.inputs, made["images"], error, batch.images], axis=2)

    def evaluate(self, nets, batch):
        made = nets.generator(batch.inputs)["images"]
        return {"l1": metrics.l1(batch.images, made), "psnr": metrics.psnr(batch.images, made)}
