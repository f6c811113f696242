"""Recipes of arrays that train in milliseconds, and data for them; tests name them as tiny_arrays:Volumes."""

import dataclasses
import math

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Recipe, Stage, Update, losses

UNITS = ("--values", "log1p+standard", "--condition-values", "energy=range:0,100;theta=none")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    steps: int = 4


class Volumes(Recipe):
    """A conditional GAN of samples of any shape, with convolutions and BatchNorm over their axes in space."""

    Options = Options
    ema = ("generator",)

    def networks(self):
        shape, conditions = self.data.shape, (len(self.data.conditions),)
        convolution = {2: layers.Conv1D, 3: layers.Conv2D, 4: layers.Conv3D}[len(shape)]
        latents, given = keras.Input((4,), name="latents"), keras.Input(conditions, name="conditions")
        x = layers.Dense(2 * math.prod(shape[:-1]))(layers.Concatenate()([latents, given]))
        x = layers.BatchNormalization()(layers.Reshape((*shape[:-1], 2))(x))
        x = convolution(shape[-1], 3, padding="same", dtype="float32")(layers.LeakyReLU(0.2)(x))
        generator = keras.Model([latents, given], x, name="generator")
        images, given = keras.Input(shape, name="images"), keras.Input(conditions, name="conditions")
        x = layers.LeakyReLU(0.2)(convolution(2, 3, strides=2, padding="same")(images))
        x = layers.Concatenate()([layers.Flatten()(x), given])
        discriminator = keras.Model([images, given], layers.Dense(1, dtype="float32")(x), name="discriminator")
        return {"generator": generator, "discriminator": discriminator}

    def optimizers(self):
        return {name: keras.optimizers.Adam(1e-3) for name in ("generator", "discriminator")}

    def stages(self):
        judge = Update("judge", owns=["discriminator"], loss=self.judge)
        fool = Update("fool", owns=["generator"], loss=self.fool)
        return [Stage("adversarial", self.options.steps, [judge, fool])]

    def draw(self, random):
        return {"latents": random.normal("latents", (4,))}

    def fake(self, nets, batch):
        return batch.augment(nets.generator([batch.latents, batch.conditions]), "fake")

    def judge(self, nets, batch):
        real = nets.discriminator([batch.augment(batch.images, "real"), batch.conditions])
        fake = nets.discriminator([self.fake(nets, batch), batch.conditions])
        numbers = {"index": tf.reduce_mean(tf.cast(batch.index, tf.float32)), "energy": batch.conditions[0, 0]}
        return losses.non_saturating_discriminator(real, fake), numbers

    def fool(self, nets, batch):
        fake = self.fake(nets, batch)
        total = tf.reduce_mean(self.data.physical(fake))
        return losses.non_saturating_generator(nets.discriminator([fake, batch.conditions])), {"total": total}

    def sample(self, nets, batch):
        return nets.generator([batch.latents, batch.conditions])

    def evaluate(self, nets, batch):
        fake = nets.generator([batch.latents, batch.conditions])
        axes = list(range(1, fake.shape.rank))
        return {"distance": tf.reduce_mean(tf.abs(fake - batch.images), axis=axes)}


