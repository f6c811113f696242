"""Averages metrics over the steps between two log lines, and ends a stage whose metric no longer improves."""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvdgan.checkpoints.saver import mode_of
from hvdgan.distributed.ranks import Ranks
from hvdgan.networks import cpu_or_gpu
from hvdgan.recipe.stages import Plateau

_MOST = 256
"""number of values that are read together; TensorFlow needs a kernel for each number of tensors that it stacks"""


class Window:
    """Sums of metrics over steps; the values stay on their device until a mean or the state is read."""

    def __init__(self, state: dict[str, list[float]] | None = None) -> None:
        self._waiting: list[dict[str, tf.Tensor | float]] = []
        self._sums = {name: (total, round(count)) for name, (total, count) in (state or {}).items()}

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
    if not cpu_or_gpu.chosen().own_memory:  # there is nothing to wait for
        return [float(value) for value in values]
    tensors = [value for value in values if tf.is_tensor(value)]
    read: list[float] = []
    for begin in range(0, len(tensors), _MOST):
        read += tf.stack(tensors[begin : begin + _MOST]).numpy().tolist()
    known = dict(zip(map(id, tensors), read, strict=True))
    return [known[id(value)] if id(value) in known else float(value) for value in values]


def merge_states(states: Sequence[dict[str, list[float]]], weights: Sequence[float]) -> dict[str, list[float]]:
    """Merge the windows of all ranks, which have counted the same steps, into one that any rank can resume from."""
    return {
        name: [sum(w * each[name][0] for w, each in zip(weights, states, strict=True)) / sum(weights), count]
        for name, (_, count) in states[0].items()
    }


class PlateauWatch:
    """Follows the metric of one stage; it decides from means over all ranks, so that all decide the same."""

    def __init__(self, rule: Plateau | None, state: dict[str, Any] | None = None) -> None:
        state = state or {"best": None, "waited": 0, "window": None}
        self._rule = rule
        self._best: float | None = state["best"]
        self._waited: int = state["waited"]
        self._window = Window(state["window"])

    def state(self) -> dict[str, Any] | None:
        """Return what a resumed run needs, as JSON types; None if there is no rule."""
        if self._rule is None:
            return None
        return {"best": self._best, "waited": self._waited, "window": self._window.state()}

    def add(self, metrics: dict[str, Any]) -> None:
        """Add one step's metrics by name."""
        if self._rule and self._rule.metric in metrics:
            self._window.add({self._rule.metric: metrics[self._rule.metric]})

    def is_over(self, stage_step: int, ranks: Ranks, weights: Sequence[float]) -> bool:
        """Check whether the stage ends here; every rank calls this after each step."""
        if self._rule is None or stage_step % self._rule.window:
            return False
        everyones = ranks.gather(self._window.means(), "plateau")
        means = [w * each[self._rule.metric] for w, each in zip(weights, everyones, strict=True) if each]
        self._window = Window()
        if not means:
            return False
        value = math.fsum(means) / len(means)
        better = value if (self._rule.mode or mode_of(self._rule.metric)) == "min" else -value
        # NaN must not become the best: no value would ever be better.
        if not math.isnan(value) and (self._best is None or better < self._best - self._rule.min_delta):
            self._best, self._waited = better, 0
        else:
            self._waited += 1
        return self._waited >= self._rule.patience
