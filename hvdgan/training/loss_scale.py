"""The dynamic loss scale of float16: it keeps small gradients from underflow, and falls after an overflow."""

import dataclasses
from collections.abc import Sequence

import keras
import tensorflow as tf

FIRST = 2.0**15
"""initial value of each scale"""
_GROW_AFTER = 2000  # updates in a row without an overflow


@dataclasses.dataclass(frozen=True)
class LossScale:
    """The factor of one update's loss. Both variables are saved in checkpoints.

    value: factor of the loss, a scalar float32 variable.
    held: number of updates in a row without an overflow, a scalar int64 variable: TensorFlow keeps one of int32 in the
        host's memory, and each step would wait until the GPU knows whether to count on.

    Reference: Micikevicius et al. 2018, "Mixed precision training", section 3.2.
    """

    value: keras.Variable
    held: keras.Variable

    @staticmethod
    def new(name: str) -> "LossScale":
        """A scale with its initial value, for the update of this name."""
        return LossScale(
            keras.Variable(FIRST, trainable=False, dtype="float32", name=f"{name}_scale"),
            keras.Variable(0, trainable=False, dtype="int64", name=f"{name}_held"),
        )

    def unscaled(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The gradients of the loss itself, from those of the scaled loss."""
        return [gradient / tf.cast(self.value.value, gradient.dtype) for gradient in gradients]

    def adapt(self, finite: tf.Tensor) -> tf.Tensor:
        """Double the scale after many finite updates in a row; halve it, to no less than 1, after one that is not."""
        used = tf.identity(self.value.value)
        none = tf.zeros((), tf.int64)
        held = tf.where(finite, self.held.value + 1, none)
        grown = held >= _GROW_AFTER
        factor = tf.where(finite, tf.where(grown, 2.0, 1.0), 0.5)
        self.value.assign(tf.maximum(self.value.value * factor, 1.0))
        self.held.assign(tf.where(grown, none, held))
        return used
