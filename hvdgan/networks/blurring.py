"""Convolutions that halve or double images with a blur, as in StyleGAN2: as one kernel, or the blur apart.

hvdgan/networks/cpu_or_gpu.py says which is chosen where.
"""

import numpy as np
import tensorflow as tf

from hvdgan.networks import cpu_or_gpu

FILTER = np.array([1, 3, 3, 1]) / 8
"""filter of all changes of resolution, as in StyleGAN2's code"""


def blurred(kernel: tf.Tensor) -> tf.Tensor:
    """The kernel (k + 3, k + 3, C, F) that equals the filter along both axes followed by a kernel (k, k, C, F)."""
    size, _, inputs, outputs = kernel.shape
    one_axis = sum(weight * np.eye(size + 3, size, -place) for place, weight in enumerate(FILTER))
    both_axes = tf.constant(np.kron(one_axis, one_axis), kernel.dtype)  # ((k + 3)^2, k^2)
    return tf.reshape(both_axes @ tf.reshape(kernel, (size**2, -1)), (size + 3, size + 3, inputs, outputs))


def halved(images: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """Blur images (B, H, W, C), convolve them with a kernel of 1 or 3 pixels, and keep every second row and column."""
    if not cpu_or_gpu.chosen().blurs_apart:
        return tf.nn.conv2d(images, blurred(kernel), 2, "SAME")
    if kernel.shape[0] == 1:
        return tf.nn.conv2d(_blur(images, edge=1, stride=2), kernel, 1, "VALID")
    return tf.nn.conv2d(_blur(images, edge=2), kernel, 2, "VALID")


def doubled(images: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """Double height and width of images by a transposed convolution with a kernel (k, k, C, F), and blur.

    The result is multiplied by 4, because at each pixel a transposed convolution adds up a quarter of its weights.
    """
    batch, height, width = tf.unstack(tf.shape(images)[:3])
    size, _, _, filters = kernel.shape
    if size == 1 or not cpu_or_gpu.chosen().blurs_apart:  # a kernel of 1 is for the few channels of images
        shape = (batch, 2 * height, 2 * width, filters)
        return tf.nn.conv2d_transpose(images, _turned(4.0 * blurred(kernel)), shape, strides=2, padding="SAME")
    shape = (batch, 2 * height + 1, 2 * width + 1, filters)
    return _blur(tf.nn.conv2d_transpose(images, _turned(4.0 * kernel), shape, strides=2, padding="VALID"), edge=1)


def _turned(kernel: tf.Tensor) -> tf.Tensor:
    """A kernel (k, k, F, C) for transposed convolutions."""
    return tf.transpose(kernel, (0, 1, 3, 2))


def _blur(images: tf.Tensor, edge: int, stride: int = 1) -> tf.Tensor:
    """Each channel under the filter along both axes, with an edge of zeros, `edge` pixels wide."""
    filters = np.tile(np.outer(FILTER, FILTER)[..., None, None], (1, 1, images.shape[-1], 1))
    padding = [[0, 0], [edge, edge], [edge, edge], [0, 0]]
    return tf.nn.depthwise_conv2d(images, tf.constant(filters, images.dtype), (1, stride, stride, 1), padding)
