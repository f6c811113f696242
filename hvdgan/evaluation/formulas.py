"""The formulas of the distances between two sets of features, of the Inception score, and of the modes covered."""

import math
from collections.abc import Callable, Iterator

import numpy as np

Work = Callable[[int, int], np.ndarray]
"""work(first, past): the results of the items first, ..., past - 1, one row for each"""
Share = Callable[[Work, int], np.ndarray]
"""share(work, count): the results of the items 0, ..., count - 1 in their order, on every rank"""
_OF_PRECISION = 3
_OF_DENSITY = 5
_TILE_BYTES = 4 * 2**20
"""size of a block of distances, and of a block of features: those of 64 features then stay in a processor's cache"""
_TIE = 1e-9
"""relative difference of squared distances that counts as none, far above their rounding"""
_SPLITS = 10


def frechet_distance(
    mean: np.ndarray, covariance: np.ndarray, other_mean: np.ndarray, other_covariance: np.ndarray
) -> float:
    """Squared 2-Wasserstein distance of two Gaussians; of Inception features it is the FID.

    It is |m - m'|^2 + tr(S) + tr(S') - 2 tr((S S')^(1/2)). The eigenvalues of S S' are those of the symmetric matrix
    S^(1/2) S' S^(1/2), so the root of a product, which need not be symmetric, is never computed.

    Reference: Dowson and Landau 1982, equation 16; Heusel et al. 2017, equation 6.
    """
    mean, covariance, other_mean, other_covariance = (
        np.asarray(each, np.float64) for each in (mean, covariance, other_mean, other_covariance)
    )
    values, vectors = np.linalg.eigh(covariance)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    shared = np.linalg.eigvalsh(root @ other_covariance @ root)
    spread = np.trace(covariance) + np.trace(other_covariance) - 2.0 * np.sqrt(np.maximum(shared, 0.0)).sum()
    # Rounding alone can make the distance of equal distributions negative.
    return max(0.0, float(np.sum((mean - other_mean) ** 2) + spread))


def alone(work: Work, count: int) -> np.ndarray:
    """Do all of the work here."""
    return work(0, count)


