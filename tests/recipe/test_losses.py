"""Losses have the values and gradients of their equations."""

import numpy as np
import pytest
import tensorflow as tf

from hvdgan.recipe import losses


def test_losses_are_the_formulas_written_out():
    real, fake = np.array([2.0, 0.5, -1.0], np.float32), np.array([0.5, -3.0], np.float32)
    cross_entropy = np.log1p(np.exp(-real)).mean() + np.log1p(np.exp(fake)).mean()
    np.testing.assert_allclose(losses.non_saturating_discriminator(real, fake), cross_entropy, rtol=1e-6)
    hinge = np.mean([0.0, 0.5, 2.0]) + np.mean([1.5, 0.0])
    np.testing.assert_allclose(losses.hinge_discriminator(real, fake), hinge, rtol=1e-6)
    np.testing.assert_allclose(losses.hinge_generator(fake), 1.25, rtol=1e-6)
    np.testing.assert_allclose(losses.wasserstein_critic(real, fake), -1.25 - 0.5, rtol=1e-6)
    np.testing.assert_allclose(losses.wasserstein_generator(fake), 1.25, rtol=1e-6)
    extreme = tf.constant([-1e4, 1e4])
    assert np.isfinite(losses.non_saturating_discriminator(extreme, extreme))


def test_generator_loss_does_not_saturate_where_the_discriminator_wins():
    logits = tf.constant([-30.0])
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = losses.non_saturating_generator(logits)
    np.testing.assert_allclose(loss, 30.0, rtol=1e-6)
    np.testing.assert_allclose(tape.gradient(loss, logits), [-1.0], rtol=1e-6)


# Vectors, sequences, pictures and volumes; the batch is as long as the first axis, so that a wrong broadcast shows.
SHAPES = [(3, 5), (3, 3, 4), (3, 3, 2, 2), (3, 3, 2, 3, 2)]


def _samples(shape):
    draws = np.random.default_rng(len(shape))
    real, fake = (draws.normal(size=shape).astype(np.float32) for _ in range(2))
    return real, fake, np.array([0.0, 0.3, 1.0], np.float32)


def _sum(values):
    return tf.reduce_sum(tf.reshape(values, (values.shape[0], -1)), axis=1)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_penalty_is_taken_between_the_samples_as_they_are_mixed(shape):
    """The slope of |x|^2 / 2 at x is x: the penalty is that of the lengths of the points."""
    real, fake, mix = _samples(shape)
    points = [mix[n] * real[n] + (1 - mix[n]) * fake[n] for n in range(3)]
    by_hand = np.mean([(np.linalg.norm(point) - 1) ** 2 for point in points])
    for weights in (mix, mix.reshape(3, *[1] * (len(shape) - 1))):
        penalty = losses.gradient_penalty(lambda x: _sum(x * x) / 2, *map(tf.constant, (real, fake, weights)))
        np.testing.assert_allclose(penalty, by_hand, rtol=1e-5)
