"""The networks of R3GAN (Huang et al. 2024, arXiv:2501.05441, section 3, config E), from 32 to 256 pixels.

Their residual blocks have no normalisation and begin as the identity: the last convolution of a block begins with
zeros, and the others with weights that are smaller in deeper networks (fix-up initialisation, Zhang et al. 2019).
"""

import math
from typing import Any

import keras
from keras import layers, ops

from hvdgan.networks import check_size
from hvdgan.networks.equalised import Resample, register, unit_normal

_WIDEST = 768  # channels of the widest layers, as in the paper
_SLOPE = 0.2  # of leaky ReLU
_GAIN = math.sqrt(2.0 / (1.0 + _SLOPE**2))  # of weights before a leaky ReLU, so that the mean square stays


def r3gan_generator(
    *, image_size: int, channels: int, nf: int, latent_size: int, blocks: int, group_width: int, num_classes: int = 0
) -> keras.Model:
    """Latents to images: a learnt basis of 4x4 pixels, then residual blocks up to the full size.

    Args:
        nf: channels at full size, doubled at each halving, up to 768, or to nf if that is more.
        latent_size: length of a latent vector, and of the learnt vector of a class that is joined to it.
        blocks: number of residual blocks at each size.
        group_width: channels of a group of the 3x3 convolutions, or its greatest common divisor with their channels.
        num_classes: number of classes; 0: the images have none.

    Returns:
        A model (B, latent_size) -> (B, image_size, image_size, channels), about [-1, 1]; with classes its input is
        [(B, latent_size), (B,) int32].
    """
    widths = _widths(image_size, nf)
    inputs: Any = keras.Input((latent_size,), name="latents")
    x = inputs
    if num_classes:
        classes, vectors = _class_vectors(num_classes, latent_size)
        inputs, x = [inputs, classes], layers.Concatenate(name="latents_and_class")([inputs, vectors])
    x = Basis(name="basis")(_dense(x, widths[0], "weights"))
    for number, width in enumerate(widths):
        if number:
            x = x if x.shape[-1] == width else _conv(x, width, 1, f"up_{4 << number}_conv")
            x = Resample(up=True, name=f"up_{4 << number}")(x)
        x = _blocks(x, blocks, blocks * len(widths), group_width)
    return keras.Model(inputs, _conv(x, channels, 1, "images", dtype="float32"), name="generator")


def r3gan_discriminator(
    *, image_size: int, channels: int, nf: int, blocks: int, group_width: int, num_classes: int = 0
) -> keras.Model:
    """Images to logits: residual blocks down to 4x4 pixels, each channel of which a learnt basis turns into a feature.

    The arguments are those of the generator.

    Returns:
        A model (B, image_size, image_size, channels) -> (B,) logits. With classes its input is [images, (B,) int32],
        and a logit is the product of a linear function of the features with the learnt vector of the class.
    """
    widths = _widths(image_size, nf)
    inputs: Any = keras.Input((image_size, image_size, channels), name="images")
    x = _conv(inputs, widths[-1], 1, "from_images")
    for number, width in reversed([*enumerate(widths)]):
        if x.shape[1] > 4 << number:
            x = Resample(name=f"down_{4 << number}")(x)
            x = x if x.shape[-1] == width else _conv(x, width, 1, f"down_{4 << number}_conv")
        x = _blocks(x, blocks, blocks * len(widths), group_width)
    first = keras.initializers.RandomNormal(0.0, 1.0 / 4.0)  # the inverse root of 4 x 4 weights
    x = layers.DepthwiseConv2D(4, use_bias=False, depthwise_initializer=first, dtype="float32", name="basis")(x)
    x = _dense(layers.Flatten(dtype="float32", name="features")(x), widths[0] if num_classes else 1, "to_logit")
    if num_classes:
        classes, vectors = _class_vectors(num_classes, widths[0], 1.0 / math.sqrt(widths[0]))
        inputs, x = [inputs, classes], layers.Dot(axes=1, dtype="float32", name="projection")([x, vectors])
    return keras.Model(inputs, layers.Reshape((), dtype="float32", name="logits")(x), name="discriminator")


@register
class Basis(layers.Layer):
    """Weights (B, C) to images (B, 4, 4, C): each channel is a learnt picture times its weight."""

    def build(self, input_shape: Any) -> None:
        self.basis = self.add_weight((4, 4, input_shape[-1]), initializer=unit_normal(), name="basis")

    def call(self, x: Any) -> Any:
        return x[:, None, None] * self.basis


def _blocks(x: keras.KerasTensor, count: int, depth: int, group_width: int) -> keras.KerasTensor:
    """Inverted bottlenecks with twice the channels inside; `depth` is the number of blocks of the whole network."""
    size, width = x.shape[1], x.shape[-1]
    gain, groups = _GAIN * depth**-0.25, 2 * width // math.gcd(2 * width, group_width)
    for name in (f"block_{size}_{number + 1}" for number in range(count)):
        y = _conv(x, 2 * width, 1, f"{name}_conv_1", gain, use_bias=True)
        y = layers.LeakyReLU(_SLOPE, name=f"{name}_relu_1")(y)
        y = _conv(y, 2 * width, 3, f"{name}_conv_2", gain, use_bias=True, groups=groups)
        y = layers.LeakyReLU(_SLOPE, name=f"{name}_relu_2")(y)
        x = layers.Add(name=name)([x, _conv(y, width, 1, f"{name}_conv_3", 0.0)])
    return x


def _class_vectors(num_classes: int, length: int, gain: float = 1.0) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    """An input of classes (B,), and their learnt vectors (B, length)."""
    classes = keras.Input((), dtype="int32", name="classes")
    # A matrix product instead of a lookup, whose gradient would be sparse; the ranks exchange dense ones.
    return classes, _dense(ops.one_hot(classes, num_classes), length, "vectors", gain)


def _widths(image_size: int, nf: int) -> list[int]:
    """Numbers of channels at 4, 8, ... image_size pixels."""
    check_size(image_size, "R3GAN")
    return [min(nf * image_size >> power, max(_WIDEST, nf)) for power in range(2, image_size.bit_length())]


def _dense(x: keras.KerasTensor, width: int, name: str, gain: float = 1.0) -> keras.KerasTensor:
    return layers.Dense(width, use_bias=False, kernel_initializer=_weights(gain), dtype="float32", name=name)(x)


def _conv(
    x: keras.KerasTensor, width: int, size: int, name: str, gain: float = 1.0, use_bias: bool = False, **others: Any
) -> keras.KerasTensor:
    how = {"use_bias": use_bias, "kernel_initializer": _weights(gain) if gain else "zeros", **others}
    return layers.Conv2D(width, size, padding="same", name=name, **how)(x)


def _weights(gain: float) -> keras.initializers.Initializer:
    # One initializer per layer: it draws its seed when it is created, and layers with one seed have equal weights.
    return keras.initializers.VarianceScaling(gain**2, "fan_in", "untruncated_normal")
