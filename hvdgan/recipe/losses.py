"""Losses as pure functions of logits and images; each returns a scalar tensor, the mean over the batch."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def non_saturating_discriminator(real_logits: tf.Tensor, fake_logits: tf.Tensor) -> tf.Tensor:
    """Cross-entropy of the discriminator, from 0 up: -log D(x) - log(1 - D(G(z))).

    Args:
        real_logits: logits of real images, (B, ...).
        fake_logits: logits of generated images, (B, ...).

    Reference: Goodfellow et al. 2014, equation 1.
    """
    return tf.reduce_mean(tf.nn.softplus(-real_logits)) + tf.reduce_mean(tf.nn.softplus(fake_logits))


def non_saturating_generator(fake_logits: tf.Tensor) -> tf.Tensor:
    """The generator's -log D(G(z)), whose gradient does not vanish when the discriminator is almost certain.

    Args:
        fake_logits: logits of generated images, (B, ...).

    Reference: Goodfellow et al. 2014, section 3.
    """
    return tf.reduce_mean(tf.nn.softplus(-fake_logits))


def absolute_error(images: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Mean of |outputs - images| over all pixels and channels, from 0 up.

    Args:
        images: wanted samples, (B, ..., C).
        outputs: samples that a network returned, (B, ..., C).

    Reference: Isola et al. 2017 (arXiv:1611.07004), equation 3.
    """
    return tf.reduce_mean(tf.abs(outputs - images))


