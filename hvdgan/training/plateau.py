"""Ends a stage when its metric no longer improves; decides from means over all ranks, so that all decide the same."""

import math
from collections.abc import Sequence
from typing import Any

from hvdgan.checkpoints.direction import mode_of
from hvdgan.distributed.ranks import Ranks
from hvdgan.recipe.stages import Plateau
from hvdgan.training.window import Window


class Watch:
    """Follows the metric of one stage.

    Args:
        rule: condition that ends the stage; None: the stage has none, and is_over() is always False.
        state: return value of state() from which to resume; None: from the beginning.
    """

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
        """Check whether the stage ends here; every rank calls this after each step.

        Args:
            stage_step: number of steps of the stage done.
            ranks: ranks over which means are taken.
            weights: weight of each rank, from Ranks.weights.
        """
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
