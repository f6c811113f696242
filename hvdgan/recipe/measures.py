"""Measures the difference of images, one number per image; a mask limits it to a part of each image."""

import tensorflow as tf

_PEAK = 2.0  # images lie in [-1, 1]
_SSIM_WINDOW = 11


def l1(images: tf.Tensor, others: tf.Tensor, mask: tf.Tensor | None = None) -> tf.Tensor:
    """Mean absolute difference.

    Args:
        images: images, (B, H, W, C) in [-1, 1].
        others: images to compare with, (B, H, W, C) in [-1, 1].
        mask: weights of the pixels, (B, H, W, 1), 1 for those that count, else 0; None: all count.

    Returns:
        Differences, (B,), from 0 to 2: white and black differ by 2.
    """
    return _mean(tf.abs(images - others), mask)


def psnr(images: tf.Tensor, others: tf.Tensor, mask: tf.Tensor | None = None) -> tf.Tensor:
    """Peak signal-to-noise ratio.

    Args:
        images: images, (B, H, W, C) in [-1, 1].
        others: images to compare with, (B, H, W, C) in [-1, 1].
        mask: weights of the pixels, (B, H, W, 1), 1 for those that count, else 0; None: all count.

    Returns:
        Ratios, (B,) in dB, from 0 to 100, the value of equal images.
    """
    error = tf.maximum(_mean(tf.square(images - others), mask), _PEAK**2 * 1e-10)
    return 10.0 * tf.math.log(_PEAK**2 / error) / tf.math.log(10.0)


def ssim(images: tf.Tensor, others: tf.Tensor, mask: tf.Tensor | None = None) -> tf.Tensor:
    """Mean structural similarity.

    The images are mirrored at their edges, so that every pixel is the centre of an 11 x 11 window.

    Args:
        images: images, (B, H, W, C) in [-1, 1], H and W at least 6.
        others: images to compare with, (B, H, W, C) in [-1, 1].
        mask: weights of the pixels, (B, H, W, 1), 1 for those that count, else 0; None: all count.

    Returns:
        Similarities, (B,), at most 1, the value of equal images.

    Reference: Wang et al. 2004, equation 13.
    """
    half = _SSIM_WINDOW // 2
    images, others = (tf.pad(x, [[0, 0], [half, half], [half, half], [0, 0]], "REFLECT") for x in (images, others))
    similarity = tf.image.ssim(images, others, _PEAK, filter_size=_SSIM_WINDOW, return_index_map=True)  # (B, H, W)
    return _mean(similarity[..., None], mask)


def _mean(values: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
    """Mean over pixels and channels, (B,)."""
    values = tf.reduce_mean(values, axis=3, keepdims=True)
    if mask is None:
        return tf.reduce_mean(values, axis=(1, 2, 3))
    return tf.reduce_sum(values * mask, axis=(1, 2, 3)) / tf.reduce_sum(mask, axis=(1, 2, 3))
