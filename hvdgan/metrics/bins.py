"""Edges of a histogram's bins that resolve the range of numbers and also the places where most of them lie."""

import numpy as np

_EVEN = 501
"""evenly spaced edges"""
_AMONG = 500
"""edges with as many of the picked numbers between any two of them"""
_PICKED = 16
"""numbers of a channel of a sample"""
_PLACES = 4096
"""places of a sample that are looked at for these, at most"""
_MARGIN = 0.1


def picked_numbers(samples: np.ndarray) -> np.ndarray:
    """Pick numbers of each sample that tell where its distinct numbers lie.

    A number that a sample has many times, such as the zeros of a sparse one, counts once. What is picked of a sample
    depends on that sample alone.

    Args:
        samples: finite numbers, (B, *space, C).

    Returns:
        (B, 16, C) float64, ascending, from the least to the largest number of each channel of each sample.
    """
    numbers = samples.reshape(len(samples), -1, samples.shape[-1]).astype(np.float64)
    count = numbers.shape[1]
    places = np.random.default_rng(0).choice(count, min(count, _PLACES), replace=False)
    picked = np.empty((len(numbers), _PICKED, numbers.shape[-1]))
    for sample, found in zip(numbers, picked, strict=True):
        for channel in range(sample.shape[1]):
            distinct = np.unique(sample[places, channel])
            found[:, channel] = distinct[np.linspace(0, len(distinct) - 1, _PICKED).round().astype(int)]
    picked[:, 0], picked[:, -1] = numbers.min(axis=1), numbers.max(axis=1)
    return picked


def bin_edges(picked: np.ndarray) -> np.ndarray:
    """Edges for numbers such as these: half of them evenly spaced, half where the numbers lie.

    Args:
        picked: numbers of each channel, (n, C), in any order.

    Returns:
        (C, 1001) float64, ascending; the first and the last are a tenth of the range beyond the numbers, or 0.5 if a
        channel has one number alone.
    """
    low, high = picked.min(axis=0), picked.max(axis=0)
    margin = np.where(high > low, _MARGIN * (high - low), 0.5)
    even = np.linspace(low - margin, high + margin, _EVEN)
    among = np.quantile(picked, np.linspace(0, 1, _AMONG), axis=0)
    return np.sort(np.concatenate([even, among]), axis=0).T
