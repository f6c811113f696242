"""Moments are those of all samples, for any division into batches and ranks."""

import numpy as np
import pytest

from hvdgan.evaluation.moments import ClassMoments, Moments

FEATURES = np.random.default_rng(0).normal(3.0, 2.0, (90, 5)).astype(np.float32)


ORIGIN = np.linspace(-4.0, 4.0, 5)


def moments(features, origin=ORIGIN):
    made = Moments.none(origin[: features.shape[1]])
    made.add(features)
    return made


def test_mean_and_covariance_are_numpys():
    made = moments(FEATURES)
    assert made.count == 90
    np.testing.assert_allclose(made.mean, FEATURES.astype(np.float64).mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(made.covariance, np.cov(FEATURES.astype(np.float64), rowvar=False), rtol=1e-12)


def test_large_features_lose_no_digits_about_one_of_them():
    far = FEATURES.astype(np.float64) + 1e9
    made = moments(far, far[0])
    np.testing.assert_allclose(made.mean, far.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(made.covariance, np.cov(far, rowvar=False), rtol=1e-7)


def test_the_sum_over_ranks_is_the_whole():
    parts = [moments(each).arrays() for each in np.split(FEATURES, [7, 7, 40])]
    together = Moments.of_arrays({name: sum(part[name] for part in parts) for name in parts[0]}, ORIGIN)
    whole = moments(FEATURES)
    assert together.count == 90
    np.testing.assert_allclose(together.mean, whole.mean, rtol=1e-12)
    np.testing.assert_allclose(together.covariance, whole.covariance, rtol=1e-12, atol=1e-12)


def test_moments_of_arrays_do_not_share_memory():
    arrays = moments(FEATURES).arrays()
    before = arrays["products"].copy()
    Moments.of_arrays(arrays, ORIGIN).add(FEATURES)
    np.testing.assert_array_equal(arrays["products"], before)


def test_those_of_each_class_are_those_of_its_samples():
    labels = np.random.default_rng(1).choice([0, 2, 4], len(FEATURES))
    made = ClassMoments(6, ORIGIN)
    for some in np.split(np.arange(90), [7, 7, 40]):
        made.add(FEATURES[some], labels[some])
    again = ClassMoments.of_arrays(made.arrays(), ORIGIN)
    assert again.counts.tolist() == np.bincount(labels, minlength=6).tolist()
    for label in (0, 2, 4):
        one, alone = again.of(label), moments(FEATURES[labels == label])
        np.testing.assert_allclose(one.mean, alone.mean, rtol=1e-12)
        np.testing.assert_allclose(one.covariance, alone.covariance, rtol=1e-12, atol=1e-12)


def test_too_few_samples_are_refused():
    with pytest.raises(ValueError, match="no samples"):
        _ = Moments.none(ORIGIN).mean
    with pytest.raises(ValueError, match="at least 2 samples, and there are 1"):
        _ = moments(FEATURES[:1]).covariance
