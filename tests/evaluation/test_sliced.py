"""The sliced Wasserstein distance of points whose distance is known."""

import numpy as np
import pytest

from hvdgan.evaluation.sliced import directions, sliced_wasserstein


def column(*numbers):
    return np.array(numbers, np.float64)[:, None]


def test_distances_on_a_line():
    assert sliced_wasserstein(column(3, 1, 2), column(2, 3, 4)) == pytest.approx(1.0, rel=1e-12)
    assert sliced_wasserstein(column(0, 1), column(0)) == pytest.approx(0.5, rel=1e-12)
    # Half of 0, 0, 3 moves from 0 to 1, a sixth from 0 to 2, and a third from 3 to 2.
    assert sliced_wasserstein(column(0, 3, 0), column(2, 1)) == pytest.approx(1 / 2 + 2 / 6 + 1 / 3, rel=1e-12)
    assert sliced_wasserstein(column(1, 2, 3), column(1, 1, 2, 2, 3, 3)) == pytest.approx(0.0, abs=1e-12)


def test_it_is_the_area_between_the_distribution_functions():
    fake, real = np.random.default_rng(0).normal(size=40), np.random.default_rng(1).exponential(size=27)
    points = np.sort(np.concatenate([fake, real]))
    functions = [np.searchsorted(np.sort(each), points[:-1], side="right") / len(each) for each in (fake, real)]
    area = np.sum(np.abs(functions[0] - functions[1]) * np.diff(points))
    assert sliced_wasserstein(fake[:, None], real[:, None]) == pytest.approx(area, rel=1e-12)


def test_the_mean_over_directions():
    fake, real = np.random.default_rng(2).normal(size=(2, 30, 5))
    single = [sliced_wasserstein(fake[:, [n]], real[:, [n]]) for n in range(5)]
    assert sliced_wasserstein(fake, real) == pytest.approx(np.mean(single), rel=1e-12)


def test_directions_are_unit_vectors_that_the_seed_decides():
    drawn = directions(0, 6)
    assert drawn.shape == (6, 128)
    np.testing.assert_allclose(np.linalg.norm(drawn, axis=0), 1.0, rtol=1e-12)
    np.testing.assert_array_equal(drawn, directions(0, 6))
    assert np.abs(drawn - directions(1, 6)).max() > 0.1
    assert np.abs(drawn.mean(axis=1)).max() < 0.15


def test_a_shift_is_its_length_times_the_mean_cosine():
    """In two dimensions the mean of |cos| over all directions is 2 / pi."""
    points, drawn = np.random.default_rng(3).normal(size=(50, 2)), directions(0, 2, count=20_000)
    assert sliced_wasserstein((points + [3, 4]) @ drawn, points @ drawn) == pytest.approx(5 * 2 / np.pi, rel=0.02)


def test_an_empty_set_is_refused():
    with pytest.raises(ValueError, match="no samples"):
        sliced_wasserstein(np.empty((0, 3)), np.zeros((2, 3)))
