"""Keras-GAN's infogan: discriminator and recogniser share a body, which the generator's step does not train."""

import keras
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Recipe, Stage, Update

RUN = "--image-size 16 --sync-batch-norm"
PROGRAM = {"name": "Keras-GAN infogan", "needs": "random layers, training=False", "run": RUN}
LATENTS = 8


def information(codes, guess):
    """The program takes the first row of y_pred for all samples; this is the mean over them."""
    surprise = -tf.reduce_mean(tf.reduce_sum(tf.math.log(guess + 1e-8) * codes, axis=1))
    return surprise - tf.reduce_mean(tf.reduce_sum(tf.math.log(codes + 1e-8) * codes, axis=1))


class InfoGAN(Recipe):
    def networks(self):
        size, classes = self.data.image_size // 4, self.data.num_classes
        inputs = keras.Input((LATENTS + classes,))
        x = layers.Reshape((size, size, 16))(layers.Dense(size * size * 16, activation="relu")(inputs))
        x = layers.BatchNormalization(momentum=0.8)(x)
        for filters in (16, 8):
            x = layers.Conv2D(filters, 3, padding="same")(layers.UpSampling2D()(x))
            x = layers.BatchNormalization(momentum=0.8)(layers.Activation("relu")(x))
        x = layers.Conv2D(self.data.channels, 3, padding="same", activation="tanh")(x)
        body = [keras.Input(self.data.shape)]
        for number, filters in enumerate((4, 8, 16, 32)):
            body += [layers.Conv2D(filters, 3, strides=2, padding="same"), layers.LeakyReLU(0.2), layers.Dropout(0.25)]
            body += [layers.BatchNormalization(momentum=0.8)] * bool(number)
        body = keras.Sequential([*body, layers.Flatten()])
        inner = keras.Input(body.output_shape[1:])
        recogniser = layers.Dense(classes, activation="softmax")(layers.Dense(16, activation="relu")(inner))
        return {
            "generator": keras.Model(inputs, x),
            "body": body,
            "discriminator": keras.Sequential([keras.Input(inner.shape[1:]), layers.Dense(1, activation="sigmoid")]),
            "recogniser": keras.Model(inner, recogniser),
        }

    def optimizers(self):
        names = ("generator", "body", "discriminator", "recogniser")
        return {name: keras.optimizers.Adam(2e-4, 0.5) for name in names}

    def stages(self):
        judge = ["body", "discriminator"]
        updates = [
            Update("real", judge, self.real),
            Update("fake", judge, self.fake),
            Update("fool", ["generator", "recogniser"], self.fool),
        ]
        return [Stage("train", 50_000, updates)]

    def draw(self, random):
        classes = random.integers("classes", (), self.data.num_classes)
        return {"latents": random.normal("latents", (LATENTS,)), "classes": classes}

    def inputs(self, batch):
        return tf.concat([batch.latents, tf.one_hot(batch.classes, self.data.num_classes)], axis=1)

    def real(self, nets, batch):
        valid = nets.discriminator(nets.body(batch.images, training=True), training=True)
        return tf.reduce_mean(keras.losses.binary_crossentropy(tf.ones_like(valid), valid)), {}

    def fake(self, nets, batch):
        fake = nets.generator(self.inputs(batch), training=False)
        valid = nets.discriminator(nets.body(fake, training=True), training=True)
        return tf.reduce_mean(keras.losses.binary_crossentropy(tf.zeros_like(valid), valid)), {}

    def fool(self, nets, batch):
        features = nets.body(nets.generator(self.inputs(batch), training=True), training=True)
        valid, guess = nets.discriminator(features), nets.recogniser(features)
        fool = tf.reduce_mean(keras.losses.binary_crossentropy(tf.ones_like(valid), valid))
        found = information(tf.one_hot(batch.classes, self.data.num_classes), guess)
        return fool + found, {"information": found}

    def sample(self, nets, batch):
        return nets.generator(self.inputs(batch))
