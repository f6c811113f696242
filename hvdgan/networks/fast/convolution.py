"""2-D convolutions that use a matrix product where oneDNN's kernels are slow: in the innermost layers of a GAN.

If an image has few positions and a filter has many weights, a product of the image's patches with the weights takes
half the time of the convolution and of its gradients. docs/performance.md has the measurements. The results equal those
of TensorFlow's own operations except for rounding, and the gradients can be differentiated again.

Images are (B, H, W, C), kernels (rows, columns, C, C'), where C are the channels on the side of higher resolution.
"""

import math

import numpy as np
import tensorflow as tf

FEW_POSITIONS = 16
"""most positions of the image with the lower resolution for which the product is faster ..."""
WEIGHTS_PER_POSITION = 256
"""... if the filter has at least this number of weights per position of the batch"""
WEIGHTS_PER_POSITION_FILTER = 2048
"""least number of weights per position of the batch for which the filter gradient alone is faster as a product"""


def pays(kernel: tuple[int, ...], small: tuple[int | None, ...]) -> bool:
    """Whether a part of the convolution is faster as a product; `small` is the shape of the lower resolution."""
    return _is_innermost(kernel, small) or _weights_per_position(kernel, small) >= WEIGHTS_PER_POSITION_FILTER


def conv(images: tf.Tensor, kernel: tf.Tensor, strides: tuple[int, int], padding: str) -> tf.Tensor:
    """Compute tf.nn.conv2d; the shape of the images must be known, and padding is SAME or VALID."""

    @tf.custom_gradient
    def convolve(images: tf.Tensor, kernel: tf.Tensor) -> tuple[tf.Tensor, object]:
        def backward(gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            inputs = conv_transpose(gradient, kernel, tuple(images.shape), strides, padding)
            return inputs, _filter_gradient(images, gradient, kernel.shape, strides, padding)

        places = _places(images.shape, kernel.shape, strides, padding)
        small = (images.shape[0], *places.shape[:2])
        if not _is_innermost(kernel.shape, small):
            return tf.nn.conv2d(images, kernel, strides, padding), backward
        product = tf.matmul(_patches(images, places), tf.reshape(kernel, (-1, kernel.shape[-1])))
        return tf.reshape(product, (*small, kernel.shape[-1])), backward

    return convolve(images, kernel)


def conv_transpose(
    small: tf.Tensor, kernel: tf.Tensor, shape: tuple[int, ...], strides: tuple[int, int], padding: str
) -> tf.Tensor:
    """Compute tf.nn.conv2d_transpose, to images of the given shape; the shape of `small` must be known."""

    @tf.custom_gradient
    def convolve(small: tf.Tensor, kernel: tf.Tensor) -> tuple[tf.Tensor, object]:
        def backward(gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            inputs = conv(gradient, kernel, strides, padding)
            return inputs, _filter_gradient(gradient, small, kernel.shape, strides, padding)

        if not _is_innermost(kernel.shape, small.shape):
            return tf.nn.conv2d_transpose(small, kernel, shape, strides, padding), backward
        outer = kernel.shape[-1]
        product = tf.matmul(tf.reshape(small, (-1, outer)), tf.reshape(kernel, (-1, outer)), transpose_b=True)
        taps = _inverse(_places(shape, kernel.shape, strides, padding), shape[1] * shape[2])
        rows = tf.reshape(product, (shape[0], -1, shape[3]))
        return tf.reshape(tf.reduce_sum(_rows(rows, taps), axis=2), shape), backward

    return convolve(small, kernel)


def _filter_gradient(
    large: tf.Tensor, small: tf.Tensor, shape: tf.TensorShape, strides: tuple[int, int], padding: str
) -> tf.Tensor:
    """The gradient of a kernel of this shape, which convolves large (B, H, W, C) to small (B, H', W', C')."""
    patches = _patches(large, _places(large.shape, shape, strides, padding))
    return tf.reshape(tf.matmul(patches, tf.reshape(small, (-1, shape[-1])), transpose_a=True), shape)


def _is_innermost(kernel: tuple[int, ...], small: tuple[int | None, ...]) -> bool:
    height, width = small[1:3]
    few = height is not None and width is not None and height * width <= FEW_POSITIONS
    return few and _weights_per_position(kernel, small) >= WEIGHTS_PER_POSITION


def _weights_per_position(kernel: tuple[int, ...], small: tuple[int | None, ...]) -> float:
    """Weights of the filter per position of the batch; 0 if the shape is not known."""
    known = [size for size in small[:3] if size is not None]
    return math.prod(kernel) / math.prod(known) if len(known) == 3 else 0.0


def _places(shape: tuple[int, ...], kernel: tuple[int, ...], strides: tuple[int, int], padding: str) -> np.ndarray:
    """The position in large images, 0 to H * W - 1, that each tap reads, H * W outside; (H', W', rows, columns)."""
    seen = []
    for size, taps, stride in zip(shape[1:3], kernel[:2], strides, strict=True):
        count = -(-size // stride) if padding == "SAME" else (size - taps) // stride + 1
        before = max((count - 1) * stride + taps - size, 0) // 2 if padding == "SAME" else 0
        seen.append(np.arange(count)[:, None] * stride + np.arange(taps) - before)
    rows, columns = seen[0][:, None, :, None], seen[1][None, :, None, :]
    height, width = shape[1:3]
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    return np.where(inside, rows * width + columns, height * width)


def _inverse(places: np.ndarray, positions: int) -> np.ndarray:
    """For each position the taps that read it, as indices into the flattened places, padded with places.size."""
    taps = np.argsort(places, axis=None, kind="stable")
    seen = places.ravel()[taps]
    taps, seen = taps[seen < positions], seen[seen < positions]
    number = np.arange(len(seen)) - np.searchsorted(seen, seen)
    inverse = np.full((positions, number.max() + 1), places.size)
    inverse[seen, number] = taps
    return inverse


def _patches(images: tf.Tensor, places: np.ndarray) -> tf.Tensor:
    """The pixels that the taps read, one row per position: (B * H' * W', rows * columns * C)."""
    batch, height, width, channels = images.shape
    rows = _rows(tf.reshape(images, (batch, height * width, channels)), places.reshape(-1))
    return tf.reshape(rows, (-1, places.shape[2] * places.shape[3] * channels))


def _rows(values: tf.Tensor, numbers: np.ndarray) -> tf.Tensor:
    """Rows (B, *, C) of values (B, N, C) by their numbers (*); number N is a row of zeros."""
    if np.any(numbers == values.shape[1]):
        values = tf.pad(values, [[0, 0], [0, 1], [0, 0]])
    return tf.gather(values, tf.constant(numbers, tf.int32), axis=1)
