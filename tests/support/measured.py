"""Recipes whose metrics are known in advance; tests name them as measured:Measured and the like."""

import tensorflow as tf

from tiny import Tiny


class Measured(Tiny):
    """Its metrics are known: the brightness of an image, its label, and a draw that is the same at every evaluation."""

    def evaluate(self, nets, batch):
        return {
            "brightness": tf.reduce_mean(batch.images, axis=(1, 2, 3)),
            "label": batch.labels,
            "latent": batch.latents[:, 0],
            "made": tf.reduce_mean(nets.generator(batch.latents), axis=(1, 2, 3)),
        }


class Bright(Tiny):
    """A metric of data without labels."""

    def evaluate(self, nets, batch):
        return {"brightness": tf.reduce_mean(batch.images, axis=(1, 2, 3))}
