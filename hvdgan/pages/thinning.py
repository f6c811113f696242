"""Curves of many points in little memory: each part of the steps keeps its least and its greatest value."""

import dataclasses

import numpy as np

POINTS = 1000
"""largest number of points of a curve that is drawn"""
_KEPT, _PENDING = 2000, 6000


def thin(steps: np.ndarray, values: np.ndarray, points: int = POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Thin a curve; the least and the greatest value of each part of the steps stay, and so do both ends.

    Args:
        steps: positions of the points, (N,).
        values: finite numbers, (N,).
        points: number of points to leave, at least 4.

    Returns:
        Steps in ascending order, and their values.
    """
    if (np.diff(steps) < 0).any():
        order = np.argsort(steps, kind="stable")
        steps, values = steps[order], values[order]
    if len(steps) <= points:
        return steps, values
    parts = points // 2 - 1
    part = ((steps - steps[0]) / max(float(steps[-1]) - float(steps[0]), 1.0) * parts).astype(np.int64)
    by_value = np.lexsort((values, part))  # the points of one part stand together, the least first
    begins = np.flatnonzero(np.diff(part[by_value], prepend=-1))
    ends = np.append(begins[1:], len(steps)) - 1
    kept = np.unique(np.concatenate([[0, len(steps) - 1], by_value[begins], by_value[ends]]))
    return steps[kept], values[kept]


@dataclasses.dataclass
class Series:
    """The values of one metric, read one after another.

    Args:
        name: name of the metric.
    """

    name: str
    steps: list[int] = dataclasses.field(default_factory=list)
    """steps of the values that are waiting, then of those that are kept"""
    values: list[float] = dataclasses.field(default_factory=list)
    """values at these steps"""
    count: int = 0
    """number of finite values that settle() has seen"""
    total: float = 0.0
    """sum of these values"""
    first: float = 0.0
    """first of them"""
    last: float = 0.0
    """latest of them"""
    not_finite: int = 0
    """number of values that were NaN, infinite, or null, which stands for both in JSON"""
    _done: int = 0

    def settle(self) -> None:
        """Count the values that were added, and thin them if there are many."""
        new = np.array(self.values[self._done :], np.float64)
        finite = np.isfinite(new)
        if new.size and not finite.all():
            self.not_finite += int((~finite).sum())
            kept = [index for index, good in enumerate(finite) if good]
            self.steps[self._done :] = [self.steps[self._done + index] for index in kept]
            self.values[self._done :] = [self.values[self._done + index] for index in kept]
            new = new[finite]
        if new.size:
            self.first = self.first if self.count else float(new[0])
            self.count += len(new)
            with np.errstate(over="ignore"):
                self.total += float(new.sum())
            self.last = float(new[-1])
        if len(self.values) > _PENDING:
            steps, values = thin(np.array(self.steps, np.int64), np.array(self.values, np.float64), _KEPT)
            self.steps, self.values = steps.tolist(), values.tolist()
        self._done = len(self.values)

    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the curve steps in ascending order and their values, at most POINTS of them."""
        return thin(np.array(self.steps, np.int64), np.array(self.values, np.float64))
