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
