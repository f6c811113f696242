"""Curves of many points in little memory: each part of the steps keeps its least and its greatest value."""

import dataclasses

import numpy as np

POINTS = 1000
"""largest number of points of a curve that is drawn"""
_KEPT, _PENDING = 2000, 16_000


def thin(steps: np.ndarray, values: np.ndarray, points: int = POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Thin a curve; the least and the greatest value of each part of the steps stay, and so do both ends."""
    if (np.diff(steps) < 0).any():
        order = np.argsort(steps, kind="stable")
        steps, values = steps[order], values[order]
    if len(steps) <= points:
        return steps, values
    parts = points // 2 - 1
    part = ((steps - steps[0]) / max(float(steps[-1]) - float(steps[0]), 1.0) * parts).astype(np.int64)
    begins = np.flatnonzero(np.diff(part, prepend=-1))
    counts = np.diff(np.append(begins, len(steps)))
    extremes = [
        _first(values == np.repeat(of.reduceat(values, begins), counts), part) for of in (np.minimum, np.maximum)
    ]
    kept = np.unique(np.concatenate([[0, len(steps) - 1], *extremes]))
    return steps[kept], values[kept]


def _first(chosen: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Return the place of the first chosen point of each part."""
    places = np.flatnonzero(chosen)
    return places[np.diff(part[places], prepend=-1) > 0]


@dataclasses.dataclass
class Series:
    """The values of one metric, read in portions.

    Args:
        name: name of the metric.
    """

    name: str
    count: int = 0
    """number of finite values"""
    steady_count: int = 0
    """number of these in whose records no graph was traced"""
    steady_total: float = 0.0
    """sum of the steady values"""
    last: float = 0.0
    """value of the latest step"""
    not_finite: int = 0
    """number of values that were NaN, infinite, or null, which stands for both in JSON"""

    def __post_init__(self) -> None:
        self._steps, self._values = np.empty(0, np.int64), np.empty(0)
        self._last_step = -1

    @property
    def steady(self) -> float | None:
        """Mean of the values in whose records no graph was traced; None if it is not a number above 0."""
        mean = self.steady_total / max(1, self.steady_count)
        return mean if 0 < mean < float("inf") else None

    def add(self, steps: np.ndarray, values: np.ndarray, *, are_steady: bool = True) -> None:
        """Add values, and thin the curve if it has become long."""
        finite = np.isfinite(values)
        if not finite.all():
            self.not_finite += int((~finite).sum())
            steps, values = steps[finite], values[finite]
        if not len(values):
            return
        if steps[-1] >= self._last_step:
            self.last, self._last_step = float(values[-1]), int(steps[-1])
        self.count += len(values)
        if are_steady:
            self.steady_count += len(values)
            with np.errstate(over="ignore", invalid="ignore"):
                self.steady_total += float(values.sum())
        self._steps, self._values = np.append(self._steps, steps), np.append(self._values, values)
        if len(self._values) > _PENDING:
            self._steps, self._values = thin(self._steps, self._values, _KEPT)

    def curve(self, points: int = POINTS) -> tuple[np.ndarray, np.ndarray]:
        """Return the curve: steps in ascending order and their values, at most `points` of them."""
        return thin(self._steps, self._values, points)
