"""Recipes that break one of hvdgan's promises each, in ways that no build and no dry run can see."""

import itertools

import keras
import tensorflow as tf
from keras import layers, ops

from hvdgan.launching.launched import launched
from tiny import Tiny


class NoMean(Tiny):
    """A loss that is no mean over samples."""

    def judge(self, nets, batch):
        real, fake = nets.discriminator(batch.images), nets.discriminator(nets.generator(batch.latents))
        return tf.sqrt(tf.reduce_mean(tf.square(real - 1.0))) + tf.reduce_mean(tf.square(fake)), {}


class NoMeanLater(Tiny):
    """The same in the second update."""

    def fool(self, nets, batch):
        return tf.sqrt(tf.reduce_mean(tf.square(nets.discriminator(nets.generator(batch.latents)) - 1.0))), {}


class Follows(layers.Layer):
    """Keeps the mean of the last samples, which it subtracts from the next ones."""

    def build(self, shape):
        self.seen = self.add_weight(shape=shape[1:], initializer="zeros", trainable=False, name="seen")

    def call(self, x, training=False):
        centred = x - ops.stop_gradient(self.seen)
        if training:
            self.seen.assign(ops.mean(x, axis=0))
        return centred


class OwnState(Tiny):
    """State of a layer that follows the samples of its rank."""

    def networks(self):
        networks = super().networks()
        *first, last = networks["discriminator"].layers
        shape = networks["discriminator"].input_shape[1:]
        networks["discriminator"] = keras.Sequential(
            [keras.Input(shape), *first, Follows(), last], name="discriminator"
        )
        return networks


class Stray(Tiny):
    """A loss that changes a network that its update does not own."""

    def networks(self):
        self.made = super().networks()
        return self.made

    def fool(self, nets, batch):
        kernel = self.made["discriminator"].trainable_variables[0]
        kernel.assign(0.5 * kernel)
        return super().fool(nets, batch)


class OfItsRank(Tiny):
    """Samples that depend on the number of ranks."""

    def sample(self, nets, batch):
        return nets.generator(batch.latents) / launched()[1]


class HidesNaN(Tiny):
    """A loss that leaves out numbers that are not finite."""

    def judge(self, nets, batch):
        batch.images = tf.where(tf.math.is_finite(batch.images), batch.images, 0.0)
        return super().judge(nets, batch)


class Forgets(Tiny):
    """A loss that counts its calls in Python, which no checkpoint holds."""

    def judge(self, nets, batch):
        count = itertools.count(1)
        self.factor = lambda: float(next(count))
        loss, metrics = super().judge(nets, batch)
        return loss * tf.ensure_shape(tf.py_function(self.factor, [], tf.float32), ()), metrics


class NotServed(Tiny):
    """Samples that need to know their number before they are computed."""

    def sample(self, nets, batch):
        return nets.generator(batch.latents) / float(batch.latents.shape[0])


class Several(NoMean, Stray, OfItsRank, HidesNaN):
    """Several of them at once."""

    def judge(self, nets, batch):
        batch.images = tf.where(tf.math.is_finite(batch.images), batch.images, 0.0)
        return NoMean.judge(self, nets, batch)
