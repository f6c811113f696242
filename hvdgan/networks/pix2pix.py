"""The networks of image-to-image translation (Isola et al. 2017, arXiv:1611.07004), from 32 to 256 pixels."""

from collections.abc import Callable, Collection

import keras
from keras import layers

from hvdgan.errors import UserError
from hvdgan.networks import check_size

_MOST_WIDENING = 8  # widest layer / nf

Norm = Callable[[keras.KerasTensor, str], keras.KerasTensor]

HEADS = {"half": 2, "quarter": 4}
"""names of the additional outputs, with the factor by which they are smaller than the images"""


def unet_generator(
    *, image_size: int, channels: int, nf: int, dropout: bool = True, heads: Collection[str] = ()
) -> keras.Model:
    """Translate images by a U-Net: halvings down to one pixel, then doublings, each joined with the layer of its size.

    At 256 pixels the widths of the halvings are 64-128-256-512-512-512-512-512, and the inputs of the doublings have
    512-1024-1024-1024-1024-512-256-128 channels (section 6.1.1). The innermost layer has no BatchNorm, because one
    pixel of one image has no statistics (section 6.1.2, errata).

    Args:
        nf: width of the first layer; 64 in the paper.
        dropout: True if the model takes keep-masks, of the shapes that mask_shapes() returns.
        heads: names of additional outputs at a lower resolution, any of HEADS.

    Returns:
        A model [(B, H, W, channels) inputs, *masks] -> {"images": (B, H, W, channels), "half": (B, H / 2, W / 2,
        channels), ...}, the images and the chosen heads, in [-1, 1].
    """
    widths = _widths(image_size, nf)
    inputs = keras.Input((image_size, image_size, channels), name="inputs")
    shapes = mask_shapes(image_size=image_size, nf=nf) if dropout else []
    masks = [keras.Input(shape, name=f"keep_{shape[0]}") for shape in shapes]
    x, beside = inputs, []
    for depth, width in enumerate(widths[:-1]):
        name = f"down_{image_size >> (depth + 1)}"
        x = _conv(x, width, strides=2, bias=depth == 0, name=name)  # (B, size, size, width)
        if depth:
            x = _norm(x, name)
        x = layers.LeakyReLU(0.2, name=f"{name}_relu")(x)
        beside.append(x)
    x = layers.ReLU(name="down_1_relu")(_conv(x, widths[-1], strides=2, bias=True, name="down_1"))
    outputs = {}
    for number, width in enumerate(reversed(widths[:-1])):
        size = 2 << number
        x = _norm(_deconv(x, width, name=f"up_{size}"), f"up_{size}")
        if number < len(masks):
            x = layers.Multiply(name=f"up_{size}_dropout")([x, masks[number]])
        x = layers.Concatenate(name=f"up_{size}_and_down")([x, beside.pop()])  # (B, size, size, 2 width)
        x = layers.ReLU(name=f"up_{size}_relu")(x)
        for head in heads:
            if size * HEADS[head] == image_size:
                outputs[head] = _to_image(layers.Conv2D(channels, 3, padding="same", **_weights(), name=head)(x), head)
    outputs["images"] = _to_image(_deconv(x, channels, bias=True, name="to_image"), "images")
    return keras.Model([inputs, *masks], outputs, name="generator")


def mask_shapes(*, image_size: int, nf: int) -> list[tuple[int, int, int]]:
    """Shapes (H, W, C) of the keep-masks of the decoder's first three layers."""
    widths = _widths(image_size, nf)[-2:-5:-1]
    return [(2 << number, 2 << number, width) for number, width in enumerate(widths)]


def patch_discriminator(*, image_size: int, channels: int, nf: int, halvings: int) -> keras.Model:
    """Judge patches of an image together with its input; with 3 halvings 64-128-256-512-1 (section 6.1.2).

    Args:
        nf: width of the first layer; 64 in the paper.
        halvings: number of layers with stride 2, >= 1; with 1, 2, 3, 4 a patch is 16, 34, 70, 142 pixels wide.

    Returns:
        A model [(B, H, W, channels) inputs, (B, H, W, channels) images] -> (B, H', W', 1) logits, with
        H' = H / 2**halvings.
    """
    check_size(image_size, "pix2pix")
    if image_size >> halvings < 4:
        most = image_size.bit_length() - 3
        raise UserError(f"--d-layers {halvings}: expected at most {most} with --image-size {image_size}")
    inputs = keras.Input((image_size, image_size, channels), name="inputs")
    images = keras.Input((image_size, image_size, channels), name="images")
    x = layers.Concatenate(name="inputs_and_images")([inputs, images])
    return keras.Model([inputs, images], patch_logits(x, nf=nf, halvings=halvings, norm=_norm), name="discriminator")


def patch_logits(x: keras.KerasTensor, *, nf: int, halvings: int, norm: Norm) -> keras.KerasTensor:
    """The layers of a discriminator of patches: (B, H, W, C) -> (B, H', W', 1) logits.

    Args:
        norm: normalisation of all blocks but the first; receives what it normalises and the name of the block.
    """
    for depth in range(halvings + 1):
        name = f"block_{depth + 1}"
        width = nf * min(2**depth, _MOST_WIDENING)
        x = _conv(x, width, strides=2 if depth < halvings else 1, bias=depth == 0, name=name)
        if depth:
            x = norm(x, name)
        x = layers.LeakyReLU(0.2, name=f"{name}_relu")(x)
    x = _conv(x, 1, strides=1, bias=True, name="to_logits")
    return layers.Activation("linear", dtype="float32", name="logits")(x)


def patch_halvings(image_size: int) -> int:
    """The largest number of halvings, up to the paper's 3, whose patches are smaller than the image."""
    return max(halvings for halvings, patch in ((1, 0), (2, 34), (3, 70)) if patch < image_size)


def _widths(image_size: int, nf: int) -> list[int]:
    """Widths of the encoder's layers, from the first to the one at 1x1 pixel."""
    check_size(image_size, "pix2pix")
    return [nf * min(2**depth, _MOST_WIDENING) for depth in range(image_size.bit_length() - 1)]


def _conv(x: keras.KerasTensor, width: int, *, strides: int, bias: bool, name: str) -> keras.KerasTensor:
    convolution = layers.Conv2D(width, 4, strides=strides, padding="same", use_bias=bias, **_weights(), name=name)
    return convolution(x)


def _deconv(x: keras.KerasTensor, width: int, *, bias: bool = False, name: str) -> keras.KerasTensor:
    convolution = layers.Conv2DTranspose(width, 4, strides=2, padding="same", use_bias=bias, **_weights(), name=name)
    return convolution(x)


def _weights() -> dict[str, keras.initializers.Initializer]:
    # One initializer per layer: it draws its seed when it is created, and layers with one seed have equal weights.
    return {"kernel_initializer": keras.initializers.RandomNormal(stddev=0.02)}  # section 6.2


def _norm(x: keras.KerasTensor, name: str) -> keras.KerasTensor:
    scale = keras.initializers.RandomNormal(1.0, 0.02)
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5, gamma_initializer=scale, name=f"{name}_norm")(x)


def _to_image(x: keras.KerasTensor, name: str) -> keras.KerasTensor:
    return layers.Activation("tanh", dtype="float32", name=f"{name}_tanh")(x)
