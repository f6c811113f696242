"""Edges of a histogram's bins that resolve the range of numbers and also the places where most of them lie."""

import math

import numpy as np

_EVEN = 501
"""evenly spaced edges"""
_AMONG = 500
"""edges between which equally many of the picked numbers lie"""
PICKED = 16
"""numbers that are picked of a channel of a sample, at most"""
_PLACES = 1024
"""places of a sample that are looked at for these, at most"""
_MARGIN = 0.1


def picked_numbers(samples: np.ndarray) -> np.ndarray:
    """Pick numbers of each sample that tell where its distinct numbers lie.

    A number that a sample has many times, such as the zeros of a sparse one, counts once, unless the sample has few
    places. What is picked of a sample depends on that sample alone.
    """
    numbers = samples.reshape(len(samples), math.prod(samples.shape[1:-1]), samples.shape[-1]).astype(np.float64)
    count = numbers.shape[1]
    if count <= PICKED:
        return np.sort(numbers, axis=1)
    places = np.random.default_rng(0).choice(count, min(count, _PLACES), replace=False)
    picked = np.empty((len(numbers), PICKED, numbers.shape[-1]))
    for sample, found in zip(numbers, picked, strict=True):
        for channel in range(sample.shape[1]):
            distinct = np.unique(sample[places, channel])
            found[:, channel] = distinct[np.linspace(0, len(distinct) - 1, PICKED).round().astype(int)]
    return picked


def bin_edges(low: np.ndarray, high: np.ndarray, picked: np.ndarray) -> np.ndarray:
    """Edges for numbers such as these: half of them evenly spaced, half where the numbers lie."""
    margin = np.where(high > low, _MARGIN * (high - low), 0.5)
    even = np.linspace(low - margin, high + margin, _EVEN)
    among = np.quantile(picked, np.linspace(0, 1, _AMONG), axis=0)
    return np.sort(np.concatenate([even, among]), axis=0).T
