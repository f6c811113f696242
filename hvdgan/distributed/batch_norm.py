"""Layers that Keras lacks under Horovod."""

from collections.abc import Iterable

import keras
import tensorflow as tf

from hvdgan.distributed.ranks import Ranks


class SynchronisedBatchNormalization(keras.layers.BatchNormalization):
    """BatchNorm whose statistics are those of the batch of all ranks, forward and gradient.

    Keras' own `synchronized=True` asks tf.distribute, and under Horovod changes nothing without a word. The mean over
    ranks of (mean, mean square), each with the rank's weight, is that of the whole batch.
    """

    ranks = Ranks()
    weight = 1.0

    def _moments(self, inputs: tf.Tensor, mask: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
        mean, variance = super()._moments(inputs, mask)
        if self.ranks.size == 1:
            return mean, variance
        # In double precision: the difference of two squares leaves little of a small variance.
        wide_mean, wide_variance = tf.cast(mean, tf.float64), tf.cast(variance, tf.float64)
        moments = self.weight * tf.stack([wide_mean, wide_variance + tf.square(wide_mean)])
        wide_mean, square = tf.unstack(self.ranks.mean(moments))
        variance = tf.maximum(square - tf.square(wide_mean), 0.0)
        return tf.cast(wide_mean, mean.dtype), tf.cast(variance, mean.dtype)


def synchronise_batch_norm(networks: Iterable[keras.Model], ranks: Ranks, weight: float = 1.0) -> int:
    """Make every BatchNormalization of these networks, nested ones too, take its statistics over the ranks.

    Args:
        networks: built; their variables and the names of these stay as they are.
        ranks: over which to synchronise.
        weight: of this rank among them, from Ranks.weights.

    Returns:
        How many layers there were.
    """
    found = [
        layer
        for network in networks
        for layer in network._flatten_layers(include_self=False, recursive=True)
        if type(layer) is keras.layers.BatchNormalization
    ]
    for layer in found:
        layer.__class__ = SynchronisedBatchNormalization
        # Past Keras' own bookkeeping, which takes dataclasses apart to look for variables.
        layer.__dict__["ranks"] = ranks
        layer.__dict__["weight"] = weight
    return len(found)
