"""The kernel distance: its definition, its mean of 0, and its subsets. Modules: evaluation.kernel, evaluation.slices"""

import math

import numpy as np
import pytest

from hvdgan.evaluation.kernel import kid, squared_distance


def features(seed, count=40, dimensions=3, mean=0.0):
    return np.random.default_rng(seed).normal(mean, 1.0, (count, dimensions))


def test_it_is_the_mean_of_the_kernel_over_pairs_of_different_samples():
    fake, real = features(0, 5), features(1, 4)

    def k(x, y):
        return (np.dot(x, y) / 3 + 1) ** 3

    pairs = [(x, y) for some in (fake, real) for i, x in enumerate(some) for j, y in enumerate(some) if i != j]
    within = [np.mean([k(x, y) for x, y in each]) for each in (pairs[:20], pairs[20:])]
    expected = sum(within) - 2 * np.mean([k(x, y) for x in fake for y in real])
    assert squared_distance(fake, real) == pytest.approx(expected, rel=1e-12)


def test_sets_that_are_no_larger_than_a_subset_are_compared_once_and_have_no_deviation():
    fake, real, asked = features(0, 12), features(1, 12), []

    def share(work, count):
        asked.append(count)
        return np.concatenate([work(0, 0), work(0, count)])

    for size in (12, 1000):
        mean, deviation = kid(fake, real, seed=0, subset_size=size, share=share)
        assert mean == squared_distance(fake, real) and math.isnan(deviation)
    assert asked == [1, 1]
    for some, size in ((fake[:11], 1000), (fake, 11)):  # here the subsets differ
        assert kid(some, real, seed=0, subset_size=size, share=share)[1] > 0
    assert asked == [1, 1, 100, 100]


def test_its_mean_is_0_for_equal_distributions_and_known_for_others():
    """For N(0, 1) and N(m, 1) on a line, E k(x, y) is a polynomial of the moments: 3 m^2 + 3 m^4 + (m^3 + 3 m)^2."""
    equal = [squared_distance(features(2 * n, 50, 1), features(2 * n + 1, 50, 1)) for n in range(400)]
    assert abs(np.mean(equal)) < 4 * np.std(equal) / 20
    assert min(equal) < 0
    apart = [squared_distance(features(2 * n, 50, 1), features(2 * n + 1, 50, 1, mean=0.5)) for n in range(400)]
    expected = 3 * 0.5**2 + 3 * 0.5**4 + (0.5**3 + 3 * 0.5) ** 2
    assert abs(np.mean(apart) - expected) < 4 * np.std(apart) / 20


def test_the_seed_decides_the_subsets_and_the_ranks_do_not():
    fake, real = features(0, 60), features(1, 50)
    settings = {"subsets": 7, "subset_size": 10}
    alone = kid(fake, real, seed=3, **settings)
    assert kid(fake, real, seed=3, **settings) == alone != kid(fake, real, seed=4, **settings)
    assert alone[1] > 0

    def three_ranks(work, count):
        return np.concatenate([work(0, 3), work(3, 3), work(3, count)])

    assert kid(fake, real, seed=3, **settings, share=three_ranks) == alone


def test_one_sample_is_refused():
    with pytest.raises(ValueError, match="at least 2 samples of each kind"):
        kid(features(0, 1), features(1), seed=0)
