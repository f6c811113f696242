"""keras.io's gaugan: pictures from maps of classes; three arrays a sample, a sampling layer, SPADE, features of VGG."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Recipe, Stage, Update

RUN = "--data {data}:images --arrays map,labels --values-of 'map=range:0,255;labels=onehot:12'"
PROGRAM = {
    "name": "keras.io gaugan",
    "needs": "random layers, arrays, frozen network",
    "run": RUN,
    "alike": False,  # SPADE normalises by the moments of the batch
}
LATENTS, CLASSES, SIZE = 8, 12, 16


def arrays():
    """Pictures, coloured maps, and the class of each pixel."""
    random = np.random.default_rng(0)
    labels = random.integers(0, CLASSES, (24, SIZE, SIZE))
    colours = random.integers(0, 256, (CLASSES, 3), np.uint8)
    return {"images": random.integers(0, 256, (24, SIZE, SIZE, 3), np.uint8), "map": colours[labels], "labels": labels}


class Sampler(layers.Layer):
    """The program gives the layer a batch size; here it is that of its inputs, which is a rank's slice."""

    def __init__(self):
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        mean, log_variance = inputs
        noise = keras.random.normal(keras.ops.shape(mean), seed=self.seed_generator)
        return mean + keras.ops.exp(0.5 * log_variance) * noise


class SPADE(layers.Layer):
    """Spatially adaptive normalisation (Park et al. 2019), with the batch's own moments in inference, too."""

    def __init__(self, filters):
        super().__init__()
        self.conv = layers.Conv2D(16, 3, padding="same", activation="relu")
        self.gamma, self.beta = (layers.Conv2D(filters, 3, padding="same") for _ in range(2))

    def call(self, x, mask):
        features = self.conv(tf.image.resize(mask, x.shape[1:3], "nearest"))
        mean, variance = tf.nn.moments(x, axes=(0, 1, 2), keepdims=True)
        return self.gamma(features) * (x - mean) / tf.sqrt(variance + 1e-5) + self.beta(features)


def residual_block(x, mask, filters):
    y = layers.Conv2D(filters, 3, padding="same")(layers.LeakyReLU(0.2)(SPADE(x.shape[-1])(x, mask)))
    y = layers.Conv2D(filters, 3, padding="same")(layers.LeakyReLU(0.2)(SPADE(filters)(y, mask)))
    if x.shape[-1] != filters:
        x = layers.Conv2D(filters, 3, padding="same")(layers.LeakyReLU(0.2)(SPADE(x.shape[-1])(x, mask)))
    return layers.Add()([x, y])


def downsample(x, filters, strides=2, *, norm=True):
    x = layers.Conv2D(filters, 4, strides, padding="same", use_bias=False)(x)
    return layers.LeakyReLU(0.2)(layers.GroupNormalization(groups=-1)(x) if norm else x)


def encoder(shape):
    images = keras.Input(shape)
    x = downsample(downsample(images, 8, norm=False), 16)
    x = layers.Flatten()(x)
    return keras.Model(images, [layers.Dense(LATENTS)(x), layers.Dense(LATENTS)(x)])


def generator(shape):
    latents, mask = keras.Input((LATENTS,)), keras.Input((*shape[:2], CLASSES))
    x = layers.Reshape((4, 4, 16))(layers.Dense(4 * 4 * 16)(latents))
    for filters in (16, 8):
        x = layers.UpSampling2D()(residual_block(x, mask, filters))
    x = layers.Conv2D(shape[-1], 4, padding="same", activation="tanh")(layers.LeakyReLU(0.2)(x))
    return keras.Model([latents, mask], x)


def discriminator(shape):
    """The outputs are the features of each layer, and the scores last."""
    maps, images = keras.Input(shape), keras.Input(shape)
    outputs = [downsample(layers.Concatenate()([maps, images]), 8, norm=False)]
    for filters, strides in ((16, 2), (16, 1)):
        outputs.append(downsample(outputs[-1], filters, strides))
    return keras.Model([maps, images], [*outputs, layers.Conv2D(1, 4)(outputs[-1])])


def features(shape):
    """Stands for VGG19 and its ImageNet weights: a frozen network with outputs of several layers."""
    images = keras.Input(shape)
    outputs = [layers.Conv2D(4, 3, padding="same", activation="relu")(images)]
    outputs.append(layers.Conv2D(8, 3, 2, padding="same", activation="relu")(outputs[0]))
    made = keras.Model(images, outputs)
    made.trainable = False
    return made


class GauGAN(Recipe):
    shows_data = True

    def networks(self):
        shape = self.data.shape
        mean, log_variance = keras.Input((LATENTS,)), keras.Input((LATENTS,))
        return {
            "encoder": encoder(shape),
            "sampler": keras.Model([mean, log_variance], Sampler()([mean, log_variance])),
            "generator": generator(shape),
            "discriminator": discriminator(shape),
            "vgg": features(shape),
        }

    def optimizers(self):
        rates = {"encoder": 1e-4, "generator": 1e-4, "discriminator": 4e-4}
        return {name: keras.optimizers.Adam(rate, beta_1=0.0, beta_2=0.999) for name, rate in rates.items()}

    def stages(self):
        judge = Update("judge", ["discriminator"], self.judge)
        return [Stage("train", 10_000, [judge, Update("fool", ["encoder", "generator"], self.fool)])]

    def draw(self, random):
        return {"latents": random.normal("latents", (LATENTS,))}

    def judge(self, nets, batch):
        latents = nets.sampler(nets.encoder(batch.images, training=True))
        fake = nets.generator([latents, batch.arrays["labels"]], training=True)
        fake_scores = nets.discriminator([batch.arrays["map"], fake], training=True)[-1]
        real_scores = nets.discriminator([batch.arrays["map"], batch.images], training=True)[-1]
        hinge = tf.reduce_mean(tf.nn.relu(1.0 + fake_scores)) + tf.reduce_mean(tf.nn.relu(1.0 - real_scores))
        return 0.5 * hinge, {}

    def fool(self, nets, batch):
        mean, log_variance = nets.encoder(batch.images, training=True)
        fake = nets.generator([nets.sampler([mean, log_variance]), batch.arrays["labels"]], training=True)
        *real_features, _ = nets.discriminator([batch.arrays["map"], batch.images])
        *fake_features, scores = nets.discriminator([batch.arrays["map"], fake])
        divergence = -0.5 * tf.reduce_mean(tf.reduce_sum(1.0 + log_variance - mean**2 - tf.exp(log_variance), axis=1))
        matching = sum(tf.reduce_mean(tf.abs(a - b)) for a, b in zip(real_features, fake_features, strict=True))
        pairs = zip(nets.vgg(batch.images), nets.vgg(fake), strict=True)
        perceptual = sum(tf.reduce_mean(tf.abs(a - b)) for a, b in pairs)
        loss = -tf.reduce_mean(scores) + 0.1 * divergence + 10.0 * matching + 0.1 * perceptual
        return loss, {"divergence": divergence}

    def sample(self, nets, batch):
        return nets.generator([batch.latents, batch.arrays["labels"]])