def kid(
    fake: np.ndarray, real: np.ndarray, *, seed: int, subsets: int = 100, subset_size: int = 1000, share: Share = alone
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
        self._points = max(1, min(math.isqrt(_TILE_BYTES // 8), _TILE_BYTES // (8 * dimensions)))
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
        for own, _, columns, squares in self._pairs(results, self._fake, self._real, first):
            own[:, 0] = np.maximum(own[:, 0], _in_closed(squares, closed[columns]).any(axis=1))
            own[:, 1] += _in_open(squares, opened[columns]).sum(axis=1)
        return results

    def of_real(self, closed: np.ndarray, opened: np.ndarray, first: int, past: int) -> np.ndarray:
        """For some real points: 1 if they are in a closed ball of a fake point; 1 if a fake one is in their own."""
        results = np.zeros((past - first, 2))
        for own, rows, columns, squares in self._pairs(results, self._real, self._fake, first):
            own[:, 0] = np.maximum(own[:, 0], _in_closed(squares, closed[columns]).any(axis=1))
            own[:, 1] = np.maximum(own[:, 1], _in_open(squares, opened[rows, None]).any(axis=1))
        return results

    def _pairs(
        self, results: np.ndarray, features: np.ndarray, others: np.ndarray, first: int
    ) -> Iterator[tuple[np.ndarray, slice, slice, np.ndarray]]:
        """Blocks of points from the first on: their results, their places, those of some others, squared distances."""
        for rows in self._blocks(first, first + len(results)):
            for columns, squares in self._tiles(features, rows, others):
                yield results[rows.start - first : rows.stop - first], rows, columns, squares

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


class ClassScore:
    """Sums over the class probabilities of samples, in splits; with the Inception network the score is the IS.

    Sample number n of N belongs to split floor(n * splits / N), so that the splits do not depend on the ranks. A sample
    whose probabilities are all 0 is left out.

    Reference: Salimans et al. 2016, section 4.
    """

    def __init__(self, classes: int, total: int, splits: int = _SPLITS) -> None:
        self._total = total
        self._sums = {
            "counts": np.zeros(splits),
            "negative_entropies": np.zeros(splits),
            "probabilities": np.zeros((splits, classes)),
        }

    def add(self, probabilities: np.ndarray, numbers: np.ndarray) -> None:
        """Add samples."""
        probabilities, numbers = np.asarray(probabilities, np.float64), np.asarray(numbers, np.int64)
        has_class = probabilities.any(axis=1)
        probabilities, numbers = probabilities[has_class], numbers[has_class]
        splits = numbers * len(self._sums["counts"]) // self._total
        np.add.at(self._sums["counts"], splits, 1.0)
        np.add.at(self._sums["negative_entropies"], splits, _times_logarithm(probabilities).sum(axis=1))
        np.add.at(self._sums["probabilities"], splits, probabilities)

    def arrays(self) -> dict[str, np.ndarray]:
        """The sums by name, all float64; those of several ranks add up. They are not copied."""
        return self._sums

    def value(self) -> tuple[float, float]:
        """Mean and deviation of the score over the splits that have samples; from 1 to the number of classes."""
        counts, negative_entropies, probabilities = self._sums.values()
        filled = counts > 0
        if not filled.any():
            return math.nan, math.nan
        marginals = probabilities[filled] / counts[filled, None]
        divergences = negative_entropies[filled] / counts[filled] - _times_logarithm(marginals).sum(axis=1)
        scores = np.exp(divergences)
        return float(scores.mean()), float(scores.std())


class Modes:
    """Numbers of samples in each mode, which is a class of their probabilities.

    A sample is in the mode of its largest probability, however small, and of equal ones in the first; in none if all
    are 0, which marks a bad sample, such as one that is more than three standard deviations from the nearest centre.

    - modes: number of modes that have at least one sample, from 0 to the number of classes C.
    - mode_good: share of the samples that are in a mode.
    - mode_kl: sum of p_c ln(C p_c) over the modes c, where p_c is the share of mode c among the samples that are in
      one. This is KL(p || uniform), from 0 to ln C; NaN if no sample is in a mode. A finite set of perfect samples is
      above 0, by about (C - 1) / 2N for N much larger than C: 26,000 samples of 1,000 modes have 0.019.

    Reference: Che et al. 2017 (arXiv:1612.02136); Metz et al. 2017 (arXiv:1611.02163), section 3.3.1; Lin et al. 2018
    (PacGAN, arXiv:1712.04086), section 4.
    """

    def __init__(self, classes: int) -> None:
        self._sums = {"in_mode": np.zeros(classes), "samples": np.zeros(1)}

    def add(self, probabilities: np.ndarray) -> None:
        """Add samples by their class probabilities, (N, C)."""
        good = probabilities[probabilities.any(axis=1)]
        self._sums["in_mode"] += np.bincount(good.argmax(axis=1), minlength=len(self._sums["in_mode"]))
        self._sums["samples"] += len(probabilities)

    def arrays(self) -> dict[str, np.ndarray]:
        """The sums by name, all float64; those of several ranks add up. They are not copied."""
        return self._sums

    def values(self) -> dict[str, float]:
        """The three figures by name."""
        in_mode, good, samples = self._sums["in_mode"], self._sums["in_mode"].sum(), self._sums["samples"][0]
        divergence = _times_logarithm(in_mode / good).sum() + math.log(len(in_mode)) if good else math.nan
        # Rounding alone can make the divergence of equal shares negative.
        found = {"modes": np.count_nonzero(in_mode), "mode_good": good / samples, "mode_kl": max(divergence, 0.0)}
        return {name: float(value) for name, value in found.items()}


def _times_logarithm(numbers: np.ndarray) -> np.ndarray:
    """p log p, which is 0 at 0."""
    return numbers * np.log(np.where(numbers > 0, numbers, 1.0))
