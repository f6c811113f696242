"""Layers with equalised learning rate, of the Progressive GAN (Karras et al. 2018) and StyleGAN2.

All weights are initialised with unit variance and scaled when they are used, so that Adam changes all of them at the
same relative rate (section 4.1).
"""

import math
from typing import Any

import keras
import tensorflow as tf
from keras import layers

from hvdgan.networks.blurring import halved

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
