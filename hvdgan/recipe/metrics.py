"""Measures the difference of samples, and how an ensemble fits the truth, for each sample of a batch."""

import tensorflow as tf

_SSIM_WINDOW = 11


def l1(images: tf.Tensor, others: tf.Tensor, mask: tf.Tensor | None = None) -> tf.Tensor:
    """Mean absolute difference, (B,); for pictures from 0 to 2: white and black differ by 2.

    Args:
        images: samples, (B, ..., C).
        others: samples to compare with, (B, ..., C).
        mask: weights of the pixels, (B, ..., 1), 1 for those that count, else 0; None: all count.
    """
    return _mean(tf.abs(images - others), mask)


def psnr(images: tf.Tensor, others: tf.Tensor, mask: tf.Tensor | None = None, *, peak: float = 2.0) -> tf.Tensor:
    """Peak signal-to-noise ratio, (B,) in dB, from 0 to 100, the value of equal images.

    Args:
        images: samples, (B, ..., C).
        others: samples to compare with, (B, ..., C).
        mask: weights of the pixels, (B, ..., 1), 1 for those that count, else 0; None: all count.
        peak: range of the numbers, above 0: 2 for pictures, which lie in [-1, 1].
    """
    error = tf.maximum(_mean(tf.square(images - others), mask), peak**2 * 1e-10)
    return 10.0 * tf.math.log(peak**2 / error) / tf.math.log(10.0)


def ssim(images: tf.Tensor, others: tf.Tensor, mask: tf.Tensor | None = None, *, peak: float = 2.0) -> tf.Tensor:
    """Mean structural similarity, (B,), at most 1, the value of equal images.

    The images are mirrored at their edges, so that every pixel is the centre of an 11 x 11 window.

    Args:
        images: pictures or fields, (B, H, W, C), H and W at least 6.
        others: pictures or fields to compare with, (B, H, W, C).
        mask: weights of the pixels, (B, H, W, 1), 1 for those that count, else 0; None: all count.
        peak: range of the numbers, above 0: 2 for pictures, which lie in [-1, 1].

    Reference: Wang et al. 2004, equation 13.
    """
    half = _SSIM_WINDOW // 2
    images, others = (tf.pad(x, [[0, 0], [half, half], [half, half], [0, 0]], "REFLECT") for x in (images, others))
    similarity = tf.image.ssim(images, others, peak, filter_size=_SSIM_WINDOW, return_index_map=True)  # (B, H, W)
    return _mean(similarity[..., None], mask)


def fair_crps(truth: tf.Tensor, members: tf.Tensor) -> tf.Tensor:
    """Continuous ranked probability score of an ensemble, the unbiased estimate of that of endlessly many members.

    With members x_i of M and the truth y it is mean_i |x_i - y| - sum_ij |x_i - x_j| / (2 M (M - 1)), here the mean
    over pixels and channels.

    Args:
        truth: samples, (B, ..., C).
        members: ensemble, (M, B, ..., C), M at least 2.

    Returns:
        Scores, (B,); the smaller the better. Its expectation is smallest if members and truth have one distribution.

    Reference: Gneiting and Raftery 2007, equation 21; Ferro 2014, "Fair scores for ensemble forecasts".
    """
    count = members.shape[0]
    errors = tf.reduce_mean(tf.abs(members - truth[None]), axis=0)
    distances = tf.reduce_sum(tf.abs(members[:, None] - members[None]), axis=(0, 1))
    return tf.reduce_mean(errors - distances / (2 * count * (count - 1)), axis=range(1, truth.shape.rank))


def rank_frequencies(truth: tf.Tensor, members: tf.Tensor) -> tf.Tensor:
    """Rank histogram of an ensemble: how often the truth is larger than 0, 1, ..., M of its M members.

    Where the truth equals members, each rank that it could have counts equally.

    Args:
        truth: samples, (B, ..., C).
        members: ensemble, (M, B, ..., C).

    Returns:
        Fractions of the pixels and channels of each sample with the ranks 0 to M, (B, M + 1); a row sums to 1. Their
        expectation is 1 / (M + 1) each if members and truth have one distribution.

    Reference: Hamill 2001, "Interpretation of rank histograms for verifying ensemble forecasts".
    """
    below = tf.reduce_sum(tf.cast(members < truth[None], truth.dtype), axis=0)
    equal = tf.reduce_sum(tf.cast(members == truth[None], truth.dtype), axis=0)
    shares = 1.0 / (equal + 1.0)
    fractions = [
        tf.reduce_mean(
            tf.where((below <= rank) & (rank <= below + equal), shares, 0.0), axis=range(1, truth.shape.rank)
        )
        for rank in range(members.shape[0] + 1)
    ]
    return tf.stack(fractions, axis=1)


def _mean(values: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
    """Mean over pixels and channels, (B,)."""
    values = tf.reduce_mean(values, axis=-1, keepdims=True)
    axes = list(range(1, values.shape.rank))
    if mask is None:
        return tf.reduce_mean(values, axis=axes)
    return tf.reduce_sum(values * mask, axis=axes) / tf.reduce_sum(mask, axis=axes)
