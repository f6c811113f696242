"""Recipes that each make one mistake in a loss; the line that an error must name ends with `# here`."""

import numpy as np
import tensorflow as tf

from tiny import Tiny


class NoPair(Tiny):
    def fool(self, nets, batch):  # here
        return tf.reduce_mean(nets.discriminator(nets.generator(batch.latents)))


class Triple(Tiny):
    def fool(self, nets, batch):  # here
        return *super().fool(nets, batch), nets


class NoReturn(Tiny):
    def fool(self, nets, batch):  # here
        tf.reduce_mean(nets.discriminator(nets.generator(batch.latents)))


class NoLoss(Tiny):
    def fool(self, nets, batch):  # here
        return None, {}


class NoScalar(Tiny):
    def fool(self, nets, batch):  # here
        return nets.discriminator(nets.generator(batch.latents)), {}


class WholeNumber(Tiny):
    def fool(self, nets, batch):  # here
        return 3, {}


class TrainingGiven(Tiny):
    def fool(self, nets, batch):
        fake = nets.generator(batch.latents, training=False)  # here
        return tf.reduce_mean(nets.discriminator(fake)), {}


class UnknownNetwork(Tiny):
    def fool(self, nets, batch):
        return tf.reduce_mean(nets.critic(nets.generator(batch.latents))), {}  # here


class NetworkByKey(Tiny):
    def fool(self, nets, batch):
        return tf.reduce_mean(nets["discriminator"](nets.generator(batch.latents))), {}  # here


class Float(Tiny):
    def fool(self, nets, batch):
        loss, _ = super().fool(nets, batch)
        return loss, {"real": float(loss)}  # here


class Numpy(Tiny):
    def fool(self, nets, batch):
        loss, _ = super().fool(nets, batch)
        return loss, {"real": loss.numpy()}  # here


class NumpyMean(Tiny):
    def fool(self, nets, batch):
        loss, _ = super().fool(nets, batch)
        return loss, {"real": np.mean(loss)}  # here


class If(Tiny):
    def fool(self, nets, batch):
        loss, _ = super().fool(nets, batch)
        if loss > 1.0:  # here
            loss = loss * 0.5
        return loss, {}


class NoScalarMetric(Tiny):
    def fool(self, nets, batch):  # here
        fake = nets.discriminator(nets.generator(batch.latents))
        return tf.reduce_mean(fake), {"fake": fake}


class NoNumberMetric(Tiny):
    def fool(self, nets, batch):  # here
        return super().fool(nets, batch)[0], {"kind": "hinge"}


class MetricsList(Tiny):
    def fool(self, nets, batch):  # here
        return super().fool(nets, batch)[0], [1.0]


class NumberedMetrics(Tiny):
    def fool(self, nets, batch):  # here
        return super().fool(nets, batch)[0], {1: 1.0}


class UnknownName(Tiny):
    def fool(self, nets, batch):
        return reduce_mean(nets.generator(batch.latents)), {}  # here # noqa: F821


class UnknownDraw(Tiny):
    def fool(self, nets, batch):
        return tf.reduce_mean(nets.generator(batch.noise)), {}  # here


class Shapes(Tiny):
    def fool(self, nets, batch):
        fake = nets.generator(batch.latents)
        return tf.reduce_mean(fake * tf.ones((3, 5, 7, 1))), {}  # here


class LayerShapes(Tiny):
    def fool(self, nets, batch):
        return tf.reduce_mean(nets.generator(batch.images)), {}  # here


class Deep(Tiny):
    """The innermost line is in a function that the loss calls."""

    def fool(self, nets, batch):
        return Deep.mean(nets.generator(batch.latents)), {}

    @staticmethod
    def mean(images):
        return tf.reduce_mean(images, axis=9)  # here


class Compiled(Tiny):
    """AutoGraph reports its own copy of the code."""

    @tf.function
    def fool(self, nets, batch):
        fake = nets.generator(batch.latents)
        return tf.reduce_mean(fake, axis=9), {}  # here


class FewArguments(Tiny):
    def fool(self, nets):  # here
        return tf.constant(1.0), {}


class Untouched(Tiny):
    def fool(self, nets, batch):  # here
        return tf.reduce_mean(nets.discriminator(batch.images)), {}
