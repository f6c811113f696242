"""BatchNorm whose statistics are those of the batch of all ranks."""

from typing import Any

import keras
import tensorflow as tf

from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import UserError


class SynchronisedBatchNormalization(keras.layers.BatchNormalization):
    """BatchNorm that averages its statistics, and their gradients, over the ranks.

    Keras' own `synchronized=True` asks tf.distribute, and has no effect under Horovod; layers that have it become
    layers of this class. The mean over ranks of (mean, mean square), each times the rank's weight, is that of the whole
    batch.
    """

    ranks = Ranks()
    weight = 1.0

    def call(self, inputs: tf.Tensor, training: bool | None = None, mask: Any = None) -> tf.Tensor:
        """As keras.layers.BatchNormalization.call; the statistics of a batch are taken in float32 or float64.

        Raises:
            UserError: the layer has a mask or batch renormalisation, whose statistics are not synchronised.
        """
        if self.ranks.size == 1 or not (training and self.trainable):
            return super().call(inputs, training=training, mask=mask)
        if mask is not None or getattr(self, "renorm", False):
            what = "a mask" if mask is not None else "renorm=True"
            raise UserError(
                f"--sync-batch-norm, or synchronized=True: layer {self.name} has {what}, which cannot be synchronised; "
                "leave out one"
            )
        wide = tf.cast(inputs, keras.backend.result_type(self.variable_dtype, "float32"))
        axis = self.axis % len(inputs.shape)
        axes = [each for each in range(len(inputs.shape)) if each != axis]
        # Not tf.nn.moments(), which stops the gradient at the mean: a second derivative would lack a term.
        mean, variance = self._global(tf.reduce_mean(wide, axes), tf.math.reduce_variance(wide, axes))
        for moving, value in ((self.moving_mean, mean), (self.moving_variance, variance)):
            moving.assign(tf.cast(moving, wide.dtype) * self.momentum + value * (1.0 - self.momentum))
        shape = [1] * len(inputs.shape)
        shape[axis] = -1
        scale = tf.math.rsqrt(variance + self.epsilon)
        if self.scale:
            scale *= tf.cast(self.gamma, wide.dtype)
        outputs = (wide - tf.reshape(mean, shape)) * tf.reshape(scale, shape)
        if self.center:
            outputs += tf.reshape(tf.cast(self.beta, wide.dtype), shape)
        return tf.cast(outputs, self.compute_dtype)

    def _global(self, mean: tf.Tensor, variance: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The moments of the batch of all ranks."""
        # In double precision: the difference of two squares would lose the digits of a small variance.
        wide_mean, wide_variance = tf.cast(mean, tf.float64), tf.cast(variance, tf.float64)
        moments = self.weight * tf.stack([wide_mean, wide_variance + tf.square(wide_mean)])
        wide_mean, square = tf.unstack(self.ranks.mean(moments))
        variance = tf.maximum(square - tf.square(wide_mean), 0.0)
        return tf.cast(wide_mean, mean.dtype), tf.cast(variance, mean.dtype)


def synchronise(norm: keras.layers.BatchNormalization, ranks: Ranks, weight: float) -> None:
    """Take the statistics of a built layer over these ranks; `weight` is this rank's of Ranks.weights()."""
    kind, synchronised = type(norm), SynchronisedBatchNormalization
    synchronised.__name__ = keras.layers.BatchNormalization.__name__  # by which Keras names what it saves
    # Of a user's subclass all but call() stays.
    is_plain = kind is keras.layers.BatchNormalization
    norm.__class__ = synchronised if is_plain else type(kind.__name__, (kind, synchronised), {})
    # Not by assignment: Keras would take the dataclass apart to look for variables.
    norm.__dict__.update(ranks=ranks, weight=weight)
