"""Distances of fields and vectors whose distance is known. Modules: evaluation.fields, evaluation.spectra"""

import numpy as np
import pytest

from hvdgan.evaluation.fields import PICKED, FieldSums, bin_edges, field_distances, picked_numbers
from hvdgan.evaluation.spectra import Rings


def edges_of(low, high, channels, bins=100):
    return np.tile(np.linspace(low, high, bins + 1), (channels, 1))


def sums(samples, edges, conditions=None):
    made = FieldSums(samples.shape[1:], edges, 0 if conditions is None else conditions.shape[1])
    made.add(samples, conditions)
    return made


def noise(seed, shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# what each distance measures


def test_a_shift_moves_the_histogram_by_its_size_and_twice_the_amplitude_is_four_times_the_power():
    real, edges = 2.0 * noise(0, (200, 8, 8, 1)), edges_of(-12, 12, 1, bins=2400)
    found = field_distances(sums(real + 1.0, edges), sums(real, edges))
    assert found["histogram"] == pytest.approx(0.5, rel=0.01)
    assert found["spectrum"] == pytest.approx(0.0, abs=1e-6)
    twice = field_distances(sums(2 * real, edges), sums(real, edges))
    assert twice["spectrum"] == pytest.approx(np.log(4), rel=1e-6)
    outside = sums(np.array([[-9.0], [0.0], [0.5], [0.6], [1.0], [9.0]]), np.array([[0.0, 0.5, 1.0]]))
    np.testing.assert_array_equal(outside.histogram, [[2 / 6, 4 / 6]])  # numbers outside are in the end bins


def test_the_correlation_of_channels():
    one, other = noise(2, (2, 4000))
    real, fake, edges = np.stack([one, other, -one], axis=1), np.stack([one, one, one], axis=1), edges_of(-5, 5, 3)
    found = field_distances(sums(fake, edges), sums(real, edges))
    assert found.keys() == {"histogram", "channel_correlation"}  # a vector has no spectrum
    r = np.corrcoef(real, rowvar=False)
    expected = np.sqrt(((1 - r[0, 1]) ** 2 + 4 + (1 - r[1, 2]) ** 2) / 3)
    assert found["channel_correlation"] == pytest.approx(expected, rel=1e-6)


def test_the_correlation_of_a_samples_mean_with_the_conditions():
    conditions, edges = 1000.0 + noise(3, (300, 2)), edges_of(-8, 8, 1)
    samples = noise(4, (300, 4, 4, 4, 1)) + conditions[:, 0].reshape(300, 1, 1, 1, 1) - 1000.0
    made, unrelated = sums(samples, edges, conditions), sums(samples, edges, conditions[::-1])
    means = samples.mean(axis=(1, 2, 3, 4), dtype=np.float64)
    expected = np.corrcoef(means, conditions.astype(np.float64), rowvar=False)[0, 1:]
    np.testing.assert_allclose(made.condition_correlation, expected[None], rtol=1e-6, atol=1e-8)
    difference = unrelated.condition_correlation - made.condition_correlation
    found = field_distances(unrelated, made)["condition_correlation"]
    assert found == pytest.approx(np.sqrt(np.mean(difference**2))) and difference[0, 0] < -0.8


# what they must endure


@pytest.mark.parametrize(("constant", "below"), [(0.0, 4), (1e6 + 0.1, 4.1)])
def test_a_constant_channel(constant, below):
    real, fake = noise(5, (20, 8, 8, 2)), noise(6, (20, 8, 8, 2))
    real[..., 1] = constant
    edges = np.stack([np.linspace(-4, 4, 41), np.linspace(constant - below, constant + 4, 41)])
    conditions = np.stack([real[:, 0, 0, 0], np.ones(20)], axis=1)
    both = sums(real, edges, conditions)
    again = field_distances(both, sums(real[::-1], edges, conditions[::-1]))
    assert list(again.values()) == pytest.approx([0.0] * 4, abs=1e-9)
    fake[..., 1] += np.float32(constant)
    there = field_distances(sums(fake, edges, conditions), both)
    # The mean of |x| in units of the root mean square; the other channel's distance is that of two samples of noise.
    assert there["histogram"] == pytest.approx(np.sqrt(2 / np.pi) / 2, abs=0.05)
    assert np.isfinite(list(there.values())).all() and 10 < there["spectrum"] < 60


@pytest.mark.parametrize("space", [(), (6,), (4, 5, 6)])
def test_the_sum_over_ranks_is_the_whole(space):
    samples, conditions, edges = noise(8, (21, *space, 3)), noise(9, (21, 2)), edges_of(-3, 3, 3, bins=20)
    whole = sums(samples, edges, conditions)
    batches = zip(np.split(samples, [4, 4, 15]), np.split(conditions, [4, 4, 15]), strict=True)
    parts = [sums(some, edges, theirs).arrays() for some, theirs in batches]
    for name, array in whole.arrays().items():
        np.testing.assert_allclose(sum(part[name] for part in parts), array, rtol=1e-12, atol=1e-12, err_msg=name)


# bins


def binned(samples):
    flat = samples.reshape(-1, samples.shape[-1])
    return bin_edges(flat.min(axis=0), flat.max(axis=0), picked_numbers(samples).reshape(-1, samples.shape[-1]))


@pytest.mark.parametrize("shape", [(3, 24, 24, 24, 2), (3, 4, 4, 1)])
def test_what_is_picked_of_a_sample_does_not_depend_on_the_others(shape):
    samples = noise(1, shape)
    picked = picked_numbers(samples)
    np.testing.assert_array_equal(picked, np.concatenate([picked_numbers(samples[:1]), picked_numbers(samples[1:])]))
    assert picked.shape == (3, min(PICKED, samples[0, ..., 0].size), shape[-1]) and np.isin(picked, samples).all()
    assert picked_numbers(samples[:0]).reshape(-1, shape[-1]).shape == (0, shape[-1])


def test_deposits_differ_beside_many_zeros_and_one_large_number():
    """With bins of one width all the deposits would fall in one."""
    draw = np.random.default_rng(3)
    hit = draw.random((500, 6, 6, 6, 1)) < 0.03
    real = np.where(hit, draw.pareto(1.5, hit.shape) * 1e-3, 0)
    fake = np.where(hit, real * 2, 0)
    real[0, 0, 0, 0] = fake[0, 0, 0, 0] = 5.0
    expected = np.abs(np.sort(fake.ravel()) - np.sort(real.ravel())).mean() / real.std()
    found = field_distances(sums(fake, binned(real)), sums(real, binned(real)))["histogram"]
    assert found == pytest.approx(expected, rel=0.05)


# spectra


@pytest.mark.parametrize("space", [(9,), (32, 16), (1, 9), (6, 5, 4)])
def test_each_ring_has_the_mean_power_of_its_modes(space):
    fields = noise(2, (3, *space)).astype(np.float64)
    powers = np.mean(np.abs(np.stack([np.fft.fftn(field) for field in fields]) / fields[0].size) ** 2, axis=0)
    shortest = min(length for length in space if length > 1)
    frequencies = np.meshgrid(*map(np.fft.fftfreq, space), indexing="ij")
    rings = np.rint(shortest * np.linalg.norm(frequencies, axis=0))
    expected = [powers[rings == ring].mean() for ring in range(1, shortest // 2 + 1)]
    np.testing.assert_allclose(Rings(space).summed_powers(fields) / 3, expected, rtol=1e-10)
    assert Rings(()).count == Rings((1, 1)).count == 0
