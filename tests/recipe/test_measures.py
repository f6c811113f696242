"""Measures of images have the values of their definitions."""

import numpy as np
import pytest
import tensorflow as tf

from hvdgan.recipe import measures


def images(seed, count=3):
    return tf.constant(np.random.default_rng(seed).uniform(-1, 1, (count, 24, 24, 3)).astype(np.float32))


def left_half():
    mask = np.zeros((3, 24, 24, 1), np.float32)
    mask[:, :, :12] = 1
    return tf.constant(mask)


def test_l1_and_psnr_are_what_their_formulas_say():
    some, others = images(0), images(1)
    difference = some.numpy() - others.numpy()
    np.testing.assert_allclose(measures.l1(some, others), np.abs(difference).mean(axis=(1, 2, 3)), rtol=1e-5)
    expected = 10 * np.log10(4 / (difference**2).mean(axis=(1, 2, 3)))
    np.testing.assert_allclose(measures.psnr(some, others), expected, rtol=1e-5)
    inside = difference[:, :, :12]
    np.testing.assert_allclose(measures.l1(some, others, left_half()), np.abs(inside).mean(axis=(1, 2, 3)), rtol=1e-5)
    expected = 10 * np.log10(4 / (inside**2).mean(axis=(1, 2, 3)))
    np.testing.assert_allclose(measures.psnr(some, others, left_half()), expected, rtol=1e-5)
    np.testing.assert_allclose(measures.psnr(some, some), 100.0, rtol=1e-5)


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


def test_ssim_of_fields_has_the_range_of_their_numbers():
    some, others = images(0), images(1)
    np.testing.assert_allclose(
        measures.ssim(5 * some, 5 * others, peak=10.0), measures.ssim(some, others), rtol=1e-4, atol=1e-5
    )


def test_ssim_of_flat_images_is_the_formula_of_their_means():
    """Without variance it is (2ab + C1) / (a^2 + b^2 + C1), with C1 = (0.01 * 2)^2."""
    flat, other = tf.fill((2, 24, 24, 1), 0.5), tf.fill((2, 24, 24, 1), 0.25)
    expected = (2 * 0.5 * 0.25 + 0.0004) / (0.25 + 0.0625 + 0.0004)
    np.testing.assert_allclose(measures.ssim(flat, other), expected, rtol=1e-4)


def test_ssim_is_that_of_tensorflow_where_there_are_no_edges_and_no_mask():
    some, others = images(0), images(1)
    mask = np.zeros((3, 24, 24, 1), np.float32)
    mask[:, 5:-5, 5:-5] = 1
    expected = tf.image.ssim(some, others, 2.0)
    np.testing.assert_allclose(measures.ssim(some, others, tf.constant(mask)), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(measures.ssim(some, some), 1.0, rtol=1e-5)


@pytest.mark.parametrize("measure", [measures.l1, measures.psnr, measures.ssim])
def test_what_is_far_outside_the_mask_does_not_count(measure):
    some, others = images(0), images(1)
    changed = tf.concat([others[:, :, :18], -others[:, :, 18:]], axis=2)
    np.testing.assert_array_equal(measure(some, others, left_half()), measure(some, changed, left_half()))
    assert not np.array_equal(measure(some, others), measure(some, changed))


def test_the_fair_score_of_few_members_is_that_of_many_in_the_mean():
    """For truth and members of one normal distribution it is 1 / sqrt(pi) for any number of members."""
    numbers = np.random.default_rng(0).normal(size=(6, 1, 100, 100, 2)).astype(np.float32)
    truth = tf.constant(numbers[0])
    scores = {count: float(measures.fair_crps(truth, tf.constant(numbers[1 : 1 + count]))[0]) for count in (2, 5)}
    assert scores == pytest.approx({count: 1 / np.sqrt(np.pi) for count in scores}, abs=0.015)
    narrow, wide = (float(measures.fair_crps(truth, tf.constant(scale * numbers[1:]))[0]) for scale in (0.5, 2.0))
    assert min(narrow, wide) > scores[5] + 0.02


def test_the_score_of_two_members_of_vectors():
    """Of 0 and 2 around the truth 1: (1 + 1) / 2 - 2 * 2 / (2 * 2 * 1) = 0."""
    truth, members = tf.constant([[1.0, 5.0]]), tf.constant([[[0.0, 5.0]], [[2.0, 8.0]]])
    np.testing.assert_allclose(measures.fair_crps(truth, members), [(0.0 + 1.5 - 1.5) / 2], atol=1e-6)
    np.testing.assert_allclose(measures.fair_crps(truth + 2.0, members), [(2.0 - 1.0 + 1.5 - 1.5) / 2], atol=1e-6)


def test_the_ranks_of_the_truth_among_the_members():
    truth = tf.constant([[[-1.0], [0.5], [1.5], [9.0]], [[0.5], [0.5], [0.5], [0.5]]])
    members = tf.stack([tf.fill((2, 4, 1), number) for number in (2.0, 0.0, 1.0)])
    expected = [[0.25, 0.25, 0.25, 0.25], [0, 1, 0, 0]]
    np.testing.assert_allclose(measures.rank_frequencies(truth, members), expected)


def test_ranks_of_ties_are_shared():
    """Truth 1 among 0, 1, 1 and 5 may have the ranks 1, 2 and 3."""
    members = tf.constant([0.0, 1.0, 1.0, 5.0])[:, None, None]
    np.testing.assert_allclose(measures.rank_frequencies(tf.constant([[1.0]]), members), [[0, 1 / 3, 1 / 3, 1 / 3, 0]])


def test_a_calibrated_ensemble_has_a_flat_histogram_and_a_narrow_one_is_high_at_its_ends():
    numbers = np.random.default_rng(1).normal(size=(9, 2, 100, 100, 1)).astype(np.float32)
    flat = measures.rank_frequencies(tf.constant(numbers[0]), tf.constant(numbers[1:]))
    np.testing.assert_allclose(flat, np.full((2, 9), 1 / 9), atol=0.015)
    narrow = measures.rank_frequencies(tf.constant(numbers[0]), tf.constant(0.5 * numbers[1:])).numpy()
    assert narrow[:, [0, 8]].min() > 0.15 > 0.1 > narrow[:, 1:8].max()
