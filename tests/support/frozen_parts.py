"""Recipes with a frozen network, and recipes that read something outside of their networks."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tiny import Tiny


def make_features(seed=0):
    """A feature network of 8x8 pictures, with statistics that are not those of its data, and dropout."""
    keras.utils.set_random_seed(seed)
    parts = [layers.Conv2D(4, 3, activation="relu"), layers.BatchNormalization(), layers.Dropout(0.5), layers.Flatten()]
    network = keras.Sequential([keras.Input((8, 8, 1)), *parts, layers.Dense(6)])
    network.layers[1].moving_mean.assign(0.1 * np.arange(1, 5))
    return network


def write_vgg19():
    """As docs/recipes.md shows."""
    vgg = keras.applications.VGG19(include_top=False)  # Keras downloads the weights
    pictures = keras.Input((None, None, 3))
    seen = keras.applications.vgg19.preprocess_input(127.5 * (pictures + 1))
    features = keras.Model(vgg.input, vgg.get_layer("block5_conv4").output)(seen)
    keras.Model(pictures, features).save("vgg19.keras")


class Perceptual(Tiny):
    """The generator's loss compares features of a network that is loaded from a file in the working folder."""

    file = "features.keras"

    def networks(self):
        features = keras.models.load_model(self.file)
        features.trainable = False
        return {**super().networks(), "features": features}

    def fool(self, nets, batch):
        loss, _ = super().fool(nets, batch)
        return loss + self.distance(nets, batch.images, nets.generator(batch.latents)), {}

    def distance(self, nets, images, fake):
        return tf.reduce_mean(tf.square(nets.features(images) - nets.features(fake)))


class Judged(Perceptual):
    """Held-out pictures are judged by the frozen network, too."""

    def evaluate(self, nets, batch):
        return {"norm": tf.norm(nets.features(batch.images), axis=1)}


class Layerwise(Perceptual):
    """Frozen layer by layer; each update uses the features, in a branch too."""

    def networks(self):
        networks = super().networks()
        networks["features"].trainable = True
        for layer in networks["features"].layers:
            layer.trainable = False
        return networks

    def distance(self, nets, images, fake):
        return tf.cond(
            tf.reduce_mean(fake) > -9, lambda: super(Layerwise, self).distance(nets, images, fake), lambda: 0.0
        )


AT_IMPORT = keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), layers.Dense(6)])
AT_IMPORT.trainable = False


class Unseeded(Tiny):
    """Features of a network of the import, scaled by a constant and by a variable whose numbers no seed gives."""

    def __init__(self, options, data):
        super().__init__(options, data)
        scale = np.random.default_rng().uniform(size=6).astype(np.float32)
        self.scale = tf.Variable(scale, trainable=False, name="scale")
        self.mask = tf.constant(np.random.uniform(size=(8, 8, 1)).astype(np.float32))

    def fool(self, nets, batch):
        loss, _ = super().fool(nets, batch)
        apart = AT_IMPORT(self.mask * (batch.images - nets.generator(batch.latents)))
        return loss + tf.reduce_mean(tf.square(apart * self.scale)), {}
