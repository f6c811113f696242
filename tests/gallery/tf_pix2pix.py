"""TensorFlow's tutorial pix2pix: a U-Net with Dropout; both gradients are computed before either is applied."""

import keras
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Recipe, Stage, Update, losses, metrics

RUN = "--image-size 16 --data synthetic --channels 3 --sync-batch-norm"
PROGRAM = {"name": "TF pix2pix", "needs": "random layers, together, pairs", "run": RUN}
cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)


def conv(layer, filters, strides=2, **options):
    weights = keras.initializers.RandomNormal(stddev=0.02)
    return layer(filters, 4, strides, kernel_initializer=weights, **{"padding": "same", "use_bias": False, **options})


def downsample(filters, norm=layers.BatchNormalization):
    return keras.Sequential([conv(layers.Conv2D, filters), *([norm()] if norm else []), layers.LeakyReLU(0.3)])


def upsample(filters, dropout=False, norm=layers.BatchNormalization):
    dropped = [layers.Dropout(0.5)] if dropout else []
    return keras.Sequential([conv(layers.Conv2DTranspose, filters), norm(), *dropped, layers.ReLU()])


def unet(shape, norm=layers.BatchNormalization):
    """Four halvings; the tutorial has eight, for pictures of 256 pixels."""
    images = keras.Input(shape)
    skips, x = [], images
    for number, filters in enumerate((4, 8, 8, 8)):
        x = downsample(filters, norm if number else None)(x)
        skips.append(x)
    for skip, dropout in zip(skips[-2::-1], (True, True, False), strict=True):
        x = layers.Concatenate()([upsample(skip.shape[-1], dropout, norm)(x), skip])
    return keras.Model(images, conv(layers.Conv2DTranspose, shape[-1], use_bias=True, activation="tanh")(x))


def patches(shape, norm=layers.BatchNormalization, *, paired=True):
    inputs, images = keras.Input(shape), keras.Input(shape)
    x = layers.Concatenate()([inputs, images]) if paired else images
    x = downsample(8, norm)(downsample(4, None)(x))
    x = conv(layers.Conv2D, 16, 1, padding="valid")(layers.ZeroPadding2D()(x))
    x = layers.ZeroPadding2D()(layers.LeakyReLU(0.3)(norm()(x)))
    x = conv(layers.Conv2D, 1, 1, padding="valid", use_bias=True)(x)
    return keras.Model([inputs, images] if paired else images, x)


class Pix2Pix(Recipe):
    paired = True
    shows_data = True

    def networks(self):
        return {"generator": unet(self.data.shape), "discriminator": patches(self.data.shape)}

    def optimizers(self):
        return {name: keras.optimizers.Adam(2e-4, beta_1=0.5) for name in ("generator", "discriminator")}

    def stages(self):
        updates = [Update("fool", ["generator"], self.fool), Update("judge", ["discriminator"], self.judge)]
        return [Stage("train", 40_000, updates, together=True)]

    def fool(self, nets, batch):
        made = nets.generator(batch.inputs, training=True)
        scores = nets.discriminator([batch.inputs, made], training=True)
        error = losses.absolute_error(batch.images, made)
        return cross_entropy(tf.ones_like(scores), scores) + 100.0 * error, {"l1": error}

    def judge(self, nets, batch):
        real = nets.discriminator([batch.inputs, batch.images], training=True)
        fake = nets.discriminator([batch.inputs, nets.generator(batch.inputs, training=True)], training=True)
        return cross_entropy(tf.ones_like(real), real) + cross_entropy(tf.zeros_like(fake), fake), {}

    def sample(self, nets, batch):
        return tf.concat([batch.inputs, nets.generator(batch.inputs), batch.images], axis=2)

    def evaluate(self, nets, batch):
        return {"l1": metrics.l1(batch.images, nets.generator(batch.inputs))}
