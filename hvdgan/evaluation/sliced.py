"""Sliced Wasserstein distance between two sets of features."""

import numpy as np


def directions(seed: int, dimensions: int, count: int = 128) -> np.ndarray:
    """Draw random directions; the projections of features (B, d) are `features @ directions`."""
    drawn = np.random.default_rng(seed).standard_normal((dimensions, count))
    return drawn / np.linalg.norm(drawn, axis=0)


def sliced_wasserstein(fake_projections: np.ndarray, real_projections: np.ndarray) -> float:
    """Mean over the directions of the 1-Wasserstein distance of two empirical distributions on a line.

    Reference: Rabin et al. 2011; Deshpande et al. 2018, equation 6.
    """
    count, others = len(fake_projections), len(real_projections)
    # Both quantile functions are constant between two multiples of 1 / N or 1 / M. In units of 1 / (N M) these are
    # integers, so that no level is lost to rounding.
    levels = np.union1d(np.arange(count + 1) * others, np.arange(others + 1) * count)
    weights = np.diff(levels) / (count * others)
    fake_places, real_places = levels[:-1] // others, levels[:-1] // count
    distances = [
        weights @ np.abs(np.sort(fake)[fake_places] - np.sort(real)[real_places])
        for fake, real in zip(
            np.asarray(fake_projections, np.float64).T, np.asarray(real_projections, np.float64).T, strict=True
        )
    ]
    return float(np.mean(distances))
