"""keras.io's gan_ada: augmentation layers whose probability follows the discriminator's accuracy."""

import keras
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Recipe, Stage, State, Update

RUN = "--data synthetic --image-size 16 --channels 3 --sync-batch-norm --ema-decay 0.99"
PROGRAM = {"name": "keras.io gan_ada", "needs": "random layers, together, state and control, ema", "run": RUN}
LATENTS, TARGET, STEPS_TO_FULL = 16, 0.85, 1000


def binary(labels, logits):
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))


class Augmenter(layers.Layer):
    """Each picture is augmented with a probability, which is an input: hvdgan keeps it as state."""

    def __init__(self):
        super().__init__()
        self.augment = keras.Sequential(
            [
                layers.RandomFlip("horizontal"),
                layers.RandomTranslation(0.125, 0.125, interpolation="nearest"),
                layers.RandomRotation(0.125, interpolation="nearest"),
                layers.RandomZoom((-0.25, 0.0), (-0.25, 0.0), interpolation="nearest"),
            ]
        )

    def build(self, images_shape, probability_shape):
        self.augment.build(images_shape)

    def call(self, images, probability, training=None):
        if not training:
            return images
        chosen = tf.random.uniform((tf.shape(images)[0], 1, 1, 1)) < probability
        return tf.where(chosen, self.augment(images, training=True), images)


def generator(size, channels, width=8):
    latents = keras.Input((LATENTS,))
    x = layers.Dense(size // 8 * (size // 8) * width, use_bias=False)(latents)
    x = layers.ReLU()(layers.BatchNormalization(scale=False)(x))
    x = layers.Reshape((size // 8, size // 8, width))(x)
    for _ in range(2):
        x = layers.Conv2DTranspose(width, 4, strides=2, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization(scale=False)(x))
    x = layers.Conv2DTranspose(channels, 4, strides=2, padding="same", activation="sigmoid")(x)
    return keras.Model(latents, x)


def discriminator(shape, width=8):
    x = images = keras.Input(shape)
    for _ in range(3):
        x = layers.Conv2D(width, 4, strides=2, padding="same", use_bias=False)(x)
        x = layers.LeakyReLU(negative_slope=0.2)(layers.BatchNormalization(scale=False)(x))
    x = layers.Dense(1)(layers.Dropout(0.4)(layers.Flatten()(x)))
    return keras.Model(images, x)


def augmenter(shape):
    images, probability = keras.Input(shape), keras.Input((1, 1, 1))
    return keras.Model([images, probability], Augmenter()(images, probability))


class AdaptiveGAN(Recipe):
    ema = ("generator",)

    def networks(self):
        shape = self.data.shape
        networks = {"generator": generator(shape[0], shape[-1]), "discriminator": discriminator(shape)}
        return {**networks, "augmenter": augmenter(shape)}

    def optimizers(self):
        return {name: keras.optimizers.Adam(2e-4, 0.5) for name in ("generator", "discriminator")}

    def stages(self):
        updates = [Update("fool", ["generator"], self.fool), Update("judge", ["discriminator"], self.judge)]
        return [Stage("train", 10_000, updates, together=True)]

    def state(self):
        return {"probability": State(0.0)}

    def control(self, state, metrics):
        error = metrics["judge/accuracy"] - TARGET
        return {"probability": tf.clip_by_value(state.probability + error / STEPS_TO_FULL, 0.0, 1.0)}

    def draw(self, random):
        return {"latents": random.normal("latents", (LATENTS,))}

    def judged(self, nets, batch, images):
        probability = tf.fill((tf.shape(images)[0], 1, 1, 1), batch.state.probability)
        return nets.discriminator(nets.augmenter([images, probability], training=True), training=True)

    def judge(self, nets, batch):
        # Pictures of hvdgan are in [-1, 1], and the program's in [0, 1].
        real = self.judged(nets, batch, (batch.images + 1.0) / 2.0)
        fake = self.judged(nets, batch, nets.generator(batch.latents, training=True))
        loss = 0.5 * (binary(tf.ones_like(real), real) + binary(tf.zeros_like(fake), fake))
        return loss, {"accuracy": tf.reduce_mean(0.5 * (1.0 + tf.sign(real)))}

    def fool(self, nets, batch):
        fake = self.judged(nets, batch, nets.generator(batch.latents, training=True))
        return binary(tf.ones_like(fake), fake), {}

    def sample(self, nets, batch):
        return 2.0 * nets.generator(batch.latents) - 1.0
