"""The distances of sets of features against their definitions, whatever the division into batches and ranks.

Modules: evaluation.class_score, evaluation.frechet, evaluation.kernel, evaluation.moments, evaluation.neighbours,
evaluation.sliced.
"""

import math

import numpy as np
import pytest

from hvdgan.evaluation import neighbours as module
from hvdgan.evaluation.class_score import ClassScore
from hvdgan.evaluation.frechet import frechet_distance
from hvdgan.evaluation.kernel import kid, squared_distance
from hvdgan.evaluation.moments import ClassMoments, Moments
from hvdgan.evaluation.neighbours import neighbours
from hvdgan.evaluation.sliced import directions, sliced_wasserstein


def normal(seed, shape, mean=0.0):
    return np.random.default_rng(seed).normal(mean, 1.0, shape)


def three_ranks(work, count):
    """The work of three ranks, one of which has none."""
    return np.concatenate([work(0, min(count, 3)), work(3, 3) if count > 3 else work(0, 0), work(min(count, 3), count)])


# moments and the Fréchet distance

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


def test_those_of_each_class_are_those_of_its_samples():
    labels = np.random.default_rng(1).choice([0, 2, 4, 7], len(FEATURES))
    made = ClassMoments(6, ORIGIN)
    for some in np.split(np.arange(90), [7, 7, 40]):
        made.add(FEATURES[some], labels[some])
    assert made.counts.tolist() == np.bincount(labels, minlength=6).tolist()[:6]
    for label in (0, 2, 4):
        np.testing.assert_allclose(made.of(label).covariance, moments(FEATURES[labels == label]).covariance, rtol=1e-9)


def test_covariances_with_common_axes_differ_by_their_deviations():
    """There it is |m - m'|^2 + sum (s_i - s'_i)^2."""
    axes = np.linalg.qr(normal(0, (6, 6)))[0]
    deviations, others = np.array([1.0, 2, 3, 0.5, 4, 1]), np.array([2.0, 2, 1, 0.25, 1, 3])
    mean, other = np.arange(6.0), np.arange(6.0)[::-1]
    covariances = [axes @ np.diag(each**2) @ axes.T for each in (deviations, others)]
    expected = np.sum((mean - other) ** 2) + np.sum((deviations - others) ** 2)
    assert frechet_distance(mean, covariances[0], other, covariances[1]) == pytest.approx(expected, rel=1e-12)


def test_covariances_without_common_axes_and_singular_ones():
    """In two dimensions tr((S S')^(1/2)) = sqrt(tr(S S') + 2 sqrt(det S det S'))."""
    one, other, zero = np.array([[2.0, 0.6], [0.6, 1.0]]), np.array([[1.0, -0.8], [-0.8, 3.0]]), np.zeros(2)
    root = np.sqrt(np.trace(one @ other) + 2 * np.sqrt(np.linalg.det(one) * np.linalg.det(other)))
    assert frechet_distance(zero, one, zero, other) == pytest.approx(3.0 + 4.0 - 2 * root, rel=1e-12)
    lines = [np.outer(each, each) for each in (np.array([2.0, 0]), 3.0 * np.array([np.cos(1.0), np.sin(1.0)]))]
    assert frechet_distance(zero, lines[0], zero, lines[1]) == pytest.approx(13 - 12 * np.cos(1.0), rel=1e-7)
    few = np.cov(normal(1, (20, 40)), rowvar=False)  # rank 19
    assert 0 <= frechet_distance(np.ones(40), few, np.ones(40), few) < 1e-6


# the kernel distance


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


# nearest neighbours

LINE = np.arange(10.0)[:, None]  # 0, 1, ..., 9
THIRD = np.array([3, 2, 2, 2, 2, 2, 2, 2, 2, 3])
FIFTH = np.array([5, 4, 3, 3, 3, 3, 3, 3, 4, 5])


def test_neighbours_on_a_line():
    fake = np.array([0.5, 2.25, 2.75, 4.5, 11.5, 30, 31, 32])[:, None]
    distances = np.abs(LINE - fake.T)  # (real, fake)
    fake_thirds = np.array([4.0, 2.25, 2.25, 2.25, 8.75, 18.5, 19.5, 20.5])
    found = neighbours(fake, LINE)
    assert found["precision"] == np.mean((distances <= THIRD[:, None]).any(axis=0)) == 5 / 8
    assert found["recall"] == np.mean((distances <= fake_thirds).any(axis=1)) == 1.0
    assert found["density"] == pytest.approx((distances < FIFTH[:, None]).sum() / (5 * 8), rel=1e-12)
    assert found["coverage"] == np.mean((distances < FIFTH[:, None]).any(axis=1))
    assert set(neighbours(LINE + 100, LINE).values()) == {0.0}


def test_slices_and_blocks_change_nothing(monkeypatch):
    fake, real = normal(2, (70, 6)), normal(3, (45, 6), 0.3)
    whole = neighbours(fake, real)
    monkeypatch.setattr(module, "TILE_BYTES", 8 * 13 * 13)
    assert neighbours(fake, real, share=three_ranks) == pytest.approx(whole, rel=1e-12)


# the sliced Wasserstein distance


def column(*numbers):
    return np.array(numbers, np.float64)[:, None]


def test_sliced_distances_on_a_line():
    # Half of 0, 0, 3 moves from 0 to 1, a sixth from 0 to 2, and a third from 3 to 2.
    assert sliced_wasserstein(column(0, 3, 0), column(2, 1)) == pytest.approx(1 / 2 + 2 / 6 + 1 / 3, rel=1e-12)


def test_a_shift_is_its_length_times_the_mean_cosine():
    """In two dimensions the mean of |cos| over all directions is 2 / pi."""
    points, drawn = normal(3, (50, 2)), directions(0, 2, count=20_000)
    assert sliced_wasserstein((points + [3, 4]) @ drawn, points @ drawn) == pytest.approx(5 * 2 / np.pi, rel=0.02)
    np.testing.assert_array_equal(drawn, directions(0, 2, count=20_000))


# the Inception score


def test_the_score_is_the_exponential_of_the_mean_divergence_from_the_mean_of_each_split():
    probabilities = np.random.default_rng(0).dirichlet(np.ones(6), 33)
    splits = [probabilities[[n for n in range(33) if n * 10 // 33 == split]] for split in range(10)]
    scores = [np.exp(np.mean(np.sum(each * np.log(each / each.mean(axis=0)), axis=1))) for each in splits]
    made = ClassScore(6, 33)
    for batch in np.array_split(np.random.default_rng(2).permutation(33), 5):
        made.add(probabilities[batch], batch)
    assert made.value() == pytest.approx((np.mean(scores), np.std(scores)), rel=1e-12)
