"""keras.io's stylegan: equalised layers, styles, noise; networks that grow from 4 pixels, each stage with new Adams."""

import dataclasses
import math

import keras
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Count, Recipe, Schedule, Stage, Update, losses

PROGRAM = {
    "name": "keras.io stylegan",
    "needs": "stages that grow, training=False",
    "run": "--image-size 8 --steps 1",
    "alike": False,  # the critic sees deviations over groups of the batch
}
START, WIDTH, LATENTS = 4, 8, 16


class EqualizedConv(layers.Layer):
    """Weights of variance 1, scaled at each call (Karras et al. 2018)."""

    def __init__(self, filters, kernel=3, gain=2.0):
        super().__init__()
        self.filters, self.size, self.gain = filters, kernel, gain

    def build(self, shape):
        each = (self.size, self.size, shape[-1])
        self.scale = math.sqrt(self.gain / math.prod(each))
        self.kernel = self.add_weight((*each, self.filters), keras.initializers.RandomNormal(stddev=1.0), name="kernel")
        self.bias = self.add_weight((self.filters,), "zeros", name="bias")

    def call(self, x):
        width = self.size // 2
        x = tf.pad(x, [[0, 0], [width, width], [width, width], [0, 0]], "REFLECT")
        return tf.nn.conv2d(x, self.scale * self.kernel, 1, "VALID") + self.bias


class EqualizedDense(layers.Layer):
    """The same for vectors; `rate` slows the learning of the mapping network."""

    def __init__(self, units, gain=2.0, rate=1.0):
        super().__init__()
        self.units, self.gain, self.rate = units, gain, rate

    def build(self, shape):
        self.scale = math.sqrt(self.gain / shape[-1])
        first = keras.initializers.RandomNormal(stddev=1.0 / self.rate)
        self.kernel = self.add_weight((shape[-1], self.units), first, name="kernel")
        self.bias = self.add_weight((self.units,), "zeros", name="bias")

    def call(self, x):
        return self.rate * (tf.matmul(x, self.scale * self.kernel) + self.bias)


class AddNoise(layers.Layer):
    def build(self, x_shape, noise_shape):
        self.strength = self.add_weight((x_shape[-1],), keras.initializers.RandomNormal(stddev=1.0), name="strength")

    def call(self, x, noise):
        return x + self.strength * noise


class AdaIN(layers.Layer):
    def build(self, x_shape, styles_shape):
        self.norm = layers.GroupNormalization(groups=-1, scale=False, center=False)
        self.scale, self.shift = EqualizedDense(x_shape[-1], 1.0), EqualizedDense(x_shape[-1], 1.0)
        self.norm.build(x_shape)
        for each in (self.scale, self.shift):
            each.build(styles_shape)

    def call(self, x, styles):
        return self.scale(styles)[:, None, None] * self.norm(x) + self.shift(styles)[:, None, None]


class DeviationOverBatch(layers.Layer):
    """Adds a channel: the mean deviation over groups of 4 samples."""

    def call(self, x):
        group = tf.minimum(4, tf.shape(x)[0])
        groups = tf.reshape(x, (group, -1, *x.shape[1:]))
        deviation = tf.sqrt(tf.math.reduce_variance(groups, axis=0) + 1e-8)
        mean = tf.reduce_mean(deviation, axis=(1, 2, 3), keepdims=True)
        return tf.concat([x, tf.tile(mean, (group, *x.shape[1:3], 1))], axis=-1)


def activated(x):
    return layers.LeakyReLU(0.2)(x)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    steps: Count = 5_000
    """steps of each stage"""


