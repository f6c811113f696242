"""The networks of photo-realistic super-resolution (Ledig et al. 2017, arXiv:1609.04802, figure 4)."""

import keras
import tensorflow as tf
from keras import layers

_MOST_WIDENING = 8  # widest layer of the discriminator / nf


def super_resolution(*, factor: int, channels: int, nf: int, blocks: int) -> keras.Model:
    """Enlarge pictures: residual blocks at the size of the input, then doublings by sub-pixel convolutions.

    Args:
        factor: size of an output / size of its input, a power of two.
        channels: number of channels of a picture.
        nf: width of all layers; 64 in the paper.
        blocks: number of residual blocks; 16 in the paper.

    Returns:
        A model (B, h, w, channels) -> (B, factor h, factor w, channels) in [-1, 1], for pictures of any size.
    """
    inputs = keras.Input((None, None, channels), name="inputs")
    first = layers.PReLU(shared_axes=[1, 2], name="first_relu")(_conv(nf, 9, "first")(inputs))
    x = first
    for number in range(blocks):
        x = _residual(x, nf, f"block_{number}")
    x = _norm("last")(_conv(nf, 3, "last", bias=False)(x))
    x = layers.Add(name="skip")([first, x])
    for number in range(factor.bit_length() - 1):
        x = _conv(4 * nf, 3, f"up_{number}")(x)
        x = PixelShuffle(name=f"up_{number}_shuffle")(x)  # twice as high and wide, nf channels
        x = layers.PReLU(shared_axes=[1, 2], name=f"up_{number}_relu")(x)
    x = _conv(channels, 9, "to_images")(x)
    return keras.Model(inputs, layers.Activation("tanh", dtype="float32", name="images")(x), name="generator")


def picture_discriminator(*, image_size: int, channels: int, nf: int) -> keras.Model:
    """Judge pictures by eight convolutions, of widths nf to 8 nf, of which each second halves the size.

    Args:
        image_size: height and width of a picture in pixels.
        channels: number of channels of a picture.
        nf: width of the first layer; 64 in the paper.

    Returns:
        A model (B, H, W, channels) -> (B, 1) logits.
    """
    images = keras.Input((image_size, image_size, channels), name="images")
    x = layers.LeakyReLU(0.2, name="conv_0_relu")(_conv(nf, 3, "conv_0")(images))
    for number in range(1, 8):
        width = nf * min(2 ** (number // 2), _MOST_WIDENING)
        x = _conv(width, 3, f"conv_{number}", strides=1 + number % 2, bias=False)(x)
        x = layers.LeakyReLU(0.2, name=f"conv_{number}_relu")(_norm(f"conv_{number}")(x))
    x = layers.Dense(16 * nf, name="dense")(layers.Flatten(name="flatten")(x))
    x = layers.LeakyReLU(0.2, name="dense_relu")(x)
    return keras.Model(images, layers.Dense(1, dtype="float32", name="logits")(x), name="discriminator")


@keras.saving.register_keras_serializable("hvdgan")
class PixelShuffle(layers.Layer):
    """Four channels of a pixel become the channels of four pixels (Shi et al. 2016, arXiv:1609.05158)."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Return (B, 2 H, 2 W, C / 4) of (B, H, W, C)."""
        return tf.nn.depth_to_space(x, 2)


def _residual(x: keras.KerasTensor, width: int, name: str) -> keras.KerasTensor:
    y = _norm(f"{name}_1")(_conv(width, 3, f"{name}_1", bias=False)(x))
    y = layers.PReLU(shared_axes=[1, 2], name=f"{name}_relu")(y)
    y = _norm(f"{name}_2")(_conv(width, 3, f"{name}_2", bias=False)(y))
    return layers.Add(name=name)([x, y])


def _conv(width: int, size: int, name: str, *, strides: int = 1, bias: bool = True) -> layers.Layer:
    return layers.Conv2D(width, size, strides=strides, padding="same", use_bias=bias, name=name)


def _norm(name: str) -> layers.Layer:
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=f"{name}_norm")
