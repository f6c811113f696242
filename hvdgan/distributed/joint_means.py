"""Variables of layers that are means over the samples of all ranks."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf

from hvdgan.distributed.ranks import Ranks

_LOSS: ContextVar[tuple[Ranks, float]] = ContextVar("loss", default=(Ranks(), 1.0))
"""ranks that trace a loss, with the weight of this one; outside of a loss the ranks do not assign together"""


class JointMean(keras.Variable):
    """A variable that gets the mean of the ranks' values when a layer assigns one in a loss."""

    def assign(self, value: Any) -> tf.Tensor:
        """Assign the mean over the ranks, each times the rank's weight, and return it."""
        ranks, weight = _LOSS.get()
        if ranks.size > 1:
            wide = keras.backend.result_type(self.value.dtype.name, "float32")  # Horovod has no bfloat16
            value = ranks.mean(weight * tf.cast(value, wide))
        return super().assign(value)


@contextlib.contextmanager
def assigned_together(ranks: Ranks, weight: float) -> Iterator[None]:
    """Let all ranks assign to their JointMeans together in the loss that is traced; `weight` is of Ranks.weights()."""
    token = _LOSS.set((ranks, weight))
    try:
        yield
    finally:
        _LOSS.reset(token)
