"""Kernel distance between two sets of features."""

import math
from collections.abc import Callable

import numpy as np

Work = Callable[[int, int], np.ndarray]
"""work(first, past): the results of the items first, ..., past - 1, one row for each"""
Share = Callable[[Work, int], np.ndarray]
"""share(work, count): the results of the items 0, ..., count - 1 in their order, on every rank"""


def alone(work: Work, count: int) -> np.ndarray:
    """Do all of the work here."""
    return work(0, count)


def kid(
    fake: np.ndarray,
    real: np.ndarray,
    *,
    seed: int,
    subsets: int = 100,
    subset_size: int = 1000,
    share: Share = alone,
) -> tuple[float, float]:
    """Kernel distance; of Inception features it is the KID.

    Reference: Bińkowski et al. 2018, section 4.
    """
    size = min(subset_size, len(fake), len(real))
    if size == len(fake) == len(real):
        # Of several ranks, one gets the only item.
        whole = share(lambda first, past: np.array([squared_distance(fake, real) for _ in range(first, past)]), 1)
        return float(whole[0]), math.nan

    def work(first: int, past: int) -> np.ndarray:
        scores = np.empty(past - first)
        for place, number in enumerate(range(first, past)):
            generator = np.random.default_rng([seed, number])
            some, others = (each[generator.choice(len(each), size, replace=False)] for each in (fake, real))
            scores[place] = squared_distance(some, others)
        return scores

    scores = share(work, subsets)
    return float(scores.mean()), float(scores.std())


def squared_distance(fake: np.ndarray, real: np.ndarray) -> float:
    """Unbiased estimate of the squared maximum mean discrepancy for the kernel (x . y / d + 1)^3.

    Reference: Gretton et al. 2012, equation 3.
    """
    fake, real = np.asarray(fake, np.float64), np.asarray(real, np.float64)
    return _mean_of_pairs(fake) + _mean_of_pairs(real) - 2.0 * float(_kernel(fake, real).mean())


def _mean_of_pairs(features: np.ndarray) -> float:
    """Mean of the kernel over all pairs of different samples."""
    values = _kernel(features, features)
    count = len(features)
    return float((values.sum() - np.trace(values)) / (count * (count - 1)))


def _kernel(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    values = one @ other.T / one.shape[1] + 1.0
    return values * values * values  # a power takes up to ten times as long where a value is negative
