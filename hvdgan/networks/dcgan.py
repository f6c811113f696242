"""The networks of DCGAN (Radford et al. 2016), for any power-of-two image size from 32 to 256 pixels."""

from typing import Literal

import keras
from keras import layers

from hvdgan.networks import check_size

Norm = Literal["batch", "none"]

_MOST_WIDENING = 16  # widest layer / nf; reached at 128 pixels, and kept at 256, where doubling would give 32


def dcgan_generator(*, image_size: int, channels: int, latent_size: int, nf: int, norm: Norm = "batch") -> keras.Model:
    """Latents to images by fractionally-strided convolutions; at 64 pixels 512-256-128-64-channels (figure 1).

    Args:
        nf: width of the layer before the last.

    Returns:
        A model (B, latent_size) -> (B, image_size, image_size, channels) in [-1, 1].
    """
    widths = _widths(image_size, nf)
    latents = keras.Input((latent_size,), name="latents")
    x = layers.Reshape((1, 1, latent_size), name="reshape")(latents)
    x = _up(x, widths[-1], norm, strides=1, padding="valid", name="block_4")  # (B, 4, 4, widest)
    x = layers.ReLU(name="block_4_relu")(_norm(x, norm, "block_4"))
    for size, width in zip(_sizes_up(image_size), reversed(widths[:-1]), strict=True):
        x = _up(x, width, norm, strides=2, padding="same", name=f"block_{size}")  # (B, size, size, width)
        x = layers.ReLU(name=f"block_{size}_relu")(_norm(x, norm, f"block_{size}"))
    x = _up(x, channels, norm, strides=2, padding="same", name="to_image", use_bias=True)
    images = layers.Activation("tanh", dtype="float32", name="images")(x)
    return keras.Model(latents, images, name="generator")


def dcgan_discriminator(*, image_size: int, channels: int, nf: int, norm: Norm = "batch") -> keras.Model:
    """Images to logits by strided convolutions; at 64 pixels 64-128-256-512-1.

    Args:
        nf: width of the first layer.
        norm: "batch" or "none"; the first layer never has BatchNorm (section 3).

    Returns:
        A model (B, image_size, image_size, channels) -> (B,) logits.
    """
    images = keras.Input((image_size, image_size, channels), name="images")
    x = images
    for depth, width in enumerate(_widths(image_size, nf)):
        name = f"block_{image_size >> (depth + 1)}"
        x = layers.Conv2D(
            width, 4, strides=2, padding="same", use_bias=depth == 0, kernel_initializer=_weights(norm), name=name
        )(x)
        if depth:
            x = _norm(x, norm, name)
        x = layers.LeakyReLU(0.2, name=f"{name}_relu")(x)  # (B, size / 2, size / 2, width)
    x = layers.Conv2D(1, 4, padding="valid", kernel_initializer=_weights(norm), name="to_logit")(x)  # (B, 1, 1, 1)
    logits = layers.Reshape((), dtype="float32", name="logits")(x)
    return keras.Model(images, logits, name="discriminator")


def _widths(image_size: int, nf: int) -> list[int]:
    """Widths from the layer nearest the image (nf) to the one at 4x4 pixels."""
    check_size(image_size, "DCGAN")
    halvings = image_size.bit_length() - 3
    return [nf * min(2**depth, _MOST_WIDENING) for depth in range(halvings)]


def _sizes_up(image_size: int) -> list[int]:
    return [size for size in (8, 16, 32, 64, 128) if size < image_size]


def _up(
    x: keras.KerasTensor, width: int, norm: Norm, *, strides: int, padding: str, name: str, use_bias: bool = False
) -> keras.KerasTensor:
    return layers.Conv2DTranspose(
        width, 4, strides=strides, padding=padding, use_bias=use_bias, kernel_initializer=_weights(norm), name=name
    )(x)


def _weights(norm: Norm) -> keras.initializers.Initializer:
    # One initializer per layer: it draws its seed when it is created, and layers with one seed have equal weights.
    if norm == "none":
        return keras.initializers.HeNormal()  # without BatchNorm the signal vanishes with the paper's weights
    return keras.initializers.RandomNormal(stddev=0.02)  # section 3


def _norm(x: keras.KerasTensor, norm: Norm, name: str) -> keras.KerasTensor:
    if norm == "none":
        return x
    scale = keras.initializers.RandomNormal(1.0, 0.02)
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5, gamma_initializer=scale, name=f"{name}_norm")(x)
