"""The networks of translation without pairs (Zhu et al. 2017, arXiv:1703.10593), for pictures of any size."""

import keras
from keras import layers, ops

from hvdgan.networks.pix2pix import patch_logits

MULTIPLE = 4
"""number of which the sides of the pictures must be multiples: the generator halves them twice"""


def resnet_generator(*, channels: int, nf: int, blocks: int, name: str) -> keras.Model:
    """Translate pictures by residual blocks at a quarter of their size: c7s1-64, d128, d256, R256, u128, u64, c7s1-3.

    Args:
        nf: width of the first layer; 64 in the paper.
        blocks: number of residual blocks; in the paper 6 at 128 pixels and 9 from 256 pixels.

    Returns:
        A model (B, H, W, channels) -> (B, H, W, channels) in [-1, 1]; H and W are multiples of MULTIPLE, at least 8.
    """
    images = keras.Input((None, None, channels), name="images")
    x = _block(_pad(images, 3), nf, 7, "first", padding="valid")
    for depth in (1, 2):
        x = _block(x, nf << depth, 3, f"down_{depth}", strides=2)  # (B, H >> depth, W >> depth, nf << depth)
    for number in range(blocks):
        inner = _block(_pad(x, 1), 4 * nf, 3, f"residual_{number}_first", padding="valid")
        inner = _conv(_pad(inner, 1), 4 * nf, 3, f"residual_{number}_second", padding="valid")
        x = layers.Add(name=f"residual_{number}")([x, _norm(inner, f"residual_{number}_second")])
    for depth in (1, 0):
        kernel = {"kernel_initializer": keras.initializers.RandomNormal(stddev=0.02), "use_bias": False}
        x = layers.Conv2DTranspose(nf << depth, 3, 2, "same", name=f"up_{depth}", **kernel)(x)
        x = layers.ReLU(name=f"up_{depth}_relu")(_norm(x, f"up_{depth}"))
    x = _conv(_pad(x, 3), channels, 7, "last", padding="valid", use_bias=True)
    return keras.Model(images, layers.Activation("tanh", dtype="float32", name="last_tanh")(x), name=name)


def patch_discriminator(*, channels: int, nf: int, halvings: int, name: str) -> keras.Model:
    """Judge patches of a picture: C64-C128-C256-C512 with 3 halvings, whose patches are 70 pixels wide.

    Returns:
        A model (B, H, W, channels) -> (B, H', W', 1) logits, with H' = H / 2**halvings.
    """
    images = keras.Input((None, None, channels), name="images")
    return keras.Model(images, patch_logits(images, nf=nf, halvings=halvings, norm=_norm), name=name)


def _block(x: keras.KerasTensor, width: int, size: int, name: str, **how: object) -> keras.KerasTensor:
    return layers.ReLU(name=f"{name}_relu")(_norm(_conv(x, width, size, name, **how), name))


def _conv(x: keras.KerasTensor, width: int, size: int, name: str, **how: object) -> keras.KerasTensor:
    # One initializer per layer: it draws its seed when it is created, and layers with one seed have equal weights.
    kernel = keras.initializers.RandomNormal(stddev=0.02)
    return layers.Conv2D(
        width, size, name=name, kernel_initializer=kernel, **{"padding": "same", "use_bias": False, **how}
    )(x)


def _norm(x: keras.KerasTensor, name: str) -> keras.KerasTensor:
    """Instance normalisation without weights: each channel of each picture gets mean 0 and variance 1."""
    return layers.GroupNormalization(-1, epsilon=1e-5, center=False, scale=False, name=f"{name}_norm")(x)


def _pad(x: keras.KerasTensor, width: int) -> keras.KerasTensor:
    return ops.pad(x, ((0, 0), (width, width), (width, width), (0, 0)), mode="reflect")
