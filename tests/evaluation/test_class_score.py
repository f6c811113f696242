"""The Inception score of probabilities whose score is known, for any division into batches and ranks."""

import numpy as np
import pytest

from hvdgan.evaluation.class_score import ClassScore


def score(probabilities, splits=10):
    made = ClassScore(probabilities.shape[1], len(probabilities), splits)
    made.add(probabilities, np.arange(len(probabilities)))
    return made.value()


def test_samples_of_no_class_score_1_and_certain_ones_the_number_of_classes():
    assert score(np.full((100, 7), 1 / 7)) == pytest.approx((1.0, 0.0), abs=1e-12)
    assert score(np.tile(np.eye(5), (20, 1))) == pytest.approx((5.0, 0.0), abs=1e-12)
    assert score(np.tile(np.eye(5)[:1], (20, 1))) == pytest.approx((1.0, 0.0), abs=1e-12)


def test_the_deviation_is_that_of_the_splits():
    """The first half has two classes, the second one."""
    certain = np.concatenate([np.tile(np.eye(3)[:2], (5, 1)), np.tile(np.eye(3)[2:], (10, 1))])
    assert score(certain, splits=2) == pytest.approx((1.5, 0.5), rel=1e-12)


def test_it_is_the_exponential_of_the_mean_divergence_from_the_mean():
    probabilities = np.random.default_rng(0).dirichlet(np.ones(6), 33)
    splits = [probabilities[[n for n in range(33) if n * 10 // 33 == split]] for split in range(10)]
    scores = [np.exp(np.mean(np.sum(each * np.log(each / each.mean(axis=0)), axis=1))) for each in splits]
    assert score(probabilities) == pytest.approx((np.mean(scores), np.std(scores)), rel=1e-12)


def test_batches_in_any_order_on_any_rank():
    probabilities = np.random.default_rng(1).dirichlet(np.ones(4), 57)
    order = np.random.default_rng(2).permutation(57)
    ranks = [ClassScore(4, 57) for _ in range(3)]
    for number, batch in enumerate(np.array_split(order, 11)):
        ranks[number % 3].add(probabilities[batch], batch)
    parts = [rank.arrays() for rank in ranks]
    together = ClassScore.of_arrays({name: sum(part[name] for part in parts) for name in parts[0]}, 57)
    assert together.value() == pytest.approx(score(probabilities), rel=1e-12)


def test_fewer_samples_than_splits():
    assert score(np.eye(4)) == pytest.approx((1.0, 0.0))


def test_wrong_numbers_and_no_samples_are_refused():
    made = ClassScore(2, 10)
    with pytest.raises(ValueError, match="8 to 10 of 10"):
        made.add(np.full((3, 2), 0.5), np.arange(8, 11))
    with pytest.raises(ValueError, match="no samples"):
        made.value()
