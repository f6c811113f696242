"""Losses and measures have the values and gradients of their definitions. Modules: recipe.metrics"""

import numpy as np
import pytest
import tensorflow as tf

from hvdgan.recipe import losses, metrics


def test_losses_are_the_formulas_written_out():
    real, fake = np.array([2.0, 0.5, -1.0], np.float32), np.array([0.5, -3.0], np.float32)
    cross_entropy = np.log1p(np.exp(-real)).mean() + np.log1p(np.exp(fake)).mean()
    np.testing.assert_allclose(losses.non_saturating_discriminator(real, fake), cross_entropy, rtol=1e-6)
    hinge = np.mean([0.0, 0.5, 2.0]) + np.mean([1.5, 0.0])
    np.testing.assert_allclose(losses.hinge_discriminator(real, fake), hinge, rtol=1e-6)
    np.testing.assert_allclose(losses.hinge_generator(fake), 1.25, rtol=1e-6)
    np.testing.assert_allclose(losses.wasserstein_critic(real, fake), -1.25 - 0.5, rtol=1e-6)
    np.testing.assert_allclose(losses.wasserstein_generator(fake), 1.25, rtol=1e-6)
    np.testing.assert_allclose(losses.least_squares(real, 1.0), np.mean((real - 1) ** 2), rtol=1e-6)
    pairs = np.log1p(np.exp([0.5 - 2.0, -3.0 - 0.5])).mean()
    np.testing.assert_allclose(losses.relativistic(real[:2], fake), pairs, rtol=1e-6)
    average = np.log1p(np.exp(fake.mean() - real)).mean() + np.log1p(np.exp(fake - real.mean())).mean()
    np.testing.assert_allclose(losses.relativistic_average(real, fake, tf.reduce_mean), average, rtol=1e-6)
    features = losses.feature_matching([real, fake], [real[::-1], fake + 2.0])
    np.testing.assert_allclose(features, np.abs(real - real[::-1]).mean() + 2.0, rtol=1e-6)
    extreme = tf.constant([-1e4, 1e4])
    assert np.isfinite(losses.non_saturating_discriminator(extreme, extreme))


def _sum(values):
    return tf.reduce_sum(tf.reshape(values, (values.shape[0], -1)), axis=1)


@pytest.mark.parametrize("shape", [(3, 5), (3, 3, 4), (3, 3, 2, 2), (3, 3, 2, 3, 2)])
def test_the_penalty_is_taken_between_the_samples_as_they_are_mixed(shape):
    """The slope of |x|^2 / 2 at x is x; the batch is as long as the first axis, so that a wrong broadcast shows."""
    real, fake = np.random.default_rng(0).normal(size=(2, *shape)).astype(np.float32)
    mix = np.array([0.0, 0.3, 1.0], np.float32)
    points = [mix[n] * real[n] + (1 - mix[n]) * fake[n] for n in range(3)]
    by_hand = np.mean([(np.linalg.norm(point) - 1) ** 2 for point in points])
    for weights in (mix, mix.reshape(3, *[1] * (len(shape) - 1))):
        penalty = losses.gradient_penalty(lambda x: _sum(x * x) / 2, *map(tf.constant, (real, fake, weights)))
        np.testing.assert_allclose(penalty, by_hand, rtol=1e-5)


@pytest.mark.parametrize("shape", [(3, 4), (3, 3, 2), (3, 2, 2, 2), (3, 2, 1, 2, 2)])
@pytest.mark.parametrize("penalty", [losses.r1, losses.r2])
def test_zero_centred_penalties_and_their_gradients_are_finite_differences(penalty, shape):
    """Of a critic of two arrays with a weight for each number, in float64; its bias has a gradient of 0."""
    first, second, weights = np.random.default_rng(0).normal(size=(3, *shape))

    def critic(arrays, weight=weights[0], bias=0.0):
        return _sum(tf.tanh(weight * arrays[0]) * arrays[1]) + bias

    def by_hand(weight):
        total, small = 0.0, 1e-5
        for number in range(2):
            for place in np.ndindex(shape):
                moved = np.zeros(shape)
                moved[place] = small
                values = [
                    critic([each + sign * moved * (k == number) for k, each in enumerate((first, second))], weight)
                    for sign in (1, -1)
                ]
                total += ((values[0] - values[1]).numpy()[place[0]] / (2 * small)) ** 2
        return total / shape[0]

    weight, bias = tf.constant(weights[0]), tf.constant(0.0, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch([weight, bias])
        found = penalty(lambda arrays: critic(arrays, weight, bias), [tf.constant(first), tf.constant(second)])
    slope, of_bias = tape.gradient(found, [weight, bias])
    np.testing.assert_allclose(found, by_hand(weights[0]), rtol=1e-6)
    along = np.random.default_rng(1).normal(size=shape[1:])
    change = (by_hand(weights[0] + 1e-4 * along) - by_hand(weights[0] - 1e-4 * along)) / 2e-4
    np.testing.assert_allclose(np.sum(slope * along), change, rtol=1e-4)
    assert of_bias == 0


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
    np.testing.assert_allclose(metrics.l1(*given), absolute, rtol=1e-5)
    np.testing.assert_allclose(metrics.psnr(*given, peak=6.0), 10 * np.log10(36 / square), rtol=1e-5)


def test_ssim_is_that_of_tensorflow_where_there_are_no_edges_and_no_mask():
    some, others = images(0), images(1)
    mask = np.zeros((3, 24, 24, 1), np.float32)
    mask[:, 5:-5, 5:-5] = 1
    expected = tf.image.ssim(some, others, 2.0)
    np.testing.assert_allclose(metrics.ssim(some, others, tf.constant(mask)), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(metrics.ssim(some, some), 1.0, rtol=1e-5)
    fields = metrics.ssim(5 * some, 5 * others, peak=10.0)
    np.testing.assert_allclose(fields, metrics.ssim(some, others), rtol=1e-4, atol=1e-5)


def test_the_fair_score_of_few_members_is_that_of_many_in_the_mean():
    """For truth and members of one normal distribution it is 1 / sqrt(pi) for any number of members."""
    numbers = np.random.default_rng(0).normal(size=(6, 1, 100, 100, 2)).astype(np.float32)
    truth = tf.constant(numbers[0])
    scores = {count: float(metrics.fair_crps(truth, tf.constant(numbers[1 : 1 + count]))[0]) for count in (2, 5)}
    assert scores == pytest.approx({count: 1 / np.sqrt(np.pi) for count in scores}, abs=0.015)
    narrow, wide = (float(metrics.fair_crps(truth, tf.constant(scale * numbers[1:]))[0]) for scale in (0.5, 2.0))
    assert min(narrow, wide) > scores[5] + 0.02


def test_ranks_of_ties_are_shared():
    """Truth 1 among 0, 1, 1 and 5 may have the ranks 1, 2 and 3."""
    members = tf.constant([0.0, 1.0, 1.0, 5.0])[:, None, None]
    np.testing.assert_allclose(metrics.rank_frequencies(tf.constant([[1.0]]), members), [[0, 1 / 3, 1 / 3, 1 / 3, 0]])
