"""BatchNorm whose statistics are those of the batch of all ranks."""

import keras
import tensorflow as tf

from hvdgan.distributed.ranks import Ranks


class SynchronisedBatchNormalization(keras.layers.BatchNormalization):
    """BatchNorm that averages its statistics, and their gradients, over the ranks.

    Keras' own `synchronized=True` asks tf.distribute, and has no effect under Horovod. The mean over ranks of (mean,
    mean square), each times the rank's weight, is that of the whole batch.
    """

    ranks = Ranks()
    weight = 1.0

    def _moments(self, inputs: tf.Tensor, mask: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
        # Not public; tests/parallel/test_sync_batch_norm.py fails if Keras no longer calls it.
        mean, variance = super()._moments(inputs, mask)
        if self.ranks.size == 1:
            return mean, variance
        # In double precision: the difference of two squares would lose the digits of a small variance.
        wide_mean, wide_variance = tf.cast(mean, tf.float64), tf.cast(variance, tf.float64)
        moments = self.weight * tf.stack([wide_mean, wide_variance + tf.square(wide_mean)])
        wide_mean, square = tf.unstack(self.ranks.mean(moments))
        variance = tf.maximum(square - tf.square(wide_mean), 0.0)
        return tf.cast(wide_mean, mean.dtype), tf.cast(variance, mean.dtype)

    def set_ranks(self, ranks: Ranks, weight: float) -> None:
        """Take the statistics over these ranks.

        Args:
            ranks: ranks that share the batch.
            weight: factor of this rank's means, from Ranks.weights().
        """
        # Not by assignment: Keras would take the dataclass apart to look for variables.
        self.__dict__.update(ranks=ranks, weight=weight)
