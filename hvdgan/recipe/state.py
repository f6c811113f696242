"""Variables of a recipe that belong to no network: one value for all ranks, or one per sample of a batch."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class State:
    """A variable that lasts from step to step, declared by a recipe's state(); checkpoints hold it.

    Args:
        initial: first value, a number or an array of any shape; floats become float32, whole numbers int64.
        per_sample: False: one value, the same on all ranks, which control() sets. True: a value of this shape for each
            place of the global batch, which losses set; a rank holds those of its slice, and a run that is resumed on
            other ranks takes other slices of the same values.
    """

    initial: Any
    per_sample: bool = False


class StateValues:
    """The values of a recipe's state as attributes: `batch.state.pool` (B, ...) if it is per sample."""

    def __init__(self, values: Mapping[str, tf.Tensor]) -> None:
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> tf.Tensor:
        known = ", ".join(sorted(self.__dict__)) or "nothing"
        raise AttributeError(f"there is no state {name}; state() declares {known}")