class StyleGAN(Recipe):
    Options = Options
    ema = ("generator", "mapping")

    def networks(self):
        self.sizes = [START * 2**power for power in range(round(math.log2(self.data.image_size / START)) + 1)]
        self.to_rgb = {size: EqualizedConv(self.data.channels, 1, gain=1.0) for size in self.sizes}
        self.from_rgb = {size: EqualizedConv(WIDTH, 1) for size in self.sizes}
        self.synthesis = {
            size: [each for _ in range(2) for each in (EqualizedConv(WIDTH), AddNoise(), AdaIN())]
            for size in self.sizes
        }
        self.critic = {size: [EqualizedConv(WIDTH), EqualizedConv(WIDTH)] for size in self.sizes}
        self.end = [EqualizedDense(WIDTH), EqualizedDense(1, 1.0)]
        x = latents = keras.Input((LATENTS,))
        x = x * keras.ops.rsqrt(keras.ops.mean(x**2, axis=-1, keepdims=True) + 1e-8)
        for _ in range(4):
            x = activated(EqualizedDense(LATENTS, rate=0.01)(x))
        return {"mapping": keras.Model(latents, x), **self.grown(self.data.image_size)}

    def grown(self, size):
        return {"generator": self.generator(size), "critic": self.discriminator(size)}

    def generator(self, size):
        styles, level = keras.Input((LATENTS,)), keras.Input((1, 1, 1))
        x = constant = keras.Input((START, START, WIDTH))
        noises = []
        for each in self.sizes[: self.sizes.index(size) + 1]:
            before, noise = x, keras.Input((each, each, 1))
            x = layers.UpSampling2D()(x) if noises else x
            for conv, add_noise, style in zip(*[iter(self.synthesis[each])] * 3, strict=True):
                x = style(activated(add_noise(conv(x), noise)), styles)
            noises.append(noise)
        images = self.to_rgb[size](x)
        if size > START:
            coarse = layers.UpSampling2D()(self.to_rgb[size // 2](before))
            images = level * images + (1.0 - level) * coarse
        return keras.Model([constant, styles, level, *noises], images)

    def discriminator(self, size):
        images, level = keras.Input((size, size, self.data.channels)), keras.Input((1, 1, 1))
        x = activated(self.from_rgb[size](images))
        for each in self.sizes[self.sizes.index(size) :: -1]:
            first, second = self.critic[each]
            if each == START:
                x = activated(first(DeviationOverBatch()(x)))
                break
            x = layers.AveragePooling2D(2)(activated(second(activated(first(x)))))
            if each == size:
                coarse = activated(self.from_rgb[size // 2](layers.AveragePooling2D(2)(images)))
                x = level * x + (1.0 - level) * coarse
        x = activated(self.end[0](layers.Flatten()(x)))
        return keras.Model([images, level], self.end[1](x))

    def optimizers(self):
        return {n: keras.optimizers.Adam(1e-3, 0.0, 0.99, epsilon=1e-8) for n in ("mapping", "generator", "critic")}

    def stages(self):
        updates = [Update("judge", ["critic"], self.judge), Update("fool", ["mapping", "generator"], self.fool)]
        stages = []
        for size in self.sizes:
            if size > START:
                stages.append(
                    Stage(
                        f"fade_{size}",
                        self.options.steps,
                        updates,
                        True,
                        size=size,
                        schedules={"level": Schedule(0, 1)},
                    )
                )
            stages.append(
                Stage(f"size_{size}", self.options.steps, updates, True, size=size, schedules={"level": Schedule(1)})
            )
        return stages

    def draw(self, random):
        return {"latents": random.normal("latents", (LATENTS,))}

    def made(self, nets, batch, latents, size):
        count = tf.shape(latents)[0]
        noises = [batch.random.normal(f"noise_{each}", (each, each, 1)) for each in self.sizes if each <= size]
        constant = tf.ones((count, START, START, WIDTH))
        return nets.generator([constant, nets.mapping(latents), self.level(batch, count), *noises])

    def level(self, batch, count):
        return tf.fill((count, 1, 1, 1), batch.schedule("level"))

    def judge(self, nets, batch):
        level = self.level(batch, tf.shape(batch.images)[0])
        fake = self.made(nets, batch, batch.random.normal("latents", (LATENTS,)), batch.images.shape[1])
        real_scores, fake_scores = nets.critic([batch.images, level]), nets.critic([fake, level])
        mix = batch.random.uniform("mix", ())
        penalty = losses.gradient_penalty(lambda x: nets.critic([x, level]), batch.images, fake, mix)
        distance = losses.wasserstein_critic(real_scores, fake_scores)
        return distance + 10.0 * penalty + 0.001 * tf.reduce_mean(real_scores**2), {"distance": -distance}

    def fool(self, nets, batch):
        fake = self.made(nets, batch, batch.latents, batch.images.shape[1])
        level = self.level(batch, tf.shape(fake)[0])
        return -tf.reduce_mean(nets.critic([fake, level], training=False)), {}

    def sample(self, nets, batch):
        return self.made(nets, batch, batch.latents, self.data.image_size)
