"""Losses as pure functions of logits and images; each returns the mean over the batch, a scalar."""

import tensorflow as tf


def non_saturating_discriminator(real_logits: tf.Tensor, fake_logits: tf.Tensor) -> tf.Tensor:
    """Cross-entropy of the discriminator: -log D(x) - log(1 - D(G(z))).

    Args:
        real_logits: (B, ...) logits of real images.
        fake_logits: (B, ...) logits of generated images.

    Reference: Goodfellow et al. 2014, equation 1.
    """
    return tf.reduce_mean(tf.nn.softplus(-real_logits)) + tf.reduce_mean(tf.nn.softplus(fake_logits))


def non_saturating_generator(fake_logits: tf.Tensor) -> tf.Tensor:
    """The generator's -log D(G(z)), whose gradient does not vanish where the discriminator wins.

    Args:
        fake_logits: (B, ...) logits of generated images.

    Reference: Goodfellow et al. 2014, section 3.
    """
    return tf.reduce_mean(tf.nn.softplus(-fake_logits))
