"""keras.io's cyclegan: residual generators, four networks whose gradients are all computed before any is applied."""

import keras
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Recipe, Stage, Update, losses

RUN = "--image-size 16 --channels 1 --data digits --data synthetic"
PROGRAM = {"name": "keras.io cyclegan", "needs": "domains, together", "run": RUN}
CYCLE, IDENTITY = 10.0, 0.5


class ReflectionPadding(layers.Layer):
    def __init__(self, width):
        super().__init__()
        self.width = width

    def call(self, x):
        return tf.pad(x, [[0, 0], [self.width, self.width], [self.width, self.width], [0, 0]], "REFLECT")


def normalised(x, activation="relu"):
    # GroupNormalization(groups=-1) was tfa.layers.InstanceNormalization.
    x = layers.GroupNormalization(groups=-1, gamma_initializer=keras.initializers.RandomNormal(stddev=0.02))(x)
    return layers.Activation(activation)(x) if activation else x


def conv(x, filters, kernel, strides=1, padding="same", layer=layers.Conv2D):
    weights = keras.initializers.RandomNormal(stddev=0.02)
    return layer(filters, kernel, strides, padding, kernel_initializer=weights, use_bias=False)(x)


def generator(shape, filters=4, blocks=2, name=None):
    images = keras.Input(shape)
    x = normalised(conv(ReflectionPadding(3)(images), filters, 7, padding="valid"))
    for _ in range(2):
        filters *= 2
        x = normalised(conv(x, filters, 3, 2))
    for _ in range(blocks):
        y = normalised(conv(ReflectionPadding(1)(x), filters, 3, padding="valid"))
        y = normalised(conv(ReflectionPadding(1)(y), filters, 3, padding="valid"), None)
        x = layers.Add()([x, y])
    for _ in range(2):
        filters //= 2
        x = normalised(conv(x, filters, 3, 2, layer=layers.Conv2DTranspose))
    x = layers.Conv2D(shape[-1], 7, activation="tanh")(ReflectionPadding(3)(x))
    return keras.Model(images, x, name=name)


def discriminator(shape, filters=4, name=None):
    images = keras.Input(shape)
    x = layers.LeakyReLU(negative_slope=0.2)(layers.Conv2D(filters, 4, 2, padding="same")(images))
    for strides in (2, 2, 1):
        filters *= 2
        x = layers.LeakyReLU(negative_slope=0.2)(normalised(conv(x, filters, 4, strides), None))
    return keras.Model(images, layers.Conv2D(1, 4, padding="same")(x), name=name)


class CycleGAN(Recipe):
    """generator_Y makes Y of X, generator_X makes X of Y."""

    domains = ("X", "Y")
    shows_data = True

    def networks(self):
        makers = {name: generator(self.data.shape, name=name) for name in ("generator_X", "generator_Y")}
        return makers | {n: discriminator(self.data.shape, name=n) for n in ("discriminator_X", "discriminator_Y")}

    def optimizers(self):
        names = ("generator_X", "generator_Y", "discriminator_X", "discriminator_Y")
        return {name: keras.optimizers.Adam(2e-4, beta_1=0.5) for name in names}

    def stages(self):
        updates = [
            Update("make_Y", ["generator_Y"], lambda nets, batch: self.make(nets, batch, "Y", "X")),
            Update("make_X", ["generator_X"], lambda nets, batch: self.make(nets, batch, "X", "Y")),
            Update("judge_X", ["discriminator_X"], lambda nets, batch: self.judge(nets, batch, "X", "Y")),
            Update("judge_Y", ["discriminator_Y"], lambda nets, batch: self.judge(nets, batch, "Y", "X")),
        ]
        return [Stage("train", 10_000, updates, together=True)]

    def make(self, nets, batch, name, other):
        there, back = getattr(nets, f"generator_{name}"), getattr(nets, f"generator_{other}")
        real = batch.domains[name].images
        made = there(batch.domains[other].images, training=True)
        scores = getattr(nets, f"discriminator_{name}")(made, training=True)
        fool = losses.squared_error(tf.ones_like(scores), scores)
        cycle = losses.absolute_error(real, there(back(real, training=True), training=True))
        identity = losses.absolute_error(real, there(real, training=True))
        return fool + CYCLE * cycle + CYCLE * IDENTITY * identity, {"cycle": cycle}

    def judge(self, nets, batch, name, other):
        judge, real = getattr(nets, f"discriminator_{name}"), batch.domains[name].images
        fake = getattr(nets, f"generator_{name}")(batch.domains[other].images, training=True)
        real_scores, fake_scores = judge(real, training=True), judge(fake, training=True)
        right = losses.squared_error(tf.ones_like(real_scores), real_scores)
        return 0.5 * (right + losses.squared_error(tf.zeros_like(fake_scores), fake_scores)), {}

    def sample(self, nets, batch):
        return tf.concat([batch.domains["X"].images, nets.generator_Y(batch.domains["X"].images)], axis=2)
