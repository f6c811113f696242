"""A recipe that makes waves of spectrograms of two numbers; tests name it as tiny_waves:Waves."""

import keras
import tensorflow as tf
from keras import layers

from hvdgan.recipe import Recipe, Stage, Update

HOP = 4


class Waves(Recipe):
    """Each spectrogram has the mean and the largest of four samples."""

    shows_data = True

    def networks(self):
        given = keras.Input((None, 2))
        return {"generator": keras.Model(given, layers.Reshape((-1, 1))(layers.Dense(HOP, activation="tanh")(given)))}

    def optimizers(self):
        return {"generator": keras.optimizers.Adam(0.1)}

    def stages(self):
        return [Stage("fit", 4, [Update("fit", ["generator"], self.fit)])]

    def made(self, nets, batch):
        parts = tf.reshape(batch.images, (batch.images.shape[0], -1, HOP))
        return nets.generator(tf.stack([tf.reduce_mean(parts, 2), tf.reduce_max(parts, 2)], 2))

    def fit(self, nets, batch):
        return tf.reduce_mean((self.made(nets, batch) - batch.images) ** 2), {"rate": tf.constant(self.data.rate)}

    def sample(self, nets, batch):
        return self.made(nets, batch)

    def translate(self, nets, images, domain, random):
        return nets.generator(images)
