"""Losses have the values and gradients of their equations."""

import numpy as np
import pytest
import tensorflow as tf

from hvdgan.recipe import losses


def test_discriminator_loss_is_the_cross_entropy_written_out():
    real, fake = np.array([2.0, -1.0], np.float32), np.array([0.5, 3.0], np.float32)
    sigmoid = lambda logit: 1 / (1 + np.exp(-logit))  # noqa: E731
    by_hand = -np.mean(np.log(sigmoid(real))) - np.mean(np.log(1 - sigmoid(fake)))
    np.testing.assert_allclose(losses.non_saturating_discriminator(real, fake), by_hand, rtol=1e-6)


def test_generator_loss_does_not_saturate_where_the_discriminator_wins():
    logits = tf.constant([-30.0])
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = losses.non_saturating_generator(logits)
    np.testing.assert_allclose(loss, 30.0, rtol=1e-6)
    np.testing.assert_allclose(tape.gradient(loss, logits), [-1.0], rtol=1e-6)


def test_losses_of_extreme_logits_are_finite():
    extreme = tf.constant([-1e4, 1e4])
    assert np.isfinite(losses.non_saturating_discriminator(extreme, extreme))
    assert np.isfinite(losses.non_saturating_generator(extreme))


def test_hinge_losses_are_the_formulas_written_out():
    real, fake = np.array([2.0, 0.5, -1.0], np.float32), np.array([0.5, -3.0], np.float32)
    by_hand = np.mean([0.0, 0.5, 2.0]) + np.mean([1.5, 0.0])
    np.testing.assert_allclose(losses.hinge_discriminator(real, fake), by_hand, rtol=1e-6)
    np.testing.assert_allclose(losses.hinge_generator(fake), 1.25, rtol=1e-6)


def test_wasserstein_losses_are_the_formulas_written_out():
    real, fake = np.array([2.0, 4.0], np.float32), np.array([0.5, -3.0], np.float32)
    np.testing.assert_allclose(losses.wasserstein_critic(real, fake), -1.25 - 3.0, rtol=1e-6)
    np.testing.assert_allclose(losses.wasserstein_generator(fake), 1.25, rtol=1e-6)


# Vectors, sequences, pictures and volumes; the batch is as long as the first axis, so that a wrong broadcast shows.
SHAPES = [(3, 5), (3, 3, 4), (3, 3, 2, 2), (3, 3, 2, 3, 2)]


def _samples(shape):
    draws = np.random.default_rng(len(shape))
    real, fake = (draws.normal(size=shape).astype(np.float32) for _ in range(2))
    return real, fake, np.array([0.0, 0.3, 1.0], np.float32)


def _sum(values):
    return tf.reduce_sum(tf.reshape(values, (values.shape[0], -1)), axis=1)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_penalty_of_a_linear_critic_is_that_of_its_weights(shape):
    weights = np.random.default_rng(1).normal(size=shape[1:]).astype(np.float32)
    penalty = losses.gradient_penalty(lambda x: _sum(x * weights), *map(tf.constant, _samples(shape)))
    np.testing.assert_allclose(penalty, (np.linalg.norm(weights) - 1) ** 2, rtol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_penalty_is_taken_between_the_samples_as_they_are_mixed(shape):
    """The slope of |x|^2 / 2 at x is x: the penalty is that of the lengths of the points."""
    real, fake, mix = _samples(shape)
    points = [mix[n] * real[n] + (1 - mix[n]) * fake[n] for n in range(3)]
    by_hand = np.mean([(np.linalg.norm(point) - 1) ** 2 for point in points])
    for weights in (mix, mix.reshape(3, *[1] * (len(shape) - 1))):
        penalty = losses.gradient_penalty(lambda x: _sum(x * x) / 2, *map(tf.constant, (real, fake, weights)))
        np.testing.assert_allclose(penalty, by_hand, rtol=1e-5)


def test_the_penaltys_gradient_is_that_of_numeric_differences():
    real, fake, mix = (tf.constant(values, tf.float64) for values in _samples((3, 2, 2, 2)))
    draws = np.random.default_rng(2)
    weights = tf.Variable(draws.normal(size=(8, 4)))
    last = tf.constant(draws.normal(size=(4, 1)))

    def penalty():
        return losses.gradient_penalty(
            lambda images: (tf.tanh(tf.reshape(images, (-1, 8)) @ weights) @ last)[:, 0], real, fake, mix
        )

    with tf.GradientTape() as tape:
        loss = penalty()
    gradient = tape.gradient(loss, weights).numpy()
    start, step = weights.numpy(), 1e-6
    for place in np.ndindex(8, 4):
        ends = []
        for sign in (1, -1):
            moved = start.copy()
            moved[place] += sign * step
            weights.assign(moved)
            ends.append(float(penalty()))
        assert abs((ends[0] - ends[1]) / (2 * step) - gradient[place]) < 1e-5


def test_a_flat_critic_has_a_penalty_with_a_finite_gradient():
    weight = tf.Variable(0.0)
    with tf.GradientTape() as tape:
        penalty = losses.gradient_penalty(lambda x: weight * _sum(x), *map(tf.constant, _samples((3, 4))))
    np.testing.assert_allclose(penalty, 1.0, rtol=1e-5)
    assert np.isfinite(tape.gradient(penalty, weight))
