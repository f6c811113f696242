"""The networks of globally and locally consistent image completion (Iizuka et al. 2017), from 32 to 256 pixels.

The width of their first layers is nf, 64 in the paper.
"""

import keras
from keras import layers

from hvdgan.networks import check_size


def completion_network(*, image_size: int, channels: int, nf: int) -> keras.Model:
    """Fill the holes of images: two halvings, dilated convolutions, two doublings (table 1).

    The paper has dilations 2, 4, 8, 16 for 256 pixels; smaller images have those that do not exceed image_size / 16.

    Returns:
        A model [(B, H, W, channels) images, (B, H, W, 1) mask] -> (B, H, W, channels) in [-1, 1]. Pixels where the mask
        is 1 do not affect the output.
    """
    check_size(image_size, "completion")
    images = keras.Input((image_size, image_size, channels), name="images")
    mask = keras.Input((image_size, image_size, 1), name="mask")
    x = layers.Concatenate(name="masked_and_mask")([images * (1.0 - mask), mask])
    x = _conv(x, nf, kernel=5, name="full")  # (B, H, W, nf)
    x = _conv(x, 2 * nf, strides=2, name="half_1")  # (B, H / 2, W / 2, 2 nf)
    x = _conv(x, 2 * nf, name="half_2")
    x = _conv(x, 4 * nf, strides=2, name="quarter_1")  # (B, H / 4, W / 4, 4 nf)
    x = _conv(x, 4 * nf, name="quarter_2")
    x = _conv(x, 4 * nf, name="quarter_3")
    for dilation in (2, 4, 8, 16):
        if dilation <= image_size // 16:
            x = _conv(x, 4 * nf, dilation=dilation, name=f"dilated_{dilation}")
    x = _conv(x, 4 * nf, name="quarter_4")
    x = _conv(x, 4 * nf, name="quarter_5")
    x = _deconv(x, 2 * nf, name="half_3")  # (B, H / 2, W / 2, 2 nf)
    x = _conv(x, 2 * nf, name="half_4")
    x = _deconv(x, nf, name="full_2")  # (B, H, W, nf)
    x = _conv(x, max(nf // 2, 1), name="full_3")
    x = layers.Conv2D(channels, 3, padding="same", name="to_image")(x)
    return keras.Model([images, mask], layers.Activation("tanh", dtype="float32", name="filled")(x), name="completion")


def context_discriminator(*, image_size: int, channels: int, nf: int) -> keras.Model:
    """Judge an image and the patch around its hole by two networks with a common last layer (tables 2 and 3).

    Returns:
        A model [(B, H, W, channels) images, (B, H / 2, W / 2, channels) patches] -> (B,) logits.
    """
    check_size(image_size, "completion")
    images = keras.Input((image_size, image_size, channels), name="images")
    patches = keras.Input((image_size // 2, image_size // 2, channels), name="patches")
    seen = [_encode(images, nf, "global"), _encode(patches, nf, "local")]
    x = layers.Concatenate(name="global_and_local")(seen)  # (B, 32 nf)
    x = layers.Dense(1, name="to_logit")(x)
    return keras.Model([images, patches], layers.Reshape((), dtype="float32", name="logits")(x), name="discriminator")


def _encode(x: keras.KerasTensor, nf: int, name: str) -> keras.KerasTensor:
    """Halve down to 4x4 pixels, then one vector of 16 nf numbers."""
    depth = 0
    while x.shape[1] > 4:
        x = _conv(x, nf * min(2**depth, 8), kernel=5, strides=2, name=f"{name}_{depth + 1}")
        depth += 1
    x = layers.Flatten(name=f"{name}_flatten")(x)
    return layers.ReLU(name=f"{name}_dense_relu")(layers.Dense(16 * nf, name=f"{name}_dense")(x))


def _conv(
    x: keras.KerasTensor, width: int, *, kernel: int = 3, strides: int = 1, dilation: int = 1, name: str
) -> keras.KerasTensor:
    convolution = layers.Conv2D(
        width, kernel, strides=strides, dilation_rate=dilation, padding="same", use_bias=False, name=name
    )
    return _norm_relu(convolution(x), name)


def _deconv(x: keras.KerasTensor, width: int, *, name: str) -> keras.KerasTensor:
    return _norm_relu(layers.Conv2DTranspose(width, 4, strides=2, padding="same", use_bias=False, name=name)(x), name)


def _norm_relu(x: keras.KerasTensor, name: str) -> keras.KerasTensor:
    x = layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=f"{name}_norm")(x)
    return layers.ReLU(name=f"{name}_relu")(x)
