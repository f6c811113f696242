"""The networks of StyleGAN2 (Karras et al. 2020, arXiv:1912.04958), from 32 to 256 pixels."""

import math
from typing import Any

import keras
import tensorflow as tf
from keras import layers

from hvdgan.networks import check_size
from hvdgan.networks.equalised import (
    EqualisedConv,
    EqualisedDense,
    MinibatchStddev,
    doubled,
    equalised,
    leaky_relu,
    register,
    unit_normal,
)

_WIDEST = 512  # channels of the widest layers, as in the paper
_STYLE_MEAN_DECAY = 0.995
_PATH_LENGTH_DECAY = 0.99


def stylegan2_generator(
    *, image_size: int, channels: int, nf: int, latent_size: int, mapping_layers: int = 8
) -> "StyleGAN2Generator":
    """The generator, built; see StyleGAN2Generator."""
    check_size(image_size, "StyleGAN2")
    generator = StyleGAN2Generator(image_size, channels, nf, latent_size, mapping_layers, name="generator")
    generator.build([(1, 2, latent_size), (1,), (1, noise_numbers(image_size))])
    return generator


def stylegan2_discriminator(*, image_size: int, channels: int, nf: int, mbstd_group: int = 4) -> keras.Model:
    """Images to logits: residual blocks down to 4x4 pixels, each halving after a blur (section 4.1, figure 7c).

    Args:
        nf: channels at full size, doubled at each halving, up to 512.
        mbstd_group: number of samples in a group of MinibatchStddev.

    Returns:
        A model (B, image_size, image_size, channels) -> (B,) logits.
    """
    check_size(image_size, "StyleGAN2")
    images = keras.Input((image_size, image_size, channels), name="images")
    x = EqualisedConv(_width(image_size, image_size, nf), 1, name="from_image")(images)
    size = image_size
    while size > 4:
        narrow, wide = _width(size, image_size, nf), _width(size // 2, image_size, nf)
        skip = EqualisedConv(wide, 1, down=True, linear=True, gain=math.sqrt(0.5), name=f"block_{size}_skip")(x)
        x = EqualisedConv(narrow, 3, name=f"block_{size}_conv_1")(x)
        x = EqualisedConv(wide, 3, down=True, gain=math.sqrt(0.5), name=f"block_{size}_conv_2")(x)
        x = layers.Add(name=f"block_{size}")([x, skip])  # (B, size / 2, size / 2, wide), still of unit variance
        size //= 2
    widest = x.shape[-1]
    x = MinibatchStddev(mbstd_group, name="minibatch_stddev")(x)  # (B, 4, 4, widest + 1)
    x = EqualisedConv(widest, 3, name="block_4_conv")(x)
    x = EqualisedDense(widest, name="block_4_dense")(layers.Flatten(name="flatten")(x))
    x = EqualisedDense(1, linear=True, dtype="float32", name="to_logit")(x)
    return keras.Model(images, layers.Reshape((), dtype="float32", name="logits")(x), name="discriminator")


def style_count(image_size: int) -> int:
    """Number of styles of an image: one for each convolution, and one for the last to-image layer."""
    return 2 * int(math.log2(image_size)) - 2


def noise_numbers(image_size: int) -> int:
    """Length of an image's noise: one map for each convolution."""
    return sum(size * size for size in _noise_sizes(image_size))


@register
class StyleGAN2Generator(keras.Model):
    """Mapping network and synthesis with skips (section 2, figure 2d; section 4.1, figure 7b).

    Call it with [latents, crossover, noise]:
        latents: (B, 1 or 2, latent_size) standard normal, one or two latents per image.
        crossover: (B,) number of the style_count(image_size) styles that come from the first latent; the others come
            from the second.
        noise: (B, noise_numbers(image_size)) standard normal, cut into the maps of the layers.
    Keywords:
        truncation: factor of the styles' distance from their mean, from 0 to 1; used only if training is False.
        directions: (B, image_size, image_size, channels) or None; if given, the result is the path-length penalty.

    Returns images (B, image_size, image_size, channels), about [-1, 1]; or penalties, (B,). Always float32.

    Args:
        image_size: height and width of an image in pixels, a power of two.
        channels: number of channels of an image.
        nf: channels at full size, doubled at each halving, up to 512.
        latent_size: length of a latent and of a style.
        mapping_layers: number of layers of the mapping network.
    """

    def __init__(
        self, image_size: int, channels: int, nf: int, latent_size: int, mapping_layers: int, **keywords: Any
    ) -> None:
        # float32, so that Keras does not round the latents; the layers have the dtype of the policy.
        super().__init__(**{**keywords, "dtype": "float32"})
        self._arguments = {"image_size": image_size, "channels": channels, "nf": nf, "latent_size": latent_size}
        self._arguments["mapping_layers"] = mapping_layers
        self.image_size = image_size
        self.mapping = [
            EqualisedDense(latent_size, lr_multiplier=0.01, dtype="float32", name=f"mapping_{number + 1}")
            for number in range(mapping_layers)
        ]
        self.convolutions, self.to_image = [], []
        for number, size in enumerate(_noise_sizes(image_size)):
            up = number % 2 == 1
            name = f"conv_{size}_{1 if up else 2}"
            self.convolutions.append(StyledConv(_width(size, image_size, nf), up=up, name=name))
            if not up:
                self.to_image.append(ToImage(channels, name=f"to_image_{size}"))

    def build(self, input_shape: Any) -> None:
        style = input_shape[0][-1:]
        for layer in self.mapping:
            layer.build(style)
        shape = (4, 4, self.convolutions[0].filters)
        self.start = self.add_weight((1, *shape), initializer=unit_normal(), name="start")
        for number, layer in enumerate(self.convolutions):
            layer.build((None, *shape), style)
            size = shape[0] * (2 if layer.up else 1)
            shape = (size, size, layer.filters)
            if not layer.up:
                self.to_image[number // 2].build((None, *shape), style)
        of_samples = {"initializer": "zeros", "trainable": False, "aggregation": "mean"}
        # No loss reads it, so each rank has its own, and the mean is taken when samples are drawn.
        self.style_mean = keras.Variable(shape=style, name="style_mean", synchronization="on_read", **of_samples)
        self.path_length = self.add_weight((), name="path_length", **of_samples)

    def call(
        self,
        inputs: Any,
        training: bool = False,
        truncation: "float | tf.Tensor" = 1.0,
        directions: tf.Tensor | None = None,
    ) -> tf.Tensor:
        latents, crossover, noise = inputs
        latents = tf.cast(latents, tf.float32)
        x = latents * tf.math.rsqrt(tf.reduce_mean(tf.square(latents), axis=-1, keepdims=True) + 1e-8)
        for layer in self.mapping:
            x = layer(x)  # (B, 1 or 2, latent_size)
        if training:
            mean = tf.reduce_mean(x[:, 0], axis=0)
            self.style_mean.assign(self.style_mean + (1.0 - _STYLE_MEAN_DECAY) * (mean - self.style_mean))
        else:
            x = self.style_mean + truncation * (x - self.style_mean)
        first = tf.range(style_count(self.image_size), dtype=tf.float32) < tf.cast(crossover, tf.float32)[:, None]
        styles = tf.where(first[..., None], x[:, :1], x[:, -1:])  # (B, style_count, latent_size)
        if directions is None:
            return self.synthesise(styles, noise)
        return self._path_length_penalty(styles, noise, directions, training)

    def synthesise(self, styles: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
        sizes = _noise_sizes(self.image_size)
        maps = tf.split(noise, [size * size for size in sizes], axis=1)
        x = tf.tile(self.start, [tf.shape(styles)[0], 1, 1, 1])  # (B, 4, 4, widest)
        images = None
        for number, (layer, size) in enumerate(zip(self.convolutions, sizes, strict=True)):
            x = layer(x, styles[:, number], tf.reshape(maps[number], (-1, size, size, 1)))
            if number % 2 == 0:
                # The to-image layer shares its style with the next convolution, which comes after it.
                image = self.to_image[number // 2](x, styles[:, number + 1])
                images = image if images is None else upsample(images) + image
        return images

    def _path_length_penalty(
        self, styles: tf.Tensor, noise: tf.Tensor, directions: tf.Tensor, training: bool
    ) -> tf.Tensor:
        """Equation 4, with y scaled so that the lengths do not depend on the number of pixels."""
        with tf.GradientTape() as tape:
            tape.watch(styles)
            images = self.synthesise(styles, noise)
            projected = tf.reduce_sum(images * directions) / self.image_size
        gradients = tape.gradient(projected, styles)
        lengths = tf.sqrt(tf.reduce_mean(tf.reduce_sum(tf.square(gradients), axis=2), axis=1) + 1e-8)
        mean = tf.convert_to_tensor(self.path_length)
        if training:
            now = tf.stop_gradient(tf.reduce_mean(lengths))
            mean = self.path_length.assign(mean + (1.0 - _PATH_LENGTH_DECAY) * (now - mean))  # that of all ranks
        # The biases of the to-image layers do not affect a length; adding 0 * images gives them a gradient of 0.
        return tf.square(lengths - mean) + 0.0 * tf.reduce_sum(images, axis=(1, 2, 3))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self._arguments}


@register
class StyledConv(layers.Layer):
    """Modulated 3x3 convolution, noise of learned strength, bias, leaky ReLU (figure 2d)."""

    def __init__(self, filters: int, *, up: bool = False, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.filters, self.up = filters, up

    def build(self, x_shape: Any, style_shape: Any, noise_shape: Any = None) -> None:
        width = x_shape[-1]
        self.style = EqualisedDense(width, bias=1.0, linear=True, dtype="float32", name="style")
        self.style.build(style_shape)
        self.kernel = self.add_weight((3, 3, width, self.filters), initializer=unit_normal(), name="kernel")
        self.bias = self.add_weight((self.filters,), initializer="zeros", name="bias")
        self.noise_strength = self.add_weight((), initializer="zeros", name="noise_strength")

    def call(self, x: tf.Tensor, style: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
        x = modulated_convolution(x, equalised(self.kernel), self.style(style), up=self.up)
        x += tf.cast(noise, x.dtype) * self.noise_strength + self.bias
        return leaky_relu(x)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "filters": self.filters, "up": self.up}


@register
class ToImage(layers.Layer):
    """Modulated 1x1 convolution to the image's channels, float32; not demodulated (section 4.1)."""

    def __init__(self, channels: int, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.channels = channels

    def build(self, x_shape: Any, style_shape: Any) -> None:
        width = x_shape[-1]
        self.style = EqualisedDense(width, bias=1.0, linear=True, dtype="float32", name="style")
        self.style.build(style_shape)
        self.kernel = self.add_weight((1, 1, width, self.channels), initializer=unit_normal(), name="kernel")
        self.bias = self.add_weight((self.channels,), initializer="zeros", name="bias", autocast=False)

    def call(self, x: tf.Tensor, style: tf.Tensor) -> tf.Tensor:
        x = modulated_convolution(x, equalised(self.kernel), self.style(style), demodulate=False)
        return tf.cast(x, tf.float32) + self.bias

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "channels": self.channels}


def modulated_convolution(
    x: tf.Tensor, kernel: tf.Tensor, scales: tf.Tensor, *, up: bool = False, demodulate: bool = True
) -> tf.Tensor:
    """Convolve x (B, H, W, C) with a kernel (k, k, C, F) whose inputs each sample's style scales, (B, C) float32.

    Since a convolution is linear, the inputs are scaled instead of the weights: one convolution serves the whole batch.
    To demodulate is to divide each output by the norm of its weights. `up` doubles H and W and blurs.

    Reference: Karras et al. 2020, equations 1 and 3, and the last paragraph of section 2.2.
    """
    x *= tf.cast(scales, x.dtype)[:, None, None]
    x = doubled(x, kernel) if up else tf.nn.conv2d(x, kernel, 1, "SAME")
    if demodulate:
        squares = tf.reduce_sum(tf.square(tf.cast(kernel, tf.float32)), axis=(0, 1))  # (C, F)
        demodulation = tf.math.rsqrt(tf.matmul(tf.square(tf.cast(scales, tf.float32)), squares) + 1e-8)
        x *= tf.cast(demodulation, x.dtype)[:, None, None]
    return x


def upsample(images: tf.Tensor) -> tf.Tensor:
    """Double height and width with the filter (1, 3, 3, 1) / 4: pixels are 3/4 their nearest and 1/4 the next."""
    return doubled(images, tf.eye(images.shape[-1])[None, None])


def _noise_sizes(image_size: int) -> list[int]:
    """The size of each convolution's output: 4, 8, 8, 16, 16, and so on."""
    doubled = [2**power for power in range(3, int(math.log2(image_size)) + 1)]
    return [4] + [size for size in doubled for _ in range(2)]


def _width(size: int, image_size: int, nf: int) -> int:
    """Number of channels at `size` pixels."""
    return min(nf * image_size // size, _WIDEST)
