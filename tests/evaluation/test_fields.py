"""Distances of fields and vectors whose distance is known, for any division into batches and ranks."""

import sys

import numpy as np
import pytest

from hvdgan.evaluation.fields import FieldSums, field_distances
from launching import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import random_fields


def edges_of(low, high, channels, bins=100):
    return np.tile(np.linspace(low, high, bins + 1), (channels, 1))


def sums(samples, edges, conditions=None):
    made = FieldSums(samples.shape[1:], edges, 0 if conditions is None else conditions.shape[1])
    made.add(samples, conditions)
    return made


def noise(seed, shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# what each distance measures


def test_a_shift_moves_the_histogram_by_its_size_in_deviations():
    real = 2.0 * noise(0, (200, 8, 8, 1))
    edges = edges_of(-12, 12, 1, bins=2400)
    found = field_distances(sums(real + 1.0, edges), sums(real, edges))
    assert found["histogram"] == pytest.approx(0.5, rel=0.01)
    assert found["spectrum"] == pytest.approx(0.0, abs=1e-6)


def test_numbers_outside_the_edges_are_in_the_end_bins():
    made = sums(np.array([[-9.0], [0.0], [0.5], [0.6], [1.0], [9.0]]), np.array([[0.0, 0.5, 1.0]]))
    np.testing.assert_array_equal(made.histogram, [[2 / 6, 4 / 6]])


def test_twice_the_amplitude_is_four_times_the_power():
    real = noise(1, (50, 12, 12, 2))
    edges = edges_of(-5, 5, 2)
    found = field_distances(sums(real * [1.0, 2.0], edges), sums(real, edges))
    assert found["spectrum"] == pytest.approx(np.log(4) / 2, rel=1e-6)
    assert found["channel_correlation"] == pytest.approx(0.0, abs=1e-6)


def test_the_spectrum_and_correlation_of_random_fields_are_the_expected_ones():
    heights = random_fields.orography(32)
    samples = random_fields.fields(600, heights)
    made = sums(samples, edges_of(-5, 5, 2))
    expected = random_fields.radial(random_fields.expected_spectrum(heights)[None, ..., None])[0, :, 0]
    np.testing.assert_allclose(made.spectrum, np.stack([expected] * 2), rtol=0.1)
    steep = random_fields.fields(600, np.zeros_like(heights), modulation=0)
    powers = sums(steep, edges_of(-5, 5, 2)).spectrum.mean(axis=0)
    waves = np.arange(1, 17)
    slope = np.polyfit(np.log(waves[2:]), np.log(powers[2:]), 1)[0]
    assert slope == pytest.approx(-random_fields.SLOPE, abs=0.1)
    assert made.channel_correlation[0, 1] == pytest.approx(random_fields.CORRELATION, abs=0.05)


def test_the_correlation_of_channels():
    one, other = noise(2, (2, 4000))
    real, fake = np.stack([one, other, -one], axis=1), np.stack([one, one, one], axis=1)
    edges = edges_of(-5, 5, 3)
    found = field_distances(sums(fake, edges), sums(real, edges))
    assert found.keys() == {"histogram", "channel_correlation"}  # a vector has no spectrum
    r = np.corrcoef(real, rowvar=False)
    assert found["channel_correlation"] == pytest.approx(
        np.sqrt(((1 - r[0, 1]) ** 2 + 4 + (1 - r[1, 2]) ** 2) / 3), rel=1e-6
    )


def test_the_correlation_of_a_samples_mean_with_the_conditions():
    conditions = 1000.0 + noise(3, (300, 2))
    samples = noise(4, (300, 4, 4, 4, 1)) + conditions[:, 0].reshape(300, 1, 1, 1, 1) - 1000.0
    edges = edges_of(-8, 8, 1)
    made = sums(samples, edges, conditions)
    means = samples.mean(axis=(1, 2, 3, 4), dtype=np.float64)
    expected = np.corrcoef(means, conditions.astype(np.float64), rowvar=False)[0, 1:]
    np.testing.assert_allclose(made.condition_correlation, expected[None], rtol=1e-6, atol=1e-8)
    unrelated = sums(samples, edges, conditions[::-1])
    found = field_distances(unrelated, made)
    assert found.keys() == {"histogram", "spectrum", "condition_correlation"}
    difference = unrelated.condition_correlation - made.condition_correlation
    assert found["condition_correlation"] == pytest.approx(np.sqrt(np.mean(difference**2))) and difference[0, 0] < -0.8


# what they must endure


@pytest.mark.parametrize(("constant", "below"), [(0.0, 4), (0.1, 4.1), (1e6 + 0.1, 4.1)])
def test_a_constant_channel(constant, below):
    shape = (20, 8, 8, 2)
    real, fake = noise(5, shape), noise(6, shape)
    real[..., 1] = constant
    edges = np.stack([np.linspace(-4, 4, 41), np.linspace(constant - below, constant + 4, 41)])
    conditions = np.stack([real[:, 0, 0, 0], np.ones(20)], axis=1)
    both = sums(real, edges, conditions)
    again = field_distances(both, sums(real[::-1], edges, conditions[::-1]))
    assert list(again.values()) == pytest.approx([0.0] * 4, abs=1e-9)
    assert both.channel_correlation[0, 1] == 0 and not both.condition_correlation[1].any()
    fake[..., 1] += np.float32(constant)
    there = field_distances(sums(fake, edges, conditions), both)
    assert np.isfinite(list(there.values())).all()
    # The mean of |x| in units of the root mean square; the other channel's distance is that of two samples of noise.
    assert there["histogram"] == pytest.approx(np.sqrt(2 / np.pi) / 2, abs=0.05)
    assert 10 < there["spectrum"] < 60
    assert np.isfinite(list(field_distances(both, sums(fake, edges, conditions)).values())).all()


def test_a_large_mean_costs_no_digits():
    samples = noise(7, (100, 6, 6, 2))
    far = samples.astype(np.float64) + 1e7
    near = sums(samples, edges_of(-4, 4, 2))
    moved = sums(far, edges_of(-4 + 1e7, 4 + 1e7, 2))
    np.testing.assert_allclose(moved.variance, near.variance, rtol=1e-6)
    np.testing.assert_allclose(moved.spectrum, near.spectrum, rtol=1e-6)


@pytest.mark.parametrize("space", [(), (6,), (5, 6), (4, 5, 6)])
def test_the_sum_over_ranks_is_the_whole(space):
    samples, conditions = noise(8, (21, *space, 3)), noise(9, (21, 2))
    edges = edges_of(-3, 3, 3, bins=20)
    whole = sums(samples, edges, conditions)
    batches = zip(np.split(samples, [4, 4, 15]), np.split(conditions, [4, 4, 15]), strict=True)
    parts = [sums(some, edges, theirs).arrays() for some, theirs in batches]
    together = FieldSums.of_arrays({name: sum(part[name] for part in parts) for name in parts[0]}, (*space, 3), edges)
    assert together.count == 21
    for name, array in whole.arrays().items():
        np.testing.assert_allclose(together.arrays()[name], array, rtol=1e-12, atol=1e-12, err_msg=name)
    other = sums(noise(10, samples.shape), edges, conditions)
    assert field_distances(together, other) == pytest.approx(field_distances(whole, other), rel=1e-9)


def test_what_cannot_be_compared_is_refused():
    some = sums(noise(11, (5, 4, 4, 1)), edges_of(-3, 3, 1))
    with pytest.raises(ValueError, match="same shape, edges and conditions"):
        field_distances(some, sums(noise(11, (5, 4, 4, 1)), edges_of(-3, 4, 1)))
    with pytest.raises(ValueError, match="no samples"):
        field_distances(some, FieldSums((4, 4, 1), edges_of(-3, 3, 1)))
    with pytest.raises(ValueError, match=r"samples of shape \(4, 5, 1\) instead of \(4, 4, 1\)"):
        some.add(noise(11, (5, 4, 5, 1)))
    with pytest.raises(ValueError, match="edges of 2 channels"):
        FieldSums((4, 4, 1), edges_of(-3, 3, 2))
