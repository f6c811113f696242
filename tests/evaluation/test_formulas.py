"""The distances of sets against their definitions, whatever the division into batches and ranks.
Modules: evaluation.fields, evaluation.moments"""

import math

import numpy as np
import pytest

from hvdgan.evaluation.fields import FieldSums, Rings, field_distances
from hvdgan.evaluation.formulas import (
    ClassScore,
    Modes,
    directions,
    frechet_distance,
    kid,
    neighbours,
    squared_distance,
)
from hvdgan.evaluation.formulas import sliced_wasserstein as sliced
from hvdgan.evaluation.moments import Moments


def normal(seed, shape, mean=0.0):
    return np.random.default_rng(seed).normal(mean, 1.0, shape)


def noise(seed, shape):
    return normal(seed, shape).astype(np.float32)


def three_ranks(work, count):
    """The work of three ranks, one of which has none."""
    return np.concatenate([work(0, min(count, 3)), work(3, 3) if count > 3 else work(0, 0), work(min(count, 3), count)])


FEATURES, ORIGIN = normal(0, (90, 5), 3.0).astype(np.float32), np.linspace(-4.0, 4.0, 5)


def moments(features, origin=ORIGIN):
    made = Moments(origin)
    made.add(features)
    return made


def test_moments_are_numpys_also_as_a_sum_over_ranks():
    parts = [moments(each).arrays() for each in np.split(FEATURES, [7, 7, 40])]
    together = Moments(ORIGIN, {name: sum(part[name] for part in parts) for name in parts[0]})
    for made in (moments(FEATURES), together):
        assert made.count == 90
        np.testing.assert_allclose(made.mean, FEATURES.astype(np.float64).mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(made.covariance, np.cov(FEATURES.astype(np.float64), rowvar=False), rtol=1e-9)


def test_covariances_without_common_axes_and_singular_ones():
    """In two dimensions tr((S S')^(1/2)) = sqrt(tr(S S') + 2 sqrt(det S det S'))."""
    one, other, zero = np.array([[2.0, 0.6], [0.6, 1.0]]), np.array([[1.0, -0.8], [-0.8, 3.0]]), np.zeros(2)
    root = np.sqrt(np.trace(one @ other) + 2 * np.sqrt(np.linalg.det(one) * np.linalg.det(other)))
    assert frechet_distance(zero, one, zero, other) == pytest.approx(3.0 + 4.0 - 2 * root, rel=1e-12)
    lines = [np.outer(each, each) for each in (np.array([2.0, 0]), 3.0 * np.array([np.cos(1.0), np.sin(1.0)]))]
    assert frechet_distance(zero, lines[0], zero, lines[1]) == pytest.approx(13 - 12 * np.cos(1.0), rel=1e-7)
    few = np.cov(normal(1, (20, 40)), rowvar=False)  # rank 19
    assert 0 <= frechet_distance(np.ones(40), few, np.ones(40), few) < 1e-6


def test_kid_is_the_mean_of_the_kernel_over_pairs_of_different_samples():
    fake, real = normal(0, (5, 3)), normal(1, (4, 3))

    def k(x, y):
        return (np.dot(x, y) / 3 + 1) ** 3

    pairs = [(x, y) for some in (fake, real) for i, x in enumerate(some) for j, y in enumerate(some) if i != j]
    within = [np.mean([k(x, y) for x, y in each]) for each in (pairs[:20], pairs[20:])]
    expected = sum(within) - 2 * np.mean([k(x, y) for x in fake for y in real])
    assert squared_distance(fake, real) == pytest.approx(expected, rel=1e-12)
    # Sets that are no larger than a subset are compared once.
    assert kid(fake[:4], real, seed=0)[0] == squared_distance(fake[:4], real) and math.isnan(kid(real, real, seed=0)[1])


def test_the_seed_decides_the_subsets_and_the_ranks_do_not():
    fake, real, settings = normal(0, (60, 3)), normal(1, (50, 3)), {"subsets": 7, "subset_size": 10}
    alone = kid(fake, real, seed=3, **settings)
    assert kid(fake, real, seed=3, **settings, share=three_ranks) == alone != kid(fake, real, seed=4, **settings)
    scores = []
    for number in range(7):
        draw = np.random.default_rng([3, number])
        scores.append(squared_distance(*(each[draw.choice(len(each), 10, replace=False)] for each in (fake, real))))
    assert alone == pytest.approx((np.mean(scores), np.std(scores)), rel=1e-12)


LINE = np.arange(10.0)[:, None]  # 0, 1, ..., 9
THIRD = np.array([3, 2, 2, 2, 2, 2, 2, 2, 2, 3])
FIFTH = np.array([5, 4, 3, 3, 3, 3, 3, 3, 4, 5])


def test_neighbours_on_a_line():
    """The point 12 is at the distance of the radius of 9: inside for precision and recall."""
    fake = np.array([0.5, 2.25, 2.75, 4.5, 12, 30, 31, 32])[:, None]
    distances = np.abs(LINE - fake.T)  # (real, fake)
    found = neighbours(fake, LINE)
    assert found["precision"] == np.mean((distances <= THIRD[:, None]).any(axis=0)) == 5 / 8
    assert neighbours(LINE, fake)["recall"] == 5 / 8
    assert found["density"] == pytest.approx((distances < FIFTH[:, None]).sum() / (5 * 8), rel=1e-12)
    assert found["coverage"] == np.mean((distances < FIFTH[:, None]).any(axis=1))
    assert set(neighbours(LINE + 100, LINE).values()) == {0.0}
    # A point at the distance of the radius itself is outside for density.
    assert neighbours(LINE, LINE)["density"] == pytest.approx((abs(LINE - LINE.T) < FIFTH[:, None]).sum() / (5 * 10))


def test_sliced_distances_on_a_line_and_of_a_shift():
    """In two dimensions the mean of |cos| over all directions is 2 / pi."""
    # Half of 0, 0, 3 moves from 0 to 1, a sixth from 0 to 2, and a third from 3 to 2.
    found = sliced(np.array([[0.0], [3], [0]]), np.array([[2.0], [1]]))
    assert found == pytest.approx(1 / 2 + 2 / 6 + 1 / 3, rel=1e-12)
    points, drawn = normal(3, (50, 2)), directions(0, 2, count=20_000)
    assert sliced((points + [3, 4]) @ drawn, points @ drawn) == pytest.approx(5 * 2 / np.pi, rel=0.02)
    np.testing.assert_array_equal(drawn, directions(0, 2, count=20_000))


def test_the_score_is_the_exponential_of_the_mean_divergence_from_the_mean_of_each_split():
    probabilities = np.random.default_rng(0).dirichlet(np.ones(6), 33)
    splits = [probabilities[[n for n in range(33) if n * 10 // 33 == split]] for split in range(10)]
    scores = [np.exp(np.mean(np.sum(each * np.log(each / each.mean(axis=0)), axis=1))) for each in splits]
    made = ClassScore(6, 33)
    for batch in np.array_split(np.random.default_rng(2).permutation(33), 5):
        made.add(probabilities[batch], batch)
    assert made.value() == pytest.approx((np.mean(scores), np.std(scores)), rel=1e-12)


def test_modes_are_counted_by_the_largest_probability_and_a_bad_sample_is_in_none():
    """No sample is in mode 3; the bad samples change no figure of the others, nor their score."""
    good = np.random.default_rng(0).dirichlet(np.ones(6), 90).astype(np.float32) * [1, 1, 1, 0, 1, 1]
    everything = np.insert(good, [0, 30, 30, 90], 0.0, axis=0)
    parts = [Modes(6), Modes(6)]
    for number, batch in enumerate(np.split(everything, [11, 70])):
        parts[number % 2].add(batch)
    for name, own in parts[0].arrays().items():
        own += parts[1].arrays()[name]
    shares = np.unique(good.argmax(axis=1), return_counts=True)[1] / 90
    expected = {"modes": 5, "mode_good": 90 / 94, "mode_kl": np.sum(shares * np.log(shares / (1 / 6)))}
    assert parts[0].values() == pytest.approx(expected, rel=1e-12)
    score, alone = ClassScore(6, 94, splits=1), ClassScore(6, 90, splits=1)
    score.add(everything, np.arange(94))
    alone.add(good, np.arange(90))
    assert score.value() == pytest.approx(alone.value(), rel=1e-12)


def test_26000_perfect_samples_of_1000_modes_have_the_known_divergence():
    """It is above 0, since the shares of the modes are those of a finite set; without good samples it is undefined."""
    ones, drawn = np.eye(1000, dtype=np.float32), np.random.default_rng(0).integers(0, 1000, (5, 26, 1000))
    found = []
    for draw in drawn:
        made = Modes(1000)
        for batch in draw:
            made.add(ones[batch])
        found.append(made.values())
    assert np.mean([each["mode_kl"] for each in found]) == pytest.approx(0.0192, abs=0.001)
    assert {(each["modes"], each["mode_good"]) for each in found} == {(1000.0, 1.0)}
    none, score = Modes(3), ClassScore(3, 2)
    none.add(np.zeros((2, 3)))
    score.add(np.zeros((2, 3)), np.arange(2))
    assert none.values()["modes"] == 0 and np.isnan([none.values()["mode_kl"], *score.value()]).all()


def edges_of(low, high, channels, bins=100):
    return np.tile(np.linspace(low, high, bins + 1), (channels, 1))


def sums(samples, edges, conditions=None):
    made = FieldSums(samples.shape[1:], edges, 0 if conditions is None else conditions.shape[1])
    made.add(samples, conditions)
    return made


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


@pytest.mark.parametrize("space", [(9,), (32, 16), (6, 5, 4)])
def test_each_ring_has_the_mean_power_of_its_modes(space):
    fields = noise(2, (3, *space)).astype(np.float64)
    powers = np.mean(np.abs(np.stack([np.fft.fftn(field) for field in fields]) / fields[0].size) ** 2, axis=0)
    shortest = min(length for length in space if length > 1)
    frequencies = np.meshgrid(*map(np.fft.fftfreq, space), indexing="ij")
    rings = np.rint(shortest * np.linalg.norm(frequencies, axis=0))
    expected = [powers[rings == ring].mean() for ring in range(1, shortest // 2 + 1)]
    np.testing.assert_allclose(Rings(space).summed_powers(fields) / 3, expected, rtol=1e-10)
    assert Rings(()).count == Rings((1, 1)).count == 0
