"""Precision, recall, density and coverage of a set of features, from the nearest neighbours of its points."""

import math
from collections.abc import Iterator

import numpy as np

from hvdgan.evaluation.kernel import Share, alone

_OF_PRECISION = 3
_OF_DENSITY = 5
TILE_BYTES = 4 * 2**20
"""size of a block of distances, and of a block of features: those of 64 features then stay in a processor's cache"""
_TIE = 1e-9
"""relative difference of squared distances that counts as none, far above their rounding"""


def neighbours(fake: np.ndarray, real: np.ndarray, *, share: Share = alone) -> dict[str, float]:
    """Compare the regions that two sets of features fill: each point owns the ball up to its k-th nearest neighbour.

    The time grows with (N + M)^2, the memory does not grow with N and M. A distance that equals the radius is inside
    the ball for precision and recall and outside for density and coverage, as in the definitions of their authors.

    Reference: Kynkäänniemi et al. 2019, equations 1 and 2; Naeem et al. 2020, equations 3 and 4.
    """
    pair = _Pair(fake, real)
    real_radii = share(lambda first, past: pair.radii(real, first, past), len(real))  # (M, 2)
    fake_radii = share(lambda first, past: pair.radii(fake, first, past), len(fake))[:, 0]
    of_fake = share(lambda first, past: pair.of_fake(real_radii, first, past), len(fake))  # (N, 2)
    of_real = share(lambda first, past: pair.of_real(fake_radii, real_radii[:, 1], first, past), len(real))  # (M, 2)
    precision, density = of_fake.mean(axis=0)
    recall, coverage = of_real.mean(axis=0)
    return {
        "precision": float(precision),
        "recall": float(recall),
        "density": float(density / _OF_DENSITY),
        "coverage": float(coverage),
    }


class _Pair:
    """Two sets of features, whose squared distances are computed in blocks. All radii are squared."""

    def __init__(self, fake: np.ndarray, real: np.ndarray) -> None:
        self._fake, self._real = fake, real
        self._centre = real.mean(axis=0, dtype=np.float64)
        dimensions = real.shape[1]
        self._points = max(1, min(math.isqrt(TILE_BYTES // 8), TILE_BYTES // (8 * dimensions)))
        # Bound on the rounding of |x|^2 + |y|^2 - 2 x.y, relative to the first two.
        self._rounding = (dimensions + 2) * np.finfo(np.float64).eps

    def radii(self, features: np.ndarray, first: int, past: int) -> np.ndarray:
        """Distances from some points of a set to their third and fifth neighbours in it, (past - first, 2)."""
        found = []
        for rows in self._blocks(first, past):
            nearest = np.full((rows.stop - rows.start, _OF_DENSITY), np.inf)
            for columns, squares in self._tiles(features, rows, features):
                same = np.arange(max(rows.start, columns.start), min(rows.stop, columns.stop))
                squares[same - rows.start, same - columns.start] = np.inf
                together = np.concatenate([nearest, squares], axis=1)
                nearest = np.partition(together, _OF_DENSITY - 1, axis=1)[:, :_OF_DENSITY]
            found.append(np.sort(nearest, axis=1)[:, [_OF_PRECISION - 1, _OF_DENSITY - 1]])
        return np.concatenate(found) if found else np.empty((0, 2))

    def of_fake(self, radii: np.ndarray, first: int, past: int) -> np.ndarray:
        """For some fake points: 1 if they are in a closed ball of a real point, and the number of open balls."""
        closed, opened = radii.T
        results = np.zeros((past - first, 2))
        for rows in self._blocks(first, past):
            own = results[rows.start - first : rows.stop - first]
            for columns, squares in self._tiles(self._fake, rows, self._real):
                own[:, 0] = np.maximum(own[:, 0], _in_closed(squares, closed[columns]).any(axis=1))
                own[:, 1] += _in_open(squares, opened[columns]).sum(axis=1)
        return results

    def of_real(self, closed: np.ndarray, opened: np.ndarray, first: int, past: int) -> np.ndarray:
        """For some real points: 1 if they are in a closed ball of a fake point; 1 if a fake one is in their own."""
        results = np.zeros((past - first, 2))
        for rows in self._blocks(first, past):
            own = results[rows.start - first : rows.stop - first]
            for columns, squares in self._tiles(self._real, rows, self._fake):
                own[:, 0] = np.maximum(own[:, 0], _in_closed(squares, closed[columns]).any(axis=1))
                own[:, 1] = np.maximum(own[:, 1], _in_open(squares, opened[rows, None]).any(axis=1))
        return results

    def _blocks(self, first: int, past: int) -> Iterator[slice]:
        for start in range(first, past, self._points):
            yield slice(start, min(start + self._points, past))

    def _tiles(self, features: np.ndarray, rows: slice, others: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Squared distances from some points to all others, in blocks of columns."""
        some = np.asarray(features[rows], np.float64) - self._centre
        norms = np.sum(some**2, axis=1)[:, None]
        for columns in self._blocks(0, len(others)):
            block = np.asarray(others[columns], np.float64) - self._centre
            both = norms + np.sum(block**2, axis=1)
            squares = both - 2.0 * (some @ block.T)
            squares[squares <= self._rounding * both] = 0.0  # a copy of the point, as far as rounding shows
            yield columns, squares


def _in_closed(squares: np.ndarray, radii: np.ndarray) -> np.ndarray:
    return squares <= radii * (1.0 + _TIE)


def _in_open(squares: np.ndarray, radii: np.ndarray) -> np.ndarray:
    return squares < radii * (1.0 - _TIE)
