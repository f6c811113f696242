"""Losses as pure functions of logits and images; each returns the mean over the batch, a scalar."""

from collections.abc import Callable

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


def absolute_error(images: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Mean over all pixels of the absolute error; both (B, H, W, C) in [-1, 1]."""
    return tf.reduce_mean(tf.abs(outputs - images))


def squared_error(images: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Mean over all pixels of the squared error; both (B, H, W, C) in [-1, 1]."""
    return tf.reduce_mean(tf.square(outputs - images))


def binary_cross_entropy(images: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Mean over all pixels of the cross-entropy, where -1 means no and 1 yes; both (B, H, W, C) in [-1, 1]."""
    yes = tf.clip_by_value((outputs + 1.0) / 2.0, 1e-6, 1.0 - 1e-6)
    wanted = (images + 1.0) / 2.0
    return -tf.reduce_mean(wanted * tf.math.log(yes) + (1.0 - wanted) * tf.math.log(1.0 - yes))


def hinge_discriminator(real_logits: tf.Tensor, fake_logits: tf.Tensor) -> tf.Tensor:
    """Hinge loss: max(0, 1 - D(x)) + max(0, 1 + D(G(z))).

    Args:
        real_logits: (B, ...) logits of real images.
        fake_logits: (B, ...) logits of generated images.

    Reference: Miyato et al. 2018 (arXiv:1802.05957), equation 16.
    """
    return tf.reduce_mean(tf.nn.relu(1.0 - real_logits)) + tf.reduce_mean(tf.nn.relu(1.0 + fake_logits))


def hinge_generator(fake_logits: tf.Tensor) -> tf.Tensor:
    """The generator's loss against a hinge discriminator: -D(G(z)).

    Args:
        fake_logits: (B, ...) logits of generated images.

    Reference: Miyato et al. 2018 (arXiv:1802.05957), equation 17.
    """
    return -tf.reduce_mean(fake_logits)


def wasserstein_critic(real_scores: tf.Tensor, fake_scores: tf.Tensor) -> tf.Tensor:
    """The critic's D(G(z)) - D(x): minus its estimate of the Wasserstein distance.

    Args:
        real_scores: (B, ...) scores of real images.
        fake_scores: (B, ...) scores of generated images.

    Reference: Gulrajani et al. 2017 (arXiv:1704.00028), equation 3, without the penalty.
    """
    return tf.reduce_mean(fake_scores) - tf.reduce_mean(real_scores)


def wasserstein_generator(fake_scores: tf.Tensor) -> tf.Tensor:
    """The generator's -D(G(z)).

    Args:
        fake_scores: (B, ...) scores of generated images.

    Reference: Gulrajani et al. 2017 (arXiv:1704.00028), algorithm 1.
    """
    return -tf.reduce_mean(fake_scores)


def gradient_penalty(
    critic: Callable[[tf.Tensor], tf.Tensor], real: tf.Tensor, fake: tf.Tensor, mix: tf.Tensor
) -> tf.Tensor:
    """(|gradient of the critic| - 1)^2 at points between real and generated images, without its weight.

    Args:
        critic: called with images, returns their scores (B,); a score may depend on its own image alone.
        real: (B, H, W, C) real images.
        fake: (B, H, W, C) generated images.
        mix: (B,) in [0, 1]; a point is mix * real + (1 - mix) * fake.

    Reference: Gulrajani et al. 2017 (arXiv:1704.00028), equation 3.
    """
    mix = mix[:, None, None, None]
    points = mix * real + (1.0 - mix) * fake
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(points)
        scores = critic(points)
    slopes = tape.gradient(scores, points)
    # Where the slope is 0 the square root alone would have an infinite gradient.
    norms = tf.sqrt(tf.reduce_sum(tf.square(slopes), axis=[1, 2, 3]) + 1e-12)
    return tf.reduce_mean(tf.square(norms - 1.0))


def masked_mse(images: tf.Tensor, filled: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Mean over all pixels of the squared error inside the mask.

    Args:
        images: (B, H, W, C).
        filled: (B, H, W, C).
        mask: (B, H, W, 1), 1 inside the hole and 0 outside.

    Reference: Iizuka et al. 2017, equation 2.
    """
    return tf.reduce_mean(tf.square(mask * (filled - images)))


def kl_to_normal(mean: tf.Tensor, log_variance: tf.Tensor) -> tf.Tensor:
    """The divergence of a diagonal normal distribution from the standard one, summed over the latent's elements.

    Args:
        mean: (B, n).
        log_variance: (B, n).

    Reference: Kingma and Welling 2014, appendix B.
    """
    return tf.reduce_mean(0.5 * tf.reduce_sum(tf.square(mean) + tf.exp(log_variance) - 1.0 - log_variance, axis=1))


def half_squared_distance(features: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """Half the squared distance of features: up to a constant -log of a normal likelihood of unit variance.

    Args:
        features: (B, n).
        others: (B, n).

    Reference: Larsen et al. 2016, equations 7 and 8.
    """
    return tf.reduce_mean(0.5 * tf.reduce_sum(tf.square(features - others), axis=1))
