"""Recipes whose pictures have several ranges, as ranges:Bytes."""

import tensorflow as tf

from tiny import Tiny


class OfTanh(Tiny):
    """As they should be."""


class Bytes(Tiny):
    def sample(self, nets, batch):
        return 127.5 * (nets.generator(batch.latents) + 1.0)


class Sigmoid(Tiny):
    def sample(self, nets, batch):
        return tf.sigmoid(nets.generator(batch.latents))
