"""The statistics that each rank estimates from its own samples, such as the moving averages of BatchNorm."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from hvdgan.networks.layer_state import is_float, statistics_of


def copy_of(variable: keras.Variable) -> np.ndarray:
    """Copy a variable's value, of its shape and dtype.

    variable.numpy() takes four times as long, which is a large part of a checkpoint of small networks.
    """
    value = variable.value
    return np.asarray(tf.raw_ops.ReadVariableOp(resource=value.handle, dtype=value.dtype).numpy())


def copies_of(variables: Mapping[str, keras.Variable]) -> dict[str, np.ndarray]:
    """Copy the values of variables, by their names."""
    return {name: copy_of(variable) for name, variable in variables.items()}


@dataclasses.dataclass(frozen=True)
class Statistics:
    """The statistics of all networks and their averages over time, which differ between the ranks.

    Args:
        networks: networks by name.
        ema: averages by network name, one per variable of averaged_variables().
    """

    networks: Mapping[str, keras.Model]
    ema: Mapping[str, Sequence[keras.Variable]]

    def variables(self) -> list[keras.Variable]:
        """Each network's statistics, followed by their averages over time."""
        return self._with_averages(statistics_of)

    def read(self) -> np.ndarray:
        """All statistics in one array (n,): float64 if any of them is, else float32."""
        variables = self.variables()
        dtype = np.float64 if any(variable.dtype == "float64" for variable in variables) else np.float32
        values = [copy_of(variable).astype(dtype, copy=False).ravel() for variable in variables]
        return np.concatenate([np.zeros(0, dtype), *values])

    def write(self, values: np.ndarray) -> None:
        """Set the statistics to the result of read(), of this rank or of another one."""
        begin = 0
        for variable in self.variables():
            end = begin + math.prod(variable.shape)
            variable.value.assign(values[begin:end].reshape(variable.shape))
            begin = end

    @contextlib.contextmanager
    def set_to_means(self, everyones: np.ndarray) -> Iterator[None]:
        """Set the statistics to their means over ranks, and restore this rank's own bits afterwards."""
        if len(everyones) == 1:
            yield
            return
        own = self.read()
        # In double precision, so that the mean of equal numbers is exactly that number, for any number of ranks.
        means = everyones.astype(np.float64).mean(axis=0).astype(own.dtype)
        if np.array_equal(means, own):  # the same values on all ranks
            yield
            return
        self.write(means)
        try:
            yield
        finally:
            self.write(own)

    def select(self, saved: np.ndarray) -> np.ndarray | None:
        """Select each rank's statistics from those of a checkpoint."""
        wanted = {id(variable) for variable in self.variables()}
        for variables in (self.variables(), self._with_averages(_floats_not_trained)):
            chosen = [np.full(math.prod(variable.shape), id(variable) in wanted) for variable in variables]
            columns = np.concatenate([np.zeros(0, bool), *chosen])
            if len(columns) == saved.shape[1]:
                return saved[:, columns]
        return None

    def _with_averages(self, chosen: Callable[[keras.Model], list[keras.Variable]]) -> list[keras.Variable]:
        """The chosen variables of each network, each network's followed by their averages over time."""
        found = []
        for name, network in self.networks.items():
            some = chosen(network)
            ids = {id(variable) for variable in some}
            pairs = zip(averaged_variables(network), self.ema.get(name, []), strict=False)
            found += [*some, *(average for variable, average in pairs if id(variable) in ids)]
        return found


def averaged_variables(network: keras.Model) -> list[keras.Variable]:
    """The variables that can be averaged over time: the floating-point ones."""
    return [variable for variable in network.variables if is_float(variable)]


def _floats_not_trained(network: keras.Model) -> list[keras.Variable]:
    return [variable for variable in network.non_trainable_variables if is_float(variable)]
