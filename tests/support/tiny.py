"""Recipes that train in milliseconds; tests name them as tiny:Tiny and the like."""

import dataclasses
import math
from pathlib import Path
from typing import Literal

import keras
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Recipe, Stage, Update, losses


@dataclasses.dataclass(frozen=True, kw_only=True)
class TinyOptions:
    """Options of the tiny recipes."""

    steps: int = 4
    """steps of each stage"""
    norm: Literal["batch", "none"] = "none"
    """whether there is BatchNorm"""
    learning_rate: float = 1e-3


class Tiny(Recipe):
    """A dense generator and discriminator, alternating."""

    Options = TinyOptions
    ema = ("generator",)

    def networks(self):
        pixels = (self.data.image_size, self.data.image_size, self.data.channels)
        norm = [layers.BatchNormalization()] if self.options.norm == "batch" else []
        generator = keras.Sequential(
            [keras.Input((8,)), layers.Dense(16), *norm, layers.ReLU(), layers.Dense(math.prod(pixels))]
            + [layers.Activation("tanh", dtype="float32"), layers.Reshape(pixels, dtype="float32")],
            name="generator",
        )
        norm = [layers.BatchNormalization()] if self.options.norm == "batch" else []
        discriminator = keras.Sequential(
            [keras.Input(pixels), layers.Flatten(), layers.Dense(16), *norm, layers.LeakyReLU(0.2)]
            + [layers.Dense(1, dtype="float32")],
            name="discriminator",
        )
        return {"generator": generator, "discriminator": discriminator}

    def optimizers(self):
        return {name: keras.optimizers.Adam(self.options.learning_rate) for name in ("generator", "discriminator")}

    def stages(self):
        judge = Update("judge", owns=["discriminator"], loss=self.judge)
        fool = Update("fool", owns=["generator"], loss=self.fool)
        return [Stage("adversarial", self.options.steps, [judge, fool])]

    def draw(self, random):
        return {"latents": random.normal("latents", (8,))}

    def judge(self, nets, batch):
        real, fake = nets.discriminator(batch.images), nets.discriminator(nets.generator(batch.latents))
        return losses.non_saturating_discriminator(real, fake), {"real": tf.reduce_mean(real)}

    def fool(self, nets, batch):
        return losses.non_saturating_generator(nets.discriminator(nets.generator(batch.latents))), {}

    def sample(self, nets, batch):
        return nets.generator(batch.latents)


class Staged(Tiny):
    """Three stages: one network, then the other, then both."""

    def stages(self):
        judge = Update("judge", owns=["discriminator"], loss=self.judge)
        fool = Update("fool", owns=["generator"], loss=self.fool)
        steps = self.options.steps
        return [
            Stage("generator", steps, [fool]),
            Stage("discriminator", steps, [judge]),
            Stage("joint", steps, [judge, fool]),
        ]


class Evaluated(Staged):
    """Evaluates held-out images."""

    def evaluate(self, nets, batch):
        return {"mean": tf.reduce_mean(batch.images, (1, 2, 3))}


class Resetting(Staged):
    """The last stage begins with new optimizers."""

    def stages(self):
        *others, joint = super().stages()
        return [*others, dataclasses.replace(joint, reset_optimizers=True)]


class Wide(Tiny):
    """Each network has a kernel that is too large to be bundled with others: 256 KiB."""

    def networks(self):
        pixels = (8, 8, 1)
        generator = [keras.Input((8,)), layers.Dense(1024, "relu"), layers.Dense(64, "tanh"), layers.Reshape(pixels)]
        discriminator = [keras.Input(pixels), layers.Flatten(), layers.Dense(1024, "relu"), layers.Dense(1)]
        named = {"generator": generator, "discriminator": discriminator}
        return {name: keras.Sequential(parts, name=name) for name, parts in named.items()}


class Untouched(Tiny):
    """An update that owns a network which its loss never calls."""

    def fool(self, nets, batch):
        return tf.reduce_mean(nets.discriminator(batch.images)), {}


class Exploding(Tiny):
    """A loss that is not finite in the third step, on one sample of the global batch."""

    def judge(self, nets, batch):
        loss, metrics = super().judge(nets, batch)
        sick = tf.equal(batch.random.step, 2)
        return loss * tf.where(sick, tf.constant(float("nan")), 1.0), metrics


class Required(Tiny):
    """An option without a default."""

    @dataclasses.dataclass(frozen=True)
    class Options:
        steps: int


class UnknownEma(Tiny):
    """An average of a network that is not there."""

    ema = ("nobody",)


class Mixing(Tiny):
    """A network that mixes each sample with another one."""

    def networks(self):
        networks = super().networks()
        pixels = networks["discriminator"].input_shape[1:]
        mixing = keras.Sequential([keras.Input(pixels), layers.MixUp(), networks["discriminator"]])
        return {**networks, "discriminator": mixing}


class Overdrawn(Tiny):
    """Draws what every batch has."""

    def draw(self, random):
        return {"images": random.normal("images", (8,))}


class Labelled(Tiny):
    """Reports the mean label of a batch."""

    def judge(self, nets, batch):
        loss, _ = super().judge(nets, batch)
        return loss, {"label": tf.reduce_mean(tf.cast(batch.labels, tf.float32))}


class Conditional(Tiny):
    """Samples that are brighter for each class, with noise of their own, and darker the more they are truncated."""

    truncates = True

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Options(TinyOptions):
        widths: tuple[int, ...] = (1, 2)
        weights: Path | None = None

    def draw(self, random):
        return {**super().draw(random), "classes": random.integers("classes", (), self.data.num_classes)}

    def sample(self, nets, batch):
        noise = 0.1 * batch.random.uniform("noise", (1, 1, 1))
        brightness = tf.cast(batch.classes, tf.float32) / self.data.num_classes * batch.truncation
        return 0.2 * nets.generator(batch.latents) + noise + brightness[:, None, None, None] - 0.5


class Counter(layers.Layer):
    """Counts its calls in training in several types, from where float32 would lose them."""

    def build(self, shape):
        start = keras.initializers.Constant(2**40 + 1)
        self.whole = self.add_weight((), start, dtype="int64", trainable=False, name="whole")
        self.wide = self.add_weight((), start, dtype="float64", trainable=False, autocast=False, name="wide")
        self.odd = self.add_weight((), "zeros", dtype="bool", trainable=False, name="odd")

    def call(self, inputs, training=False):
        if training:
            self.whole.assign(self.whole + 1)
            self.wide.assign(self.wide + 1)
            self.odd.assign(tf.logical_not(self.odd))
        return inputs


class ImagePool(layers.Layer):
    """Keeps the first image of the last batch."""

    def build(self, shape):
        self.images = self.add_weight(shape[1:], "zeros", trainable=False, name="images")

    def call(self, inputs, training=False):
        if training:
            self.images.assign(inputs[0])
        return inputs


class Stateful(Tiny):
    """A discriminator behind a layer that keeps something, and BatchNorm."""

    layer: type[layers.Layer]

    def networks(self):
        networks = super().networks()
        pixels = networks["discriminator"].input_shape[1:]
        inner = [keras.Input(pixels), self.layer(name="keeps"), networks["discriminator"]]
        return {**networks, "discriminator": keras.Sequential(inner, name="judging")}


class Counting(Stateful):
    layer = Counter


class Pooled(Stateful):
    layer = ImagePool


class Clashing(Recipe):
    """An option that is also a setting of hvdgan."""

    @dataclasses.dataclass(frozen=True)
    class Options:
        seed: int = 3
