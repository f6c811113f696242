"""Losses have the values and gradients of their equations."""

import numpy as np
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


def _pictures():
    draws = np.random.default_rng(0)
    real, fake = (tf.constant(draws.normal(size=(3, 2, 2, 2)), tf.float32) for _ in range(2))
    return real, fake, tf.constant([0.0, 0.3, 1.0])


def test_the_penalty_of_a_linear_critic_is_that_of_its_weights():
    weights = np.random.default_rng(1).normal(size=(2, 2, 2)).astype(np.float32)
    penalty = losses.gradient_penalty(lambda images: tf.reduce_sum(images * weights, axis=[1, 2, 3]), *_pictures())
    np.testing.assert_allclose(penalty, (np.linalg.norm(weights) - 1) ** 2, rtol=1e-5)


def test_the_penalty_is_taken_between_the_images_as_they_are_mixed():
    """The slope of |x|^2 / 2 at x is x: the penalty is that of the lengths of the points."""
    real, fake, mix = _pictures()
    points = [fake[0], 0.3 * real[1] + 0.7 * fake[1], real[2]]
    by_hand = np.mean([(np.linalg.norm(point.numpy()) - 1) ** 2 for point in points])
    penalty = losses.gradient_penalty(lambda x: tf.reduce_sum(x * x, axis=[1, 2, 3]) / 2, real, fake, mix)
    np.testing.assert_allclose(penalty, by_hand, rtol=1e-5)


def test_the_penaltys_gradient_is_that_of_numeric_differences():
    real, fake, mix = (tf.cast(values, tf.float64) for values in _pictures())
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
        penalty = losses.gradient_penalty(lambda x: weight * tf.reduce_sum(x, axis=[1, 2, 3]), *_pictures())
    np.testing.assert_allclose(penalty, 1.0, rtol=1e-5)
    assert np.isfinite(tape.gradient(penalty, weight))
