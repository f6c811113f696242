"""Distances between samples of any shape that need no network: histograms, power spectra, correlations."""

import math

import numpy as np

from hvdgan.evaluation.spectra import Rings

_CONSTANT = 1e-13
"""variance, relative to the mean square, below which a channel is constant and the rest is rounding"""
_NO_POWER = 1e-24
"""power of a mode, relative to the mean square of its channel, that counts as none; the rounding of an FFT is less"""
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


class FieldSums:
    """Sums over samples (*space, C); a vector (C,) is a sample of one place.

    The histograms count all places of a channel. The mean power of each ring of wavenumbers is that of `Rings`. The
    correlations are those between two channels, over all places of all samples, and those between the mean of a channel
    over a sample and each condition.
    """

    def __init__(self, shape: tuple[int, ...], edges: np.ndarray, conditions: int = 0) -> None:
        channels = shape[-1]
        self.shape = tuple(shape)
        self.edges = np.asarray(edges, np.float64)
        self._rings = Rings(shape[:-1])
        # Sums of squares lose digits where the mean is large; the middle edge is near it, and the same on all ranks.
        self._centre = self.edges[:, self.edges.shape[1] // 2]
        self._sums = {
            "count": np.zeros(()),
            "histogram": np.zeros((channels, self.edges.shape[1] - 1)),
            "total": np.zeros(channels),
            "products": np.zeros((channels, channels)),
            "spectrum": np.zeros((channels, self._rings.count)),
            "means": np.zeros(channels + conditions),
            "mean_products": np.zeros((channels + conditions, channels + conditions)),
        }

    @property
    def conditions(self) -> int:
        """Number of conditions of a sample."""
        return len(self._sums["means"]) - self.shape[-1]

    def add(self, samples: np.ndarray, conditions: np.ndarray | None = None) -> None:
        """Add samples."""
        sums, count, channels = self._sums, len(samples), self.shape[-1]
        if not count:
            return
        samples = np.asarray(samples, np.float64)
        for channel, edges in enumerate(self.edges):
            sums["histogram"][channel] += _counts(samples[..., channel], edges)
        samples = samples - self._centre
        places = samples.reshape(-1, channels)
        sums["count"] += count
        sums["total"] += places.sum(axis=0)
        sums["products"] += places.T @ places
        if self._rings.count:
            for channel in range(channels):
                sums["spectrum"][channel] += self._rings.summed_powers(samples[..., channel])
        means = samples.reshape(count, -1, channels).mean(axis=1)
        if self.conditions:
            means = np.concatenate([means, np.asarray(conditions, np.float64)], axis=1)
        sums["means"] += means.sum(axis=0)
        sums["mean_products"] += means.T @ means

    def arrays(self) -> dict[str, np.ndarray]:
        """The sums by name, all float64; those of several ranks add up. They are not copied."""
        return self._sums

    @property
    def count(self) -> int:
        """Number of samples."""
        return int(self._sums["count"])

    @property
    def histogram(self) -> np.ndarray:
        """Fraction of the numbers of each channel in each bin, (C, bins)."""
        counts = self._sums["histogram"]
        return counts / counts.sum(axis=1, keepdims=True)

    @property
    def spectrum(self) -> np.ndarray:
        """Mean power of the modes of each wavenumber 1, 2, ..., (C, K); K is 0 for vectors."""
        return self._sums["spectrum"] / self._sums["count"]

    @property
    def mean(self) -> np.ndarray:
        """Mean of each channel, (C,)."""
        return self._centre + self._sums["total"] / self._numbers

    @property
    def mean_square(self) -> np.ndarray:
        """Mean square of the difference of each channel from its middle edge, (C,)."""
        return np.diag(self._sums["products"]) / self._numbers

    @property
    def variance(self) -> np.ndarray:
        """Variance of each channel, (C,); 0 for a constant one."""
        return np.diag(_covariance(self._numbers, self._sums["total"], self._sums["products"]))

    @property
    def channel_correlation(self) -> np.ndarray:
        """Correlation of any two channels, (C, C); 0 where one is constant."""
        return _correlation(self._numbers, self._sums["total"], self._sums["products"])

    @property
    def condition_correlation(self) -> np.ndarray:
        """Correlation of each channel's mean over a sample with each condition, (C, k); 0 where one is constant."""
        sums, channels = self._sums, self.shape[-1]
        return _correlation(sums["count"], sums["means"], sums["mean_products"])[:channels, channels:]

    @property
    def _numbers(self) -> float:
        """Number of numbers in a channel."""
        return float(self._sums["count"] * np.prod(self.shape[:-1]))


def field_distances(fake: FieldSums, real: FieldSums) -> dict[str, float]:
    """Compare two sets of samples with the same edges and conditions; each distance is 0 if they agree."""
    found = {"histogram": _histogram_distance(fake, real)}
    if real.spectrum.size:
        found["spectrum"] = _spectrum_distance(fake, real)
    above = np.triu_indices(real.shape[-1], 1)
    if len(above[0]):
        found["channel_correlation"] = _root_mean_square(
            fake.channel_correlation[above] - real.channel_correlation[above]
        )
    if real.conditions:
        found["condition_correlation"] = _root_mean_square(fake.condition_correlation - real.condition_correlation)
    return found


def _counts(numbers: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Number of numbers in each bin; a bin has its lower edge."""
    return np.bincount(np.searchsorted(edges[1:-1], numbers.ravel(), side="right"), minlength=len(edges) - 1)


def _histogram_distance(fake: FieldSums, real: FieldSums) -> float:
    middles = (real.edges[:, 1:] + real.edges[:, :-1]) / 2
    differences = np.abs(np.cumsum(fake.histogram - real.histogram, axis=1)[:, :-1])
    distances = np.sum(differences * np.diff(middles, axis=1), axis=1)
    # A constant real channel has no deviation: there the unit is the root mean square of the fake channel's difference.
    squares = np.where(real.variance > 0, real.variance, fake.variance + (fake.mean - real.mean) ** 2)
    units = np.sqrt(squares)
    return float(np.mean(np.divide(distances, units, out=np.zeros_like(distances), where=units > 0)))


def _spectrum_distance(fake: FieldSums, real: FieldSums) -> float:
    least = _NO_POWER * np.maximum(fake.mean_square, real.mean_square)[:, None]
    least[least == 0] = 1.0  # both channels are constant: no power in either
    return float(np.mean(np.abs(np.log(np.maximum(fake.spectrum, least) / np.maximum(real.spectrum, least)))))


def _covariance(count: float | np.ndarray, total: np.ndarray, products: np.ndarray) -> np.ndarray:
    """Covariance with the divisor N; rows and columns of constants are 0."""
    mean, squares = total / count, np.diag(products) / count
    found = products / count - np.outer(mean, mean)
    constant = np.diag(found) <= _CONSTANT * squares
    found[constant], found[:, constant] = 0.0, 0.0
    return found


def _correlation(count: float | np.ndarray, total: np.ndarray, products: np.ndarray) -> np.ndarray:
    covariance = _covariance(count, total, products)
    deviations = np.sqrt(np.diag(covariance))
    deviations = np.where(deviations > 0, deviations, 1.0)  # a constant: its covariances are 0
    return covariance / np.outer(deviations, deviations)


def _root_mean_square(differences: np.ndarray) -> float:
    return float(np.sqrt(np.mean(differences**2)))
