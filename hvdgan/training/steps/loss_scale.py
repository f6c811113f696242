"""The dynamic loss scale of float16: small gradients are lifted out of the underflow, overflows skip an update."""

import dataclasses

import keras
import tensorflow as tf

_FIRST = 2.0**15
_GROW_AFTER = 2000  # updates in a row without an overflow


@dataclasses.dataclass(frozen=True)
class LossScale:
    """The scale of one update's loss, and how many updates it has held; both are saved in checkpoints.

    Reference: Micikevicius et al. 2018, "Mixed precision training", section 3.2.
    """

    value: keras.Variable
    held: keras.Variable

    @staticmethod
    def new(name: str) -> "LossScale":
        """A scale at its first value."""
        return LossScale(
            keras.Variable(_FIRST, trainable=False, dtype="float32", name=f"{name}_scale"),
            keras.Variable(0, trainable=False, dtype="int32", name=f"{name}_held"),
        )

    def adapt(self, finite: tf.Tensor) -> None:
        """Grow after many finite gradients, halve after others; never below 1.

        Args:
            finite: scalar bool, the same on every rank.
        """
        held = tf.where(finite, self.held.value + 1, 0)
        grown = held >= _GROW_AFTER
        factor = tf.where(finite, tf.where(grown, 2.0, 1.0), 0.5)
        self.value.assign(tf.maximum(self.value.value * factor, 1.0))
        self.held.assign(tf.where(grown, 0, held))
