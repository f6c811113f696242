"""Precision, recall, density and coverage of points made by hand, in slices, in blocks, and of copies."""

import numpy as np
import pytest

from hvdgan.evaluation import neighbours as module
from hvdgan.evaluation.neighbours import neighbours

LINE = np.arange(10.0)[:, None]  # 0, 1, ..., 9
THIRD = np.array([3, 2, 2, 2, 2, 2, 2, 2, 2, 3])
FIFTH = np.array([5, 4, 3, 3, 3, 3, 3, 3, 4, 5])


def test_points_on_a_line():
    fake = np.array([0.5, 2.25, 2.75, 4.5, 11.5, 30, 31, 32])[:, None]
    distances = np.abs(LINE - fake.T)  # (real, fake)
    fake_thirds = np.array([4.0, 2.25, 2.25, 2.25, 8.75, 18.5, 19.5, 20.5])
    found = neighbours(fake, LINE)
    assert found["precision"] == np.mean((distances <= THIRD[:, None]).any(axis=0)) == 5 / 8
    assert found["recall"] == np.mean((distances <= fake_thirds).any(axis=1)) == 1.0
    assert found["density"] == pytest.approx((distances < FIFTH[:, None]).sum() / (5 * 8), rel=1e-12)
    assert found["coverage"] == np.mean((distances < FIFTH[:, None]).any(axis=1))


def test_sets_far_apart_share_nothing():
    assert set(neighbours(LINE + 100, LINE).values()) == {0.0}


def test_a_collapsed_generator_is_precise_and_covers_little():
    found = neighbours(np.full((8, 1), 4.5), LINE)
    assert found["precision"] == 1.0 and found["recall"] == 0.0
    assert found["density"] == pytest.approx(np.sum(np.abs(LINE[:, 0] - 4.5) < FIFTH) / 5)
    assert found["coverage"] == np.mean(np.abs(LINE[:, 0] - 4.5) < FIFTH)


def test_equal_distributions():
    """The expected density is 1, the expected coverage 1 - 2^-5 for as many fake as real points."""
    fake, real = np.random.default_rng(0).normal(size=(2, 2000, 2))
    found = neighbours(fake, real)
    assert found["density"] == pytest.approx(1.0, abs=0.03)
    assert found["coverage"] == pytest.approx(1 - 2.0**-5, abs=0.015)


def test_a_copy_of_the_real_points_in_another_order():
    """The copy of the fifth neighbour is at the edge of the ball, where rounding must not decide."""
    points = np.random.default_rng(4).normal(size=(500, 20))
    found = neighbours(np.random.default_rng(5).permutation(points), points)
    assert found == {"precision": 1.0, "recall": 1.0, "density": pytest.approx(1.0, abs=1e-12), "coverage": 1.0}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_copies_far_from_the_origin(dtype):
    """Half of the real points have a copy, at distance 0, among points that a rounded product would not separate."""
    points = (1000 + np.random.default_rng(1).normal(size=(60, 300))).astype(dtype)
    doubled = np.concatenate([points, points[:30]])
    found = neighbours(points[::-1].copy(), points)
    assert found == {"precision": 1.0, "recall": 1.0, "density": 1.0, "coverage": 1.0}
    fourfold = np.tile(points[:30], (4, 1))  # the third neighbour of each is at distance 0
    assert neighbours(points[:30], fourfold)["precision"] == 1.0
    assert neighbours(points[:30] + dtype(0.001), fourfold)["precision"] == 0.0
    assert neighbours(points, doubled)["coverage"] == 1.0


def test_slices_and_blocks_change_nothing(monkeypatch):
    fake, real = np.random.default_rng(2).normal(size=(2, 70, 6))
    real = real[:45] + 0.3
    whole = neighbours(fake, real)

    def three_ranks(work, count):
        return np.concatenate([work(0, 11), work(11, 11), work(11, count)])

    assert neighbours(fake, real, share=three_ranks) == pytest.approx(whole, rel=1e-12)
    monkeypatch.setattr(module, "TILE_BYTES", 8 * 13 * 13)
    assert neighbours(fake, real, share=three_ranks) == pytest.approx(whole, rel=1e-12)


def test_too_few_points_are_refused():
    with pytest.raises(ValueError, match="more than 5 samples of each kind, not 5 and 10"):
        neighbours(LINE[:5], LINE)
