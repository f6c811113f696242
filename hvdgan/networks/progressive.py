"""The networks of the Progressive GAN (Karras et al. 2018, arXiv:1710.10196), for pictures and volumes."""

import math

import keras
from keras import layers, ops

from hvdgan.errors import UserError
from hvdgan.networks.equalised import EqualisedConv, EqualisedDense, MinibatchStddev, register

_WIDEST = 512  # channels of the widest layers, as in the paper
_SMALLEST = 4  # pixels along the shortest axis of the first size, at least


def sizes_of(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The sizes of samples (..., C), the smallest first: each is half of the next, along all axes."""
    sizes = [shape[:-1]]
    while min(sizes[0]) >= 2 * _SMALLEST and not any(size % 2 for size in sizes[0]):
        sizes.insert(0, tuple(size // 2 for size in sizes[0]))
    if len(shape) not in (3, 4) or len(sizes) == 1:
        raise UserError(
            f"samples of shape {shape}: expected pictures or volumes of at least 8 pixels along each axis, which 2 "
            "divides; give another --image-size or --crop"
        )
    return sizes


class ProgressiveLayers:
    """The layers of a generator and a discriminator, of which the networks of each size are made.

    The networks take a `level` (B, 1): at level k the picture is that of sizes[k], and between k - 1 and k that of
    sizes[k] fades in (figure 2). Their pictures and logits are float32.

    Args:
        shape: shape of a sample, (H, W, C) or (D, H, W, C).
        nf: channels at full size, doubled at each halving, up to 512.
        latent_size: length of a latent vector.
    """

    def __init__(self, shape: tuple[int, ...], nf: int, latent_size: int) -> None:
        self.sizes, self._channels, self._latent_size = sizes_of(shape), shape[-1], latent_size
        last = len(self.sizes) - 1
        widths = [min(nf * 2 ** (last - number), _WIDEST) for number in range(last + 1)]
        first = self.sizes[0]
        self._dense = EqualisedDense(math.prod(first) * widths[0], name="dense")
        self._start = layers.Reshape((*first, widths[0]), name="start")
        self._first = EqualisedConv(widths[0], 3, name="conv_0")
        self._grow = [_pair(f"grow_{n}", widths[n], widths[n]) for n in range(1, last + 1)]
        self._to_image = [
            EqualisedConv(shape[-1], 1, linear=True, dtype="float32", name=f"to_image_{n}") for n in range(last + 1)
        ]
        self._from_image = [EqualisedConv(width, 1, name=f"from_image_{n}") for n, width in enumerate(widths)]
        self._shrink = [_pair(f"shrink_{n}", widths[n], widths[n - 1]) for n in range(1, last + 1)]
        self._last = [
            MinibatchStddev(name="minibatch_stddev"),
            EqualisedConv(widths[0], 3, name="conv"),
            layers.Flatten(name="flatten"),
            EqualisedDense(widths[0], name="dense_1"),
            EqualisedDense(1, linear=True, dtype="float32", name="dense_2"),
            layers.Reshape((), dtype="float32", name="logits"),
        ]

    def generator(self, number: int, first: int = 0) -> keras.Model:
        """Latents (B, latent_size) and level (B, 1) to samples of sizes[number]; right from level `first` upwards."""
        latents, level = keras.Input((self._latent_size,), name="latents"), self._level()
        x = self._start(self._dense(PixelNorm(name="latents_norm")(latents)))
        x = PixelNorm(name="norm_0")(self._first(PixelNorm(name="start_norm")(x)))
        image = self._to_image[0](x) if first == 0 else None
        for n in range(1, number + 1):
            x = _doubled(x)
            for place, convolution in enumerate(self._grow[n - 1]):
                x = PixelNorm(name=f"norm_{n}_{place}")(convolution(x))
            if n >= first:
                new = self._to_image[n](x)
                image = (
                    new if image is None else Fade(n, dtype="float32", name=f"fade_{n}")([_doubled(image), new, level])
                )
        return keras.Model([latents, level], image, name="generator")

    def discriminator(self, number: int, first: int = 0) -> keras.Model:
        """Samples of sizes[number] and level (B, 1) to logits (B,); right from level `first` upwards."""
        images, level = keras.Input((*self.sizes[number], self._channels), name="images"), self._level()
        x, smaller = self._from_image[number](images), images
        for n in range(number, 0, -1):
            for convolution in self._shrink[n - 1]:
                x = convolution(x)
            x = _halved(x)
            if n > first:
                smaller = _halved(smaller)
                x = Fade(n, name=f"fade_{n}")([self._from_image[n - 1](smaller), x, level])
        for layer in self._last:
            x = layer(x)
        return keras.Model([images, level], x, name="discriminator")

    def _level(self) -> keras.KerasTensor:
        return keras.Input((1,), dtype="float32", name="level")


@register
class PixelNorm(layers.Layer):
    """Divide by the root of the mean square of the channels (section 4.2)."""

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        return x * ops.rsqrt(ops.mean(ops.square(x), axis=-1, keepdims=True) + 1e-8)


@register
class Fade(layers.Layer):
    """From `old` at level number - 1 to `new` at level number: call it with [old, new, level (B, 1)]."""

    def __init__(self, number: int, **keywords: object) -> None:
        super().__init__(**keywords)
        self.number = number

    def call(self, inputs: list[keras.KerasTensor]) -> keras.KerasTensor:
        old, new, level = inputs
        share = ops.clip(ops.cast(level, "float32") - (self.number - 1), 0.0, 1.0)
        share = ops.cast(ops.reshape(share, (-1, *[1] * (len(new.shape) - 1))), new.dtype)
        return old + share * (new - old)

    def get_config(self) -> dict[str, object]:
        return {**super().get_config(), "number": self.number}


def _pair(name: str, first: int, second: int) -> list[EqualisedConv]:
    return [EqualisedConv(first, 3, name=f"{name}_conv_1"), EqualisedConv(second, 3, name=f"{name}_conv_2")]


def _doubled(x: keras.KerasTensor) -> keras.KerasTensor:
    """Each pixel repeated along every axis of space."""
    kind = layers.UpSampling2D if len(x.shape) == 4 else layers.UpSampling3D
    return kind(2, dtype=x.dtype)(x)


def _halved(x: keras.KerasTensor) -> keras.KerasTensor:
    """Means of blocks of two pixels along every axis of space."""
    kind = layers.AveragePooling2D if len(x.shape) == 4 else layers.AveragePooling3D
    return kind(2, dtype=x.dtype)(x)
