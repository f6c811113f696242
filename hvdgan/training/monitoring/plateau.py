"""Whether a stage's metric still gets better: decided from means over all ranks, so that all decide alike."""

import math
from collections.abc import Sequence
from typing import Any

from hvdgan.distributed.ranks import Ranks
from hvdgan.recipe.stages import Plateau
from hvdgan.training.monitoring.record import Window


class Watch:
    """Follows one stage's metric.

    Args:
        rule: what ends the stage.
        state: what state() returned, to go on from there.
    """

    def __init__(self, rule: Plateau, state: dict[str, Any] | None = None) -> None:
        state = state or {"best": None, "waited": 0, "window": None}
        self._rule = rule
        self._best: float | None = state["best"]
        self._waited: int = state["waited"]
        self._window = Window(state["window"])

    def state(self) -> dict[str, Any]:
        """What is needed to go on from here, expressible in JSON."""
        return {"best": self._best, "waited": self._waited, "window": self._window.state()}

    def add(self, metrics: dict[str, Any]) -> None:
        """One step's metrics by name."""
        if self._rule.metric in metrics:
            self._window.add({self._rule.metric: metrics[self._rule.metric]})

    def is_over(self, stage_step: int, ranks: Ranks, weights: Sequence[float]) -> bool:
        """Whether the stage ends here; every rank calls it after each step.

        Args:
            stage_step: steps of the stage done so far.
            ranks: over which the means are taken.
            weights: of the ranks, from Ranks.weights.
        """
        if stage_step % self._rule.window:
            return False
        everyones = ranks.gather(self._window.means(), "plateau")
        means = [w * each[self._rule.metric] for w, each in zip(weights, everyones, strict=True) if each]
        self._window = Window()
        if not means:
            return False
        value = math.fsum(means) / len(means)
        better = value if self._rule.mode == "min" else -value
        # NaN is no best: nothing would ever be better than it.
        if not math.isnan(value) and (self._best is None or better < self._best - self._rule.min_delta):
            self._best, self._waited = better, 0
        else:
            self._waited += 1
        return self._waited >= self._rule.patience