def squared_error(images: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Mean of (outputs - images)^2 over all pixels and channels, from 0 up.

    Args:
        images: wanted samples, (B, ..., C).
        outputs: samples that a network returned, (B, ..., C).
    """
    return tf.reduce_mean(tf.square(outputs - images))


def hinge_discriminator(real_logits: tf.Tensor, fake_logits: tf.Tensor) -> tf.Tensor:
    """Hinge loss, from 0 up: max(0, 1 - D(x)) + max(0, 1 + D(G(z))).

    Args:
        real_logits: logits of real images, (B, ...).
        fake_logits: logits of generated images, (B, ...).

    Reference: Miyato et al. 2018 (arXiv:1802.05957), equation 16.
    """
    return tf.reduce_mean(tf.nn.relu(1.0 - real_logits)) + tf.reduce_mean(tf.nn.relu(1.0 + fake_logits))


def hinge_generator(fake_logits: tf.Tensor) -> tf.Tensor:
    """The generator's loss against a hinge discriminator: -D(G(z)).

    Args:
        fake_logits: logits of generated images, (B, ...).

    Reference: Miyato et al. 2018 (arXiv:1802.05957), equation 17.
    """
    return -tf.reduce_mean(fake_logits)


def least_squares(logits: tf.Tensor, target: float) -> tf.Tensor:
    """Mean of (D(x) - target)^2, from 0 up; a discriminator sums it for real samples with 1 and for fake ones with 0.

    Args:
        logits: logits of real or of generated samples, (B, ...).
        target: value that they should have; 1 in the generator's loss.

    Reference: Mao et al. 2017 (arXiv:1611.04076), equation 9 without its factor of 1/2.
    """
    return tf.reduce_mean(tf.square(logits - target))


def relativistic(higher: tf.Tensor, lower: tf.Tensor) -> tf.Tensor:
    """Cross-entropy of pairs, from 0 up: -log sigmoid(D(x) - D(G(z))), in which sample i is compared with sample i.

    Args:
        higher: logits that should be higher, (B, ...): of real samples for the discriminator, of generated ones for the
            generator.
        lower: logits of the others, (B, ...).

    Reference: Jolicoeur-Martineau 2018 (arXiv:1807.00734), RSGAN; Huang et al. 2025 (arXiv:2501.05441).
    """
    return tf.reduce_mean(tf.nn.softplus(lower - higher))


def relativistic_average(higher: tf.Tensor, lower: tf.Tensor, mean: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """Cross-entropy from 0 up: -log sigmoid(D(x) - mean of D(G(z))) - log(1 - sigmoid(D(G(z)) - mean of D(x))).

    Args:
        higher: logits that should be higher, (B, ...), as for relativistic().
        lower: logits of the others, (B, ...).
        mean: function of logits that returns their mean over the samples of all ranks, `batch.mean`; with
            `tf.reduce_mean` the loss would depend on the number of ranks.

    Reference: Jolicoeur-Martineau 2018 (arXiv:1807.00734), RaSGAN; Wang et al. 2018 (arXiv:1809.00219), equation 1.
    """
    over_lower, over_higher = (tf.reduce_mean(mean(logits)) for logits in (lower, higher))
    return tf.reduce_mean(tf.nn.softplus(over_lower - higher)) + tf.reduce_mean(tf.nn.softplus(lower - over_higher))


def feature_matching(real: Sequence[tf.Tensor], fake: Sequence[tf.Tensor]) -> tf.Tensor:
    """Mean of |difference| of the discriminator's features of a sample and of its model, summed over layers, from 0 up.

    Args:
        real: features of real samples, one tensor (B, ...) for each layer.
        fake: those of the samples that the generator has made of the same inputs.

    Reference: Wang et al. 2018 (arXiv:1711.11585), section 3.2; Kong et al. 2020 (arXiv:2010.05646), section 2.4.
    """
    return tf.add_n([absolute_error(*pair) for pair in zip(real, fake, strict=True)])


def wasserstein_critic(real_scores: tf.Tensor, fake_scores: tf.Tensor) -> tf.Tensor:
    """The critic's D(G(z)) - D(x): minus its estimate of the Wasserstein distance.

    Args:
        real_scores: scores of real images, (B, ...).
        fake_scores: scores of generated images, (B, ...).

    Reference: Gulrajani et al. 2017 (arXiv:1704.00028), equation 3, without the penalty.
    """
    return tf.reduce_mean(fake_scores) - tf.reduce_mean(real_scores)


def wasserstein_generator(fake_scores: tf.Tensor) -> tf.Tensor:
    """The generator's -D(G(z)).

    Args:
        fake_scores: scores of generated images, (B, ...).

    Reference: Gulrajani et al. 2017 (arXiv:1704.00028), algorithm 1.
    """
    return -tf.reduce_mean(fake_scores)


def gradient_penalty(
    critic: Callable[[tf.Tensor], tf.Tensor], real: tf.Tensor, fake: tf.Tensor, mix: tf.Tensor
) -> tf.Tensor:
    """(|gradient of the critic| - 1)^2 at points between real and generated samples, without its weight, 10 there.

    Args:
        critic: function of samples, such as `nets.critic`, that returns their scores, (B,) or (B, 1). The score of a
            sample must not depend on the other samples, so no BatchNorm.
        real: real samples, (B, ...) float32: vectors, sequences, pictures or volumes.
        fake: generated samples of the same shape, (B, ...) float32.
        mix: weights of the real samples, (B,) in [0, 1], such as `batch.random.uniform("mix", ())`; a point is
            mix * real + (1 - mix) * fake.

    Reference: Gulrajani et al. 2017 (arXiv:1704.00028), equation 3.
    """
    rank = real.shape.rank
    mix = tf.reshape(mix, [real.shape[0] or -1, *[1] * (rank - 1)])
    points = mix * real + (1.0 - mix) * fake
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(points)
        scores = critic(points)
    slopes = tape.gradient(scores, points)
    # Where the slope is 0 the square root alone would have an infinite gradient.
    norms = tf.sqrt(tf.reduce_sum(tf.square(slopes), axis=list(range(1, rank))) + 1e-12)
    return tf.reduce_mean(tf.square(norms - 1.0))


def r1(critic: Callable[[Any], tf.Tensor], real: Any) -> tf.Tensor:
    """|gradient of the critic|^2 at real samples, without its weight, gamma / 2 there.

    Args:
        critic: function of samples, such as `nets.discriminator`, that returns their logits, (B, ...). The logits of a
            sample must not depend on the other samples, so no BatchNorm.
        real: real samples, (B, ...) float32: vectors, sequences, pictures or volumes; or a list or dict of such
            tensors, which the critic receives.

    Reference: Mescheder et al. 2018 (arXiv:1801.04406), equation 9.
    """
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(real)
        logits = critic(real)
    slopes = tf.nest.flatten(tape.gradient(logits, real))
    squares = [tf.reduce_sum(tf.square(slope), axis=range(1, slope.shape.rank)) for slope in slopes]
    # The last bias does not affect the penalty; adding 0 * logits gives it a gradient of 0.
    return tf.reduce_mean(tf.add_n(squares)) + 0.0 * tf.reduce_sum(logits)


def r2(critic: Callable[[Any], tf.Tensor], fake: Any) -> tf.Tensor:
    """|gradient of the critic|^2 at generated samples, without its weight, gamma / 2 there.

    Args:
        critic: as for r1().
        fake: generated samples, as the real ones of r1().

    Reference: Mescheder et al. 2018 (arXiv:1801.04406), equation 10.
    """
    return r1(critic, fake)
