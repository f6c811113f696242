"""Measures of images have the values of their definitions."""

import numpy as np
import pytest
import tensorflow as tf

from hvdgan.recipe import measures


def images(seed, count=3):
    return tf.constant(np.random.default_rng(seed).uniform(-1, 1, (count, 24, 24, 3)).astype(np.float32))


@pytest.mark.parametrize("shape", [(3, 5), (3, 4, 2), (3, 3, 4, 2), (3, 3, 2, 4, 2)])
def test_arrays_of_any_rank_are_measured_with_the_range_of_their_numbers(shape):
    draws = np.random.default_rng(0)
    some, others = (draws.normal(size=shape).astype(np.float32) for _ in range(2))
    mask = draws.integers(1, 3, (*shape[:-1], 1)).astype(np.float32)  # weights of 1 and 2
    counts = np.broadcast_to(mask, shape)
    each = tuple(range(1, len(shape)))
    absolute, square = (np.sum(counts * f(some - others), each) / counts.sum(each) for f in (np.abs, np.square))
    given = [tf.constant(values) for values in (some, others, mask)]
    np.testing.assert_allclose(measures.l1(*given), absolute, rtol=1e-5)
    np.testing.assert_allclose(measures.psnr(*given, peak=6.0), 10 * np.log10(36 / square), rtol=1e-5)


def test_ssim_is_that_of_tensorflow_where_there_are_no_edges_and_no_mask():
    some, others = images(0), images(1)
    mask = np.zeros((3, 24, 24, 1), np.float32)
    mask[:, 5:-5, 5:-5] = 1
    expected = tf.image.ssim(some, others, 2.0)
    np.testing.assert_allclose(measures.ssim(some, others, tf.constant(mask)), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(measures.ssim(some, some), 1.0, rtol=1e-5)
    fields = measures.ssim(5 * some, 5 * others, peak=10.0)
    np.testing.assert_allclose(fields, measures.ssim(some, others), rtol=1e-4, atol=1e-5)


def test_the_fair_score_of_few_members_is_that_of_many_in_the_mean():
    """For truth and members of one normal distribution it is 1 / sqrt(pi) for any number of members."""
    numbers = np.random.default_rng(0).normal(size=(6, 1, 100, 100, 2)).astype(np.float32)
    truth = tf.constant(numbers[0])
    scores = {count: float(measures.fair_crps(truth, tf.constant(numbers[1 : 1 + count]))[0]) for count in (2, 5)}
    assert scores == pytest.approx({count: 1 / np.sqrt(np.pi) for count in scores}, abs=0.015)
    narrow, wide = (float(measures.fair_crps(truth, tf.constant(scale * numbers[1:]))[0]) for scale in (0.5, 2.0))
    assert min(narrow, wide) > scores[5] + 0.02


def test_ranks_of_ties_are_shared():
    """Truth 1 among 0, 1, 1 and 5 may have the ranks 1, 2 and 3."""
    members = tf.constant([0.0, 1.0, 1.0, 5.0])[:, None, None]
    np.testing.assert_allclose(measures.rank_frequencies(tf.constant([[1.0]]), members), [[0, 1 / 3, 1 / 3, 1 / 3, 0]])
