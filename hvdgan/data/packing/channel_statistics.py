"""Statistics of each channel of packed arrays, in float64, the same for any number of processes."""

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hvdgan.data.arrays.statistics import Moments, combined, moments_of


@dataclasses.dataclass(frozen=True)
class ChannelStatistics:
    """Statistics of numbers (..., C).

    moments: count of the numbers in a channel, means (C,), and sums of squared differences from the means (C,).
    low, high: smallest and largest number of each channel (C,); infinite if there are no numbers.
    """

    moments: Moments
    low: np.ndarray
    high: np.ndarray

    def to_json(self) -> list[Any]:
        """All that `of_json` needs, without rounding."""
        count, means, squares = self.moments
        return [count, *(each.tolist() for each in (means, squares, self.low, self.high))]

    def described(self) -> dict[str, Any]:
        """Count, minimum, maximum, mean and standard deviation of each channel; None for one beyond float64."""
        count, means, squares = self.moments
        found = {"min": self.low, "max": self.high, "mean": means, "deviation": np.sqrt(squares / count)}
        return {"count": count, **{name: _plain(numbers) for name, numbers in found.items()}}


def statistics_of(numbers: np.ndarray) -> ChannelStatistics:
    """The statistics of finite numbers (..., C)."""
    flat = numbers.reshape(-1, numbers.shape[-1]).astype(np.float64)
    if not len(flat):
        return nothing(numbers.shape[-1])
    with np.errstate(over="ignore", invalid="ignore"):  # of numbers near the largest float64
        return ChannelStatistics(moments_of(flat), flat.min(axis=0), flat.max(axis=0))


def nothing(channels: int) -> ChannelStatistics:
    """The statistics of no numbers."""
    zeros = np.zeros(channels)
    return ChannelStatistics((0, zeros, zeros), zeros + np.inf, zeros - np.inf)


def together(some: Iterable[ChannelStatistics]) -> ChannelStatistics:
    """The statistics of several sets of numbers, combined in their order, on which the last bits depend."""
    return functools.reduce(_joined, some)


def of_json(values: Sequence[Any]) -> ChannelStatistics:
    """Make statistics again from to_json()."""
    count, means, squares, low, high = values
    return ChannelStatistics((count, np.array(means), np.array(squares)), np.array(low), np.array(high))


def _joined(one: ChannelStatistics, other: ChannelStatistics) -> ChannelStatistics:
    with np.errstate(over="ignore", invalid="ignore"):
        moments = combined(one.moments, other.moments)
    return ChannelStatistics(moments, np.minimum(one.low, other.low), np.maximum(one.high, other.high))


def _plain(numbers: np.ndarray) -> list[float | None]:
    return [number if math.isfinite(number) else None for number in numbers.tolist()]
