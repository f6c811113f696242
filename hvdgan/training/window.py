"""Averages metrics over the steps between two log lines."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvdgan.networks.devices import device

_MOST = 256
"""number of values that are read together; TensorFlow needs a kernel for each number of tensors that it stacks"""


class Window:
    """Sums of metrics over steps; the values stay on their device until a mean or the state is read.

    Args:
        state: return value of state() from which to resume; None: an empty window.
    """

    def __init__(self, state: dict[str, list[float]] | None = None) -> None:
        self._waiting: list[dict[str, tf.Tensor | float]] = []
        # Older versions rounded merged counts down, so checkpoints of elastic runs may hold a count of 0.
        self._sums = {name: (total, round(count)) for name, (total, count) in (state or {}).items() if count >= 0.5}

    def add(self, values: dict[str, tf.Tensor | float]) -> None:
        """Add one step's values by name; a step may lack some of the names."""
        self._waiting.append(values)

    def means(self) -> dict[str, float]:
        """Return the mean of each name over the steps that had it."""
        return {name: total / count for name, (total, count) in sorted(self._read().items())}

    def state(self) -> dict[str, list[float]]:
        """Return the sum and the count of each name, as JSON types."""
        return {name: [total, count] for name, (total, count) in self._read().items()}

    def _read(self) -> dict[str, tuple[float, int]]:
        # The values are added one by one and in order, so that a checkpoint in between does not change the sums' bits.
        named = [each for values in self._waiting for each in values.items()]
        for (name, _), value in zip(named, _numbers([value for _, value in named]), strict=True):
            total, count = self._sums.get(name, (0.0, 0))
            self._sums[name] = total + value, count + 1
        self._waiting = []
        return self._sums


def _numbers(values: Sequence[tf.Tensor | float]) -> list[float]:
    """The numbers of values. The host waits for a GPU once for many of them, and not for each."""
    if not device.chosen().own_memory:  # there is nothing to wait for
        return [float(value) for value in values]
    tensors = [value for value in values if tf.is_tensor(value)]
    read: list[float] = []
    for begin in range(0, len(tensors), _MOST):
        read += tf.stack(tensors[begin : begin + _MOST]).numpy().tolist()
    known = dict(zip(map(id, tensors), read, strict=True))
    return [known[id(value)] if id(value) in known else float(value) for value in values]


def merge_states(states: Sequence[dict[str, list[float]]], weights: Sequence[float]) -> dict[str, list[float]]:
    """Merge the window states of all ranks into one that any rank can resume from.

    Args:
        states: state of each rank's window.
        weights: weight of each rank, from Ranks.weights.

    Returns:
        For each name the mean over the ranks that have it, as a sum over their number of steps.
    """
    return {name: _merge(name, states, weights) for name in sorted({name for state in states for name in state})}


def _merge(name: str, states: Sequence[dict[str, list[float]]], weights: Sequence[float]) -> list[Any]:
    having = [(weight, *state[name]) for weight, state in zip(weights, states, strict=True) if name in state]
    share = sum(weight for weight, _, _ in having)
    # All ranks count the same steps. A weighted mean of equal counts could round to slightly less than a whole number.
    if len({count for _, _, count in having}) == 1:
        return [sum(weight * total for weight, total, _ in having) / share, having[0][2]]
    count = max(1, round(sum(weight * steps for weight, _, steps in having) / share))
    return [count * sum(weight * total / max(steps, 1) for weight, total, steps in having) / share, count]
