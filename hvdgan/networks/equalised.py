"""Layers with equalised learning rate, of the Progressive GAN (Karras et al. 2018) and StyleGAN2.

All weights are initialised with unit variance and scaled when they are used, so that Adam changes all of them at the
same relative rate (section 4.1). Images are halved and doubled with a blur, as one kernel or apart (cpu_or_gpu).
"""

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from hvdgan.networks import cpu_or_gpu

register = keras.saving.register_keras_serializable("hvdgan")


@register
class EqualisedDense(layers.Layer):
    """Dense layer with equalised learning rate and leaky ReLU.

    Args:
        bias: initial value of the bias.
        linear: True for a layer without leaky ReLU.
        lr_multiplier: factor of the layer's learning rate; below 1 it learns slower than the others.
    """

    def __init__(
        self, units: int, *, bias: float = 0.0, linear: bool = False, lr_multiplier: float = 1.0, **keywords: Any
    ) -> None:
        super().__init__(**keywords)
        self.units, self.first_bias, self.linear, self.lr_multiplier = units, bias, linear, lr_multiplier

    def build(self, input_shape: Any) -> None:
        unit = unit_normal(1.0 / self.lr_multiplier)
        self.kernel = self.add_weight((input_shape[-1], self.units), initializer=unit, name="kernel")
        first = keras.initializers.Constant(self.first_bias / self.lr_multiplier)
        self.bias = self.add_weight((self.units,), initializer=first, name="bias")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        x = tf.linalg.matmul(x, equalised(self.kernel, self.lr_multiplier)) + self.bias * self.lr_multiplier
        return x if self.linear else leaky_relu(x)

    def get_config(self) -> dict[str, Any]:
        own = {"units": self.units, "bias": self.first_bias, "linear": self.linear}
        return {**super().get_config(), **own, "lr_multiplier": self.lr_multiplier}


@register
class EqualisedConv(layers.Layer):
    """Convolution of images or volumes with equalised learning rate, bias and leaky ReLU.

    Args:
        down: True to blur and halve the images; not of volumes.
        linear: True for a layer without bias and leaky ReLU.
        gain: factor of the output.
    """

    def __init__(
        self, filters: int, size: int, *, down: bool = False, linear: bool = False, gain: float = 1.0, **keywords: Any
    ) -> None:
        super().__init__(**keywords)
        self.filters, self.size, self.down, self.linear, self.gain = filters, size, down, linear, gain

    def build(self, input_shape: Any) -> None:
        shape = (*[self.size] * (len(input_shape) - 2), input_shape[-1], self.filters)
        self.kernel = self.add_weight(shape, initializer=unit_normal(), name="kernel")
        if not self.linear:
            self.bias = self.add_weight((self.filters,), initializer="zeros", name="bias")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        kernel = equalised(self.kernel, self.gain if self.linear else 1.0)
        x = halved(x, kernel) if self.down else tf.nn.convolution(x, kernel, padding="SAME")
        return x if self.linear else leaky_relu(x + self.bias) * self.gain

    def get_config(self) -> dict[str, Any]:
        own = {"filters": self.filters, "size": self.size, "down": self.down, "linear": self.linear}
        return {**super().get_config(), **own, "gain": self.gain}


@register
class Resample(layers.Layer):
    """Halve images (B, H, W, C), or double them if `up`, with the filter on each channel, and zeros outside."""

    def __init__(self, *, up: bool = False, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.up = up

    def call(self, x: tf.Tensor) -> tf.Tensor:
        if not self.up:
            return _blur(x, edge=1, stride=2)
        # The transpose of the halving, times 4, because at each pixel it adds up a quarter of its weights.
        shape, edges = (tf.shape(x)[0], 2 * x.shape[1], 2 * x.shape[2], x.shape[3]), [[0, 0], [1, 1], [1, 1], [0, 0]]
        return tf.nn.depthwise_conv2d_backprop_input(shape, 4.0 * _filters(x), x, (1, 2, 2, 1), edges)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "up": self.up}


@register
class MinibatchStddev(layers.Layer):
    """Add a channel to images or volumes: the standard deviation over a group, averaged over pixels and channels.

    A group is `group` consecutive samples, so ranks whose slices of the batch are multiples of it have the groups that
    one rank would have. If `group` does not divide the slice, the slice's largest divisor up to `group` is used.

    Args:
        group: number of samples in a group.

    Reference: Karras et al. 2018, section 3.
    """

    def __init__(self, group: int = 4, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.group = group

    def call(self, x: tf.Tensor) -> tf.Tensor:
        batch = tf.shape(x)[0]
        sizes = tf.range(1, self.group + 1)
        group = tf.reduce_max(tf.where(batch % sizes == 0, sizes, 1))
        grouped = tf.reshape(tf.cast(x, tf.float32), tf.stack([batch // group, group, math.prod(x.shape[1:])]))
        deviation = tf.sqrt(tf.math.reduce_variance(grouped, axis=1) + 1e-8)  # (groups, H W C)
        deviation = tf.repeat(tf.reduce_mean(deviation, axis=1), group)  # (B,)
        seen = tf.ones_like(x[..., :1]) * tf.reshape(tf.cast(deviation, x.dtype), (-1, *[1] * (len(x.shape) - 1)))
        return tf.concat([x, seen], axis=-1)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "group": self.group}


def equalised(kernel: Any, gain: float = 1.0) -> tf.Tensor:
    """A kernel (..., C, F) of unit variance, scaled so that its outputs have the variance of its inputs."""
    return tf.convert_to_tensor(kernel) * (gain / math.sqrt(math.prod(kernel.shape[:-1])))


def leaky_relu(x: tf.Tensor) -> tf.Tensor:
    """Leaky ReLU of slope 0.2, scaled so that the mean square of its output is about that of its input."""
    # Scale before the leaky ReLU: TensorFlow's graph optimizer fails, with an error in the log, at a sum before it.
    return tf.nn.leaky_relu(x * math.sqrt(2.0), 0.2)


def unit_normal(deviation: float = 1.0) -> keras.initializers.Initializer:
    # One initializer per layer: it draws its seed when it is created, and layers with one seed have equal weights.
    return keras.initializers.RandomNormal(0.0, deviation)


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
    padding = [[0, 0], [edge, edge], [edge, edge], [0, 0]]
    return tf.nn.depthwise_conv2d(images, _filters(images), (1, stride, stride, 1), padding)


def _filters(images: tf.Tensor) -> tf.Tensor:
    """The filter along both axes, for each channel."""
    return tf.constant(np.tile(np.outer(FILTER, FILTER)[..., None, None], (1, 1, images.shape[-1], 1)), images.dtype)