class Pairs(Recipe):
    """From a coarse field and constants to a fine one, of other shape and other channels."""

    Options = Options
    paired = True
    shows_data = True

    def networks(self):
        shape, coarse = self.data.shape, self.data.input_shape
        inputs, fixed = keras.Input(coarse, name="inputs"), keras.Input(self.data.constants_shape, name="constants")
        x = layers.UpSampling2D(shape[0] // coarse[0])(layers.Conv2D(2, 3, padding="same")(inputs))
        x = layers.Conv2D(shape[-1], 3, padding="same", dtype="float32")(layers.Concatenate()([x, fixed]))
        return {"generator": keras.Model([inputs, fixed], x, name="generator")}

    def optimizers(self):
        return {"generator": keras.optimizers.Adam(1e-2)}

    def stages(self):
        return [Stage("fit", self.options.steps, [Update("fit", owns=["generator"], loss=self.fit)])]

    def made(self, nets, batch):
        constants = tf.broadcast_to(batch.constants, (batch.images.shape[0], *batch.constants.shape[1:]))
        return nets.generator([batch.inputs, constants])

    def fit(self, nets, batch):
        # With nearest inputs, a crop or a flip of one part alone would show.
        factor = batch.images.shape[1] // batch.inputs.shape[1]
        coarse = tf.nn.avg_pool2d(batch.images[..., :1], factor, factor, "VALID")
        apart = tf.reduce_max(tf.abs(coarse - batch.inputs[..., :1]))
        return losses.squared_error(batch.images, self.made(nets, batch)), {"apart": apart}

    def sample(self, nets, batch):
        return self.made(nets, batch)


class Maps(Pairs):
    """Fields from a map of their signs, a coarse map, and a vector, which are further arrays."""

    paired = False

    def networks(self):
        shape, shapes = self.data.shape, self.data.array_shapes
        given = {name: keras.Input(shapes[name], name=name) for name in ("signs", "coarse", "spectrum")}
        x = layers.UpSampling2D(shape[0] // shapes["coarse"][0])(given["coarse"])
        x = layers.Conv2D(4, 3, padding="same")(layers.Concatenate()([x, given["signs"]]))
        x = x + layers.Reshape((1, 1, 4))(layers.Dense(4)(given["spectrum"]))
        x = layers.Conv2D(shape[-1], 3, padding="same", dtype="float32")(x)
        return {"generator": keras.Model(given, x, name="generator")}

    def made(self, nets, batch):
        return nets.generator(dict(batch.arrays))

    def apart(self, batch):
        """By how much the maps differ from those of the fields, (B,): a crop or a flip of one alone would show."""
        images, coarse = batch.images[..., :1], batch.arrays["coarse"]
        factor = images.shape[1] // coarse.shape[1]
        signs = self.data.physical(batch.arrays["signs"], "signs")
        maps = {"coarse": tf.nn.avg_pool2d(images, factor, factor, "VALID") - coarse}
        maps["signs"] = tf.cast(images > 0, tf.float32) - signs
        return tf.add_n([tf.reduce_max(tf.abs(each), axis=[1, 2, 3]) for each in maps.values()])

    def fit(self, nets, batch):
        numbers = {"apart": tf.reduce_max(self.apart(batch)), "spectrum": tf.reduce_mean(batch.arrays["spectrum"] ** 2)}
        return losses.squared_error(batch.images, self.made(nets, batch)), numbers

    def evaluate(self, nets, batch):
        return {"apart": self.apart(batch)}


def volumes(path, count=96, shape=(4, 6, 8), channels=()):
    """Write an .npz of positive float32 volumes or fields, whose sum grows with the energy."""
    numbers = np.random.default_rng(0)
    energy = numbers.uniform(5, 100, count)
    ecal = numbers.gamma(2.0, 0.5, (count, *shape, *channels)).astype(np.float32)
    ecal *= energy.reshape(-1, *[1] * (ecal.ndim - 1)).astype(np.float32)
    np.savez(path, ECAL=ecal, energy=energy, theta=numbers.uniform(0, 1, count))
    return ecal, energy


def pairs(path, count=64, height=12, width=20, factor=4):
    """Write an .npz of fine fields of 2 channels, coarse ones of 3, and constants; the first channels agree."""
    numbers = np.random.default_rng(1)
    fine = numbers.normal(0, 1, (count, height, width, 2)).astype(np.float32)
    blocks = fine[..., 0].reshape(count, height // factor, factor, width // factor, factor).mean((2, 4))
    others = numbers.normal(0, 1, (*blocks.shape, 2))
    coarse = np.concatenate([blocks[..., None], others], axis=-1).astype(np.float32)
    np.savez(path, images=fine, inputs=coarse, ground=numbers.uniform(-1, 1, (height, width)).astype(np.float32))


def maps(count=40):
    """Fields of 2 channels, the signs of the first, its means over blocks, and a vector, as uint8 and float32."""
    numbers = np.random.default_rng(2)
    fine = numbers.uniform(-1, 1, (count, 8, 12, 2)).astype(np.float32)
    blocks = fine[..., 0].reshape(count, 4, 2, 6, 2).mean((2, 4))
    spectrum = 40 * numbers.normal(size=(count, 5)).astype(np.float32)
    return {"images": fine, "signs": (fine[..., 0] > 0).astype(np.uint8), "coarse": blocks, "spectrum": spectrum}
