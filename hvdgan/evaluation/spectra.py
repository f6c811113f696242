"""Radially averaged power spectra in one, two and three dimensions."""

import math

import numpy as np


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
        times = np.where((last > 0) & (2 * np.arange(len(last)) != space[-1]), 2.0, 1.0)
        weights = np.broadcast_to(times, rings.shape).ravel()
        self._weights = weights / np.bincount(self._rings, weights)[self._rings]

    def summed_powers(self, fields: np.ndarray) -> np.ndarray:
        """Mean power of the modes of each ring, summed over fields.

        The power of a mode is |F|^2 / n^2 with the discrete Fourier transform F and the number n of places, so that
        the powers of all modes of a field sum to its mean square.
        """
        modes = np.fft.rfftn(fields, axes=tuple(range(1, fields.ndim)))
        powers = np.sum((np.abs(modes) / self._places) ** 2, axis=0).ravel()
        return np.bincount(self._rings, powers * self._weights)[1:]
