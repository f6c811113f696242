"""The Fréchet distance of Gaussians whose distance is known."""

import numpy as np
import pytest

from hvdgan.evaluation.frechet import frechet_distance


def rotation(size, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))[0]


def test_covariances_with_common_axes_differ_by_their_deviations():
    """There it is |m - m'|^2 + sum (s_i - s'_i)^2."""
    axes = rotation(6)
    deviations, others = np.array([1.0, 2, 3, 0.5, 4, 1]), np.array([2.0, 2, 1, 0.25, 1, 3])
    mean, other = np.arange(6.0), np.arange(6.0)[::-1]
    covariances = [axes @ np.diag(each**2) @ axes.T for each in (deviations, others)]
    expected = np.sum((mean - other) ** 2) + np.sum((deviations - others) ** 2)
    assert frechet_distance(mean, covariances[0], other, covariances[1]) == pytest.approx(expected, rel=1e-12)


def test_singular_covariances():
    """Two lines in the plane with an angle between them: s^2 + t^2 - 2 s t |cos|."""
    one, other = 2.0 * np.array([1.0, 0]), 3.0 * np.array([np.cos(1.0), np.sin(1.0)])
    expected = 4 + 9 - 2 * 2 * 3 * np.cos(1.0)
    found = frechet_distance(np.zeros(2), np.outer(one, one), np.zeros(2), np.outer(other, other))
    assert found == pytest.approx(expected, rel=1e-7)
    points = frechet_distance(np.zeros(2), np.zeros((2, 2)), np.array([3.0, 4]), np.zeros((2, 2)))
    assert points == pytest.approx(25.0, rel=1e-12)


def test_covariances_without_common_axes():
    """In two dimensions tr((S S')^(1/2)) = sqrt(tr(S S') + 2 sqrt(det S det S'))."""
    one, other = np.array([[2.0, 0.6], [0.6, 1.0]]), np.array([[1.0, -0.8], [-0.8, 3.0]])
    root = np.sqrt(np.trace(one @ other) + 2 * np.sqrt(np.linalg.det(one) * np.linalg.det(other)))
    expected = 3.0 + 4.0 - 2 * root
    assert frechet_distance(np.zeros(2), one, np.zeros(2), other) == pytest.approx(expected, rel=1e-12)
    assert frechet_distance(np.zeros(2), other, np.zeros(2), one) == pytest.approx(expected, rel=1e-12)


def test_the_distance_from_itself_is_not_negative():
    """Fewer samples than dimensions: the covariance has rank 19 of 40."""
    covariance = np.cov(np.random.default_rng(1).normal(size=(20, 40)), rowvar=False)
    assert 0 <= frechet_distance(np.ones(40), covariance, np.ones(40), covariance) < 1e-6
