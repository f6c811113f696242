"""Bins of histograms: the range is covered, and its bins are narrow where most of the numbers lie."""

import numpy as np
import pytest

from hvdgan.evaluation.bins import PICKED, bin_edges, picked_numbers
from hvdgan.evaluation.fields import FieldSums, field_distances


def edges_of(samples):
    flat = samples.reshape(-1, samples.shape[-1])
    return bin_edges(flat.min(axis=0), flat.max(axis=0), picked_numbers(samples).reshape(-1, samples.shape[-1]))


def distance(fake, real):
    sums = [FieldSums(real.shape[1:], edges_of(real)) for _ in range(2)]
    for each, samples in zip(sums, (fake, real), strict=True):
        each.add(samples)
    return field_distances(*sums)["histogram"]


def test_they_cover_the_numbers_and_a_tenth_more():
    numbers = np.random.default_rng(0).uniform(-3, 7, (200, 4, 5, 2))
    numbers[17, 2, 3] = -13.0, 27.0
    edges = edges_of(numbers)
    assert edges.shape == (2, 1001) and np.all(np.diff(edges, axis=1) >= 0)
    least, most = numbers.min(axis=(0, 1, 2)), numbers.max(axis=(0, 1, 2))
    np.testing.assert_allclose(edges[:, 0], least - 0.1 * (most - least))
    np.testing.assert_allclose(edges[:, -1], most + 0.1 * (most - least))


def test_a_channel_of_one_number_has_half_a_unit_on_each_side():
    edges = edges_of(np.full((7, 1), 4.0))
    assert (edges[0, 0], edges[0, -1]) == (3.5, 4.5)


def test_what_is_picked_of_a_sample_does_not_depend_on_the_others():
    for shape in ((3, 24, 24, 24, 2), (3, 5000), (3, 4, 4, 1)):
        samples = np.random.default_rng(1).normal(0, 1, shape)
        picked = picked_numbers(samples)
        parts = [picked_numbers(samples[:1]), picked_numbers(samples[1:])]
        np.testing.assert_array_equal(picked, np.concatenate(parts))
        assert picked.shape == (3, min(PICKED, samples[0, ..., 0].size), shape[-1])
        assert np.all(np.diff(picked, axis=1) >= 0) and np.isin(picked, samples).all()


@pytest.mark.parametrize("shape", [(0, 4, 4, 20), (0, 30, 3), (0, 40)])
def test_nothing_is_picked_of_no_samples(shape):
    assert picked_numbers(np.zeros(shape)).reshape(-1, shape[-1]).shape == (0, shape[-1])


def test_small_numbers_differ_beside_rare_large_ones():
    """With bins of one width all the small numbers fall in one: the range is 10,000 of their deviations."""
    draw = np.random.default_rng(2)
    real, fake = draw.lognormal(0, 0.5, (2000, 8, 8, 1)), draw.lognormal(0, 0.5, (2000, 8, 8, 1)) * 1.5
    for each in (real, fake):
        each[::500, 0, 0] = 1e4
    expected = np.abs(np.sort(fake.ravel()) - np.sort(real.ravel())).mean() / real.std()
    assert distance(fake, real) == pytest.approx(expected, rel=0.02)


def test_deposits_differ_beside_many_zeros():
    draw = np.random.default_rng(3)
    hit = draw.random((500, 6, 6, 6, 1)) < 0.03
    real = np.where(hit, draw.pareto(1.5, hit.shape) * 1e-3, 0)
    fake = np.where(hit, real * 2, 0)
    real[0, 0, 0, 0] = fake[0, 0, 0, 0] = 5.0
    expected = np.abs(np.sort(fake.ravel()) - np.sort(real.ravel())).mean() / real.std()
    assert distance(fake, real) == pytest.approx(expected, rel=0.05)
