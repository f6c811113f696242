"""Distances between samples of any shape that need no network: histograms, power spectra, correlations."""

import math

import numpy as np

from hvdgan.evaluation.moments import Moments

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


class Rings:
    """Rings of wavenumbers of fields with one axis or more.

    The frequency f of a mode is counted in cycles per place (pixel), |f| = sqrt(f_1^2 + f_2^2 + ...), so that a ring is
    isotropic in a rectangular field, too. With the length N of the shortest axis, ring k = 1, 2, ..., N / 2 has the
    modes whose N |f| is rounded to k: in a square field, k waves per domain. The mean of a field, f = 0, is in no ring,
    nor are the corners beyond N / 2. Axes of length 1 do not count.
    """

    def __init__(self, space: tuple[int, ...]) -> None:
        shortest = min((length for length in space if length > 1), default=0)
        self.count = shortest // 2
        """number of rings"""
        self._places = math.prod(space)
        if not self.count:
            return
        # The fields are real, so half of the last axis determines the other half.
        last = np.fft.rfftfreq(space[-1])
        grids = np.meshgrid(*(np.fft.fftfreq(length) for length in space[:-1]), last, indexing="ij")
        rings = np.rint(np.sqrt(sum(grid**2 for grid in grids)) * shortest).astype(int)
        self._rings = np.where(rings <= self.count, rings, 0).ravel()  # 0: none of the rings
        self._times = np.where((last > 0) & (2 * np.arange(len(last)) != space[-1]), 2.0, 1.0)
        weights = np.bincount(self._rings, np.broadcast_to(self._times, rings.shape).ravel())
        self._modes = np.maximum(weights, 1.0)  # a ring may have none

    def summed_powers(self, fields: np.ndarray) -> np.ndarray:
        """Mean power of the modes of each ring, summed over fields.

        The power of a mode is |F|^2 / n^2 with the discrete Fourier transform F and the number n of places, so that
        the powers of all modes of a field sum to its mean square.
        """
        modes = np.fft.rfftn(fields, axes=tuple(range(1, fields.ndim)))
        powers = np.sum((np.abs(modes) / self._places) ** 2, axis=0)
        powers *= self._times.astype(powers.dtype)
        return (np.bincount(self._rings, powers.ravel()) / self._modes)[1:]


class FieldSums:
    """Sums over samples (*space, C); a vector (C,) is a sample of one place.

    The histograms count all places of a channel. The mean power of each ring of wavenumbers is that of `Rings`. The
    correlations are those between two channels, over all places of all samples, and those between the mean of a channel
    over a sample and each condition.
    """

    def __init__(self, shape: tuple[int, ...], edges: np.ndarray, conditions: int = 0) -> None:
        channels = shape[-1]
        self.shape, self.conditions = tuple(shape), conditions
        self.edges = np.asarray(edges, np.float64)
        self._rings = Rings(shape[:-1])
        # Sums of squares lose digits where the mean is large; the middle edge is near it, and the same on all ranks.
        self._centre = self.edges[:, self.edges.shape[1] // 2]
        self._numbers = Moments(self._centre)
        self._means = Moments(np.zeros(channels + conditions))
        self._sums = {
            "histogram": np.zeros((channels, self.edges.shape[1] - 1)),
            "spectrum": np.zeros((channels, self._rings.count)),
        }

    def add(self, samples: np.ndarray, conditions: np.ndarray | None = None) -> None:
        """Add samples."""
        if not len(samples):
            return
        channels, samples = self.shape[-1], np.asarray(samples, np.float64)
        self._numbers.add(samples.reshape(-1, channels))
        centred = samples - self._centre
        for channel, edges in enumerate(self.edges):
            self._sums["histogram"][channel] += _counts(samples[..., channel], edges)
            if self._rings.count:
                self._sums["spectrum"][channel] += self._rings.summed_powers(centred[..., channel])
        means = centred.reshape(len(samples), -1, channels).mean(axis=1)
        if self.conditions:
            means = np.concatenate([means, np.asarray(conditions, np.float64)], axis=1)
        self._means.add(means)

    def arrays(self) -> dict[str, np.ndarray]:
        """The sums by name, all float64; those of several ranks add up. They are not copied."""
        numbers, means = self._numbers.arrays().items(), self._means.arrays().items()
        return {
            **self._sums,
            **{f"numbers/{name}": each for name, each in numbers},
            **{f"means/{name}": each for name, each in means},
        }

    @property
    def count(self) -> int:
        """Number of samples."""
        return self._means.count

    @property
    def histogram(self) -> np.ndarray:
        """Fraction of the numbers of each channel in each bin, (C, bins)."""
        counts = self._sums["histogram"]
        return counts / counts.sum(axis=1, keepdims=True)

    @property
    def spectrum(self) -> np.ndarray:
        """Mean power of the modes of each wavenumber 1, 2, ..., (C, K); K is 0 for vectors."""
        return self._sums["spectrum"] / self.count

    @property
    def mean(self) -> np.ndarray:
        """Mean of each channel, (C,)."""
        return self._numbers.mean

    @property
    def mean_square(self) -> np.ndarray:
        """Mean square of the difference of each channel from its middle edge, (C,)."""
        return self._numbers.mean_square

    @property
    def variance(self) -> np.ndarray:
        """Variance of each channel, (C,); 0 for a constant one."""
        return np.diag(_covariance(self._numbers))

    @property
    def channel_correlation(self) -> np.ndarray:
        """Correlation of any two channels, (C, C); 0 where one is constant."""
        return _correlation(self._numbers)

    @property
    def condition_correlation(self) -> np.ndarray:
        """Correlation of each channel's mean over a sample with each condition, (C, k); 0 where one is constant."""
        return _correlation(self._means)[: self.shape[-1], self.shape[-1] :]


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


def _covariance(moments: Moments) -> np.ndarray:
    """Covariance with the divisor N; rows and columns of constants are 0."""
    found = moments.covariance * ((moments.count - 1) / moments.count)
    constant = np.diag(found) <= _CONSTANT * moments.mean_square
    found[constant], found[:, constant] = 0.0, 0.0
    return found


def _correlation(moments: Moments) -> np.ndarray:
    covariance = _covariance(moments)
    deviations = np.sqrt(np.diag(covariance))
    deviations = np.where(deviations > 0, deviations, 1.0)  # a constant: its covariances are 0
    return covariance / np.outer(deviations, deviations)


def _root_mean_square(differences: np.ndarray) -> float:
    return float(np.sqrt(np.mean(differences**2)))
