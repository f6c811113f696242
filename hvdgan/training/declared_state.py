"""The variables that a recipe's state() declares: those that all ranks share, and this rank's slice of the others."""

from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

from hvdgan.checkpoints.tensor_names import STATE
from hvdgan.distributed.ranks import Ranks
from hvdgan.recipe.batch import State, StateValues


class DeclaredState:
    """The state of a recipe on one rank, from arrays of initial values by name."""

    def __init__(self, declared: Mapping[str, State], ranks: Ranks, global_batch_size: int) -> None:
        self.declared = declared
        first, past = ranks.slice_of(global_batch_size)
        self._variables = {name: _variable(name, state, past - first) for name, state in declared.items()}

    def shared(self) -> dict[str, keras.Variable]:
        """The variables that are the same on all ranks, by the names that a checkpoint gives them."""
        return self._named(per_sample=False)

    def seen_in_samples(self) -> dict[str, keras.Variable]:
        """The same variables by the names that the recipe gives them, for its sample() and evaluate()."""
        return {name: self._variables[name] for name, state in self.declared.items() if not state.per_sample}

    def own(self) -> dict[str, keras.Variable]:
        """This rank's slices of the state per sample, by the names that a checkpoint gives the whole."""
        return self._named(per_sample=True)

    def values(self, part: "int | tf.Tensor" = 0, parts: int = 1) -> dict[str, tf.Tensor]:
        """The values by the recipe's names, those per sample of a micro-batch: the part of `parts` with this number."""
        values = {}
        for name, state in self.declared.items():
            value = self._variables[name].value.read_value()
            values[name] = tf.reshape(value, (parts, -1, *value.shape[1:]))[part] if state.per_sample else value
        return values

    def shared_values(self) -> StateValues:
        """The values that are the same on all ranks, as control() sees them."""
        return StateValues({name: each.value.read_value() for name, each in self.seen_in_samples().items()})

    def assign(self, values: Mapping[str, tf.Tensor], finite: tf.Tensor) -> None:
        """Set new values, unless the update that has computed them was not finite."""
        for name, value in values.items():
            variable = self._variables[name].value
            variable.assign(tf.where(finite, value, variable.read_value()))

    def _named(self, *, per_sample: bool) -> dict[str, keras.Variable]:
        return {
            f"{STATE}/{name}": variable
            for name, variable in self._variables.items()
            if self.declared[name].per_sample == per_sample
        }


def _variable(name: str, state: State, count: int) -> keras.Variable:
    """A variable with the initial value, or with `count` of them if the state is per sample."""
    value = np.repeat(state.initial[None], count, axis=0) if state.per_sample else state.initial
    return keras.Variable(value, trainable=False, dtype=value.dtype.name, name=name)
