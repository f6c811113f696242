"""The networks of VAE/GAN (Larsen et al. 2016, table 1), for any power-of-two image size from 32 to 256 pixels."""

import keras
from keras import layers

from hvdgan.networks import check_size


def vae_encoder(*, image_size: int, channels: int, latent_size: int, nf: int) -> keras.Model:
    """Images to the mean and the logarithm of the variance of their latents; at 64 pixels 64-128-256-2048.

    Args:
        latent_size: length of a latent vector.
        nf: width of the first layer; 64 in the paper.

    Returns:
        A model (B, image_size, image_size, channels) -> [(B, latent_size), (B, latent_size)].
    """
    images = keras.Input((image_size, image_size, channels), name="images")
    x = images
    for depth in range(_halvings(image_size)):
        x = _conv(x, nf * min(2**depth, 4), strides=2, name=f"conv_{depth + 1}")  # (B, size / 2^(depth + 1), ...)
    x = layers.Flatten(name="flatten")(x)
    x = _norm_relu(layers.Dense(32 * nf, use_bias=False, name="dense")(x), "dense")
    outputs = [
        layers.Dense(latent_size, dtype="float32", name="mean")(x),
        layers.Dense(latent_size, dtype="float32", name="log_variance")(x),
    ]
    return keras.Model(images, outputs, name="encoder")


def vae_decoder(*, image_size: int, channels: int, latent_size: int, nf: int) -> keras.Model:
    """Latents to images; at 64 pixels 256-256-128-32-channels.

    Args:
        latent_size: length of a latent vector.
        nf: a quarter of the width of the first layer; 64 in the paper.

    Returns:
        A model (B, latent_size) -> (B, image_size, image_size, channels) in [-1, 1].
    """
    halvings = _halvings(image_size)
    small = image_size >> halvings
    latents = keras.Input((latent_size,), name="latents")
    x = layers.Dense(small * small * 4 * nf, use_bias=False, name="dense")(latents)
    x = layers.Reshape((small, small, 4 * nf), name="reshape")(_norm_relu(x, "dense"))
    for depth in range(halvings):
        width = max(nf // 2, 1) if depth == halvings - 1 else max(4 * nf >> depth, nf)
        x = layers.Conv2DTranspose(width, 5, strides=2, padding="same", use_bias=False, name=f"deconv_{depth + 1}")(
            x
        )  # (B, small 2^(depth + 1), ..., width)
        x = _norm_relu(x, f"deconv_{depth + 1}")
    x = layers.Conv2D(channels, 5, padding="same", name="to_image")(x)
    return keras.Model(latents, layers.Activation("tanh", dtype="float32", name="images")(x), name="decoder")


def vae_discriminator(*, image_size: int, channels: int, nf: int) -> keras.Model:
    """Images to logits and to the features by which images are compared; at 64 pixels 32-128-256-256-512-1.

    Args:
        nf: twice the width of the first layer; 64 in the paper.

    Returns:
        A model (B, image_size, image_size, channels) -> [(B,) logits, (B, n) features of the last
        convolution].
    """
    images = keras.Input((image_size, image_size, channels), name="images")
    x = layers.Conv2D(max(nf // 2, 1), 5, padding="same", name="conv_0")(images)
    x = layers.ReLU(name="conv_0_relu")(x)
    for depth in range(_halvings(image_size)):
        x = _conv(x, nf * (2 if depth == 0 else 4), strides=2, name=f"conv_{depth + 1}")
    features = layers.Flatten(dtype="float32", name="features")(x)
    x = _norm_relu(layers.Dense(8 * nf, use_bias=False, name="dense")(features), "dense")
    x = layers.Dense(1, dtype="float32", name="to_logit")(x)
    return keras.Model(images, [layers.Reshape((), dtype="float32", name="logits")(x), features], name="discriminator")


def _halvings(image_size: int) -> int:
    """Number of halvings: down to 8x8 pixels, or to 4x4 from 32 pixels."""
    check_size(image_size, "VAE/GAN")
    return max(3, image_size.bit_length() - 4)


def _conv(x: keras.KerasTensor, width: int, *, strides: int, name: str) -> keras.KerasTensor:
    return _norm_relu(layers.Conv2D(width, 5, strides=strides, padding="same", use_bias=False, name=name)(x), name)


def _norm_relu(x: keras.KerasTensor, name: str) -> keras.KerasTensor:
    x = layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=f"{name}_norm")(x)
    return layers.ReLU(name=f"{name}_relu")(x)
