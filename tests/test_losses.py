import numpy as np
import tensorflow as tf

from hvdgan import losses


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
