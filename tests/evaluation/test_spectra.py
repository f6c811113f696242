"""Radially averaged spectra of fields whose spectrum is known, with one to three axes."""

import itertools

import numpy as np
import pytest

from hvdgan.evaluation.spectra import Rings


def wave(space, frequencies):
    """A cosine with whole numbers of waves along the axes."""
    places = np.meshgrid(*(np.arange(length) / length for length in space), indexing="ij")
    return np.cos(2 * np.pi * sum(number * place for number, place in zip(frequencies, places, strict=True)) + 0.3)


def ring_sizes(space):
    """The number of modes in each ring, counted one by one."""
    shortest = min(length for length in space if length > 1)
    sizes = np.zeros(shortest // 2 + 1)
    for numbers in itertools.product(*(range(-((length - 1) // 2), length // 2 + 1) for length in space)):
        frequency = np.linalg.norm(np.divide(numbers, space))  # cycles per pixel
        ring = int(np.rint(shortest * frequency))
        if ring < len(sizes):
            sizes[ring] += 1
    return sizes[1:]


@pytest.mark.parametrize(
    ("space", "frequencies", "ring"),
    [
        ((16,), (3,), 3),
        ((16, 16), (3, 4), 5),
        ((15, 15), (-6, 1), 6),
        ((16, 16), (0, 3), 3),
        ((32, 16), (8, 0), 4),  # 8 waves of 4 pixels along the long axis: as long as 4 waves along the short one
        ((16, 32), (0, 8), 4),
        ((8, 12, 10), (2, 3, 0), 3),  # 8 sqrt((2 / 8)^2 + (3 / 12)^2) = 2.8
        ((1, 9), (0, 2), 2),
    ],
)
def test_a_cosine_has_its_power_in_one_ring(space, frequencies, ring):
    rings, sizes = Rings(space), ring_sizes(space)
    powers = rings.summed_powers(5.0 + 2.0 * wave(space, frequencies)[None])
    expected = np.zeros(rings.count)
    expected[ring - 1] = 2.0 / sizes[ring - 1]  # the mean square of 2 cos; the mean of 5 is in no ring
    np.testing.assert_allclose(powers, expected, atol=1e-12)


def test_white_noise_has_the_same_power_in_all_rings_of_a_rectangle():
    noise = np.random.default_rng(0).normal(size=(400, 24, 40))
    powers = Rings((24, 40)).summed_powers(noise) / 400
    np.testing.assert_allclose(powers * 24 * 40, 1.0, rtol=0.05)


@pytest.mark.parametrize("space", [(8,), (9,), (8, 6), (7, 10), (4, 6, 5), (6, 5, 4)])
def test_each_ring_has_the_mean_of_its_modes(space):
    noise = np.random.default_rng(2).normal(size=space)
    powers = np.abs(np.fft.fftn(noise) / noise.size) ** 2
    frequencies = np.meshgrid(*map(np.fft.fftfreq, space), indexing="ij")
    rings = np.rint(min(space) * np.linalg.norm(frequencies, axis=0))
    expected = [powers[rings == ring].mean() for ring in range(1, min(space) // 2 + 1)]
    np.testing.assert_allclose(Rings(space).summed_powers(noise[None]), expected, rtol=1e-12)


def test_the_sum_over_batches():
    noise = np.random.default_rng(1).normal(size=(6, 5, 6, 7))
    rings = Rings((5, 6, 7))
    parts = rings.summed_powers(noise[:2]) + rings.summed_powers(noise[2:])
    np.testing.assert_allclose(parts, rings.summed_powers(noise), rtol=1e-12)


@pytest.mark.parametrize("space", [(), (1,), (1, 1)])
def test_a_single_place_has_no_rings(space):
    assert Rings(space).count == 0
