"""Keras' old example mnist_acgan: soft labels, sample weights, fakes by predict(), two latents a sample."""

import keras
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Recipe, Stage, Update

RUN = "--image-size 16 --sync-batch-norm"
PROGRAM = {"name": "keras mnist_acgan", "needs": "random layers, training=False", "run": RUN}
LATENTS, SOFT = 16, 0.95


class ACGAN(Recipe):
    def networks(self):
        start, classes = self.data.image_size // 4 - 2, self.data.num_classes
        latents, labels = keras.Input((LATENTS,)), keras.Input((), dtype="int32")
        x = layers.Multiply()([latents, layers.Embedding(classes, LATENTS)(labels)])
        x = layers.Reshape((start, start, 24))(layers.Dense(start * start * 24, activation="relu")(x))
        x = layers.Conv2DTranspose(12, 3, activation="relu")(x)
        x = layers.Conv2DTranspose(6, 5, 2, padding="same", activation="relu")(layers.BatchNormalization()(x))
        options = {"strides": 2, "padding": "same", "activation": "tanh"}
        x = layers.Conv2DTranspose(self.data.channels, 5, **options)(layers.BatchNormalization()(x))
        images = keras.Input(self.data.shape)
        y = images
        for filters, strides in ((4, 2), (8, 1), (16, 2), (32, 1)):
            y = layers.LeakyReLU(0.2)(layers.Conv2D(filters, 3, strides, padding="same")(y))
            y = layers.Dropout(0.3)(y)
        y = layers.Flatten()(y)
        outputs = [layers.Dense(1, "sigmoid")(y), layers.Dense(classes, "softmax")(y)]
        return {"generator": keras.Model([latents, labels], x), "discriminator": keras.Model(images, outputs)}

    def optimizers(self):
        return {name: keras.optimizers.Adam(2e-4, beta_1=0.5) for name in ("generator", "discriminator")}

    def stages(self):
        updates = [Update("judge", ["discriminator"], self.judge), Update("fool", ["generator"], self.fool)]
        return [Stage("train", 10_000, updates)]

    def draw(self, random):
        latents, classes = self.drawn(random, "D")
        return {"latents": latents, "classes": classes}

    def drawn(self, random, key):
        latents = 2.0 * random.uniform(f"latents_{key}", (LATENTS,)) - 1.0
        return latents, random.integers(f"classes_{key}", (), self.data.num_classes)

    def judge(self, nets, batch):
        fake = nets.generator([batch.latents, batch.classes], training=False)
        valid, guess = nets.discriminator(tf.concat([batch.images, fake], axis=0), training=True)
        real = tf.ones_like(batch.labels, tf.float32)
        labels = tf.concat([batch.labels, batch.classes], axis=0)
        validity = keras.losses.binary_crossentropy(tf.concat([SOFT * real, 0.0 * real], axis=0)[:, None], valid)
        # The class of real pictures counts twice, that of fakes not at all.
        weights = tf.concat([2.0 * real, 0.0 * real], axis=0)
        classes = weights * keras.losses.sparse_categorical_crossentropy(labels, guess)
        return tf.reduce_mean(validity) + tf.reduce_mean(classes), {}

    def fool(self, nets, batch):
        # The program steps its generator on twice the batch. Join as here, not sample by sample: then each row has the
        # same mask of Dropout on any number of ranks.
        (latents, classes), (more, others) = self.drawn(batch.random, "G"), self.drawn(batch.random, "G2")
        latents, classes = tf.concat([latents, more], axis=0), tf.concat([classes, others], axis=0)
        valid, guess = nets.discriminator(nets.generator([latents, classes], training=True), training=True)
        validity = keras.losses.binary_crossentropy(SOFT * tf.ones_like(valid), valid)
        classes = keras.losses.sparse_categorical_crossentropy(classes, guess)
        return tf.reduce_mean(validity) + tf.reduce_mean(classes), {}

    def sample(self, nets, batch):
        return nets.generator([batch.latents, batch.classes])
