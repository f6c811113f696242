"""The residual networks of SNGAN (Miyato et al. 2018), for any power-of-two image size from 32 to 256 pixels.

With classes: conditional BatchNorm in the generator and a projection discriminator (Miyato and Koyama 2018).
"""

from typing import Any

import keras
from keras import layers, ops

from hvdgan.networks import check_size
from hvdgan.networks.spectral import SpectralConv2D, SpectralDense, SpectralEmbedding

_MOST_WIDENING = 16  # widest layer / nf


@keras.saving.register_keras_serializable("hvdgan")
class ConditionalBatchNormalization(layers.Layer):
    """BatchNorm whose scale and offset depend on the class: images (B, H, W, C) and classes (B,) to (B, H, W, C).

    Args:
        num_classes: number of classes.

    Reference: Dumoulin et al. 2017 (arXiv:1610.07629), equation 5, with the statistics of the batch.
    """

    def __init__(self, num_classes: int, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.num_classes = num_classes
        self.norm = layers.BatchNormalization(
            momentum=0.9, epsilon=1e-5, center=False, scale=False, dtype=self.dtype_policy, name="norm"
        )

    def build(self, input_shape: list[tuple[int | None, ...]]) -> None:
        images, _ = input_shape
        self.norm.build(images)
        shape = (self.num_classes, int(images[-1] or 0))
        self.gamma = self.add_weight(name="gamma", shape=shape, initializer="ones")
        self.beta = self.add_weight(name="beta", shape=shape, initializer="zeros")

    def call(self, inputs: list[Any], training: bool = False) -> Any:
        images, classes = inputs
        # A matrix product instead of a lookup, whose gradient would be sparse; the ranks exchange dense ones.
        chosen = ops.one_hot(classes, self.num_classes, dtype=self.compute_dtype)
        gamma, beta = ops.matmul(chosen, self.gamma), ops.matmul(chosen, self.beta)
        return self.norm(images, training=training) * gamma[:, None, None] + beta[:, None, None]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_classes": self.num_classes}


def sngan_generator(*, image_size: int, channels: int, latent_size: int, nf: int, num_classes: int = 0) -> keras.Model:
    """Latents to images by residual blocks, each of which doubles the size; tables 4 (32 pixels) and 6 (128 pixels).

    Args:
        latent_size: length of a latent vector.
        nf: width of the networks; 64 in the paper.
        num_classes: number of classes; 0: the images have none.

    Returns:
        A model (B, latent_size) -> (B, image_size, image_size, channels) in [-1, 1]; with classes its input is
        [(B, latent_size), (B,) int32].
    """
    widths = _generator_widths(image_size, nf)
    latents = keras.Input((latent_size,), name="latents")
    classes = keras.Input((), dtype="int32", name="classes") if num_classes else None

    def norm_relu(x: keras.KerasTensor, name: str) -> keras.KerasTensor:
        if classes is None:
            x = layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=name)(x)
        else:
            x = ConditionalBatchNormalization(num_classes, name=name)([x, classes])
        return layers.ReLU(name=f"{name}_relu")(x)

    def up(x: keras.KerasTensor, width: int, name: str) -> keras.KerasTensor:
        # The 1x1 convolution gives the same before the enlargement as after it, at a quarter of the cost.
        shortcut = _enlarge(_conv(x, width, 1, f"{name}_shortcut"), f"{name}_shortcut_up")
        x = _enlarge(norm_relu(x, f"{name}_norm_1"), f"{name}_up")
        x = _conv(x, width, 3, f"{name}_conv_1")
        x = _conv(norm_relu(x, f"{name}_norm_2"), width, 3, f"{name}_conv_2")
        return layers.Add(name=name)([shortcut, x])  # (B, 2H, 2W, width)

    x = layers.Dense(16 * widths[0], kernel_initializer=_weights(1.0), name="from_latents")(latents)
    x = layers.Reshape((4, 4, widths[0]), name="block_4")(x)
    for number, width in enumerate(widths[1:]):
        x = up(x, width, f"block_{8 << number}")
    x = layers.Conv2D(channels, 3, padding="same", kernel_initializer=_weights(1.0), name="to_image")(
        norm_relu(x, "to_image_norm")
    )
    images = layers.Activation("tanh", dtype="float32", name="images")(x)
    return keras.Model(latents if classes is None else [latents, classes], images, name="generator")


def sngan_discriminator(*, image_size: int, channels: int, nf: int, num_classes: int = 0) -> keras.Model:
    """Images to logits by residual blocks, every weight under spectral normalisation; tables 4 and 6.

    With classes the logit is psi(phi(x)) + e_y . phi(x) with the pooled features phi(x) and the vector e_y of class y.

    Args:
        nf: width of the networks; 64 in the paper.
        num_classes: number of classes; 0: the images have none.

    Returns:
        A model (B, image_size, image_size, channels) -> (B,) logits; with classes its input is [images, (B,) int32].

    Reference: Miyato and Koyama 2018 (arXiv:1802.05637), equation 3, for the projection.
    """
    images = keras.Input((image_size, image_size, channels), name="images")
    x = images
    blocks = _discriminator_blocks(image_size, nf)
    for number, (width, halve) in enumerate(blocks):
        x = _down(x, width, halve=halve, first=number == 0, name=f"block_{number + 1}")
    x = layers.ReLU(dtype="float32", name="features_relu")(x)
    features = ops.sum(x, axis=(1, 2))  # (B, width): the sum over all places, in float32
    logits = SpectralDense(1, dtype="float32", kernel_initializer=_weights(1.0), name="to_logit")(features)
    logits = layers.Reshape((), dtype="float32", name="logits")(logits)
    if not num_classes:
        return keras.Model(images, logits, name="discriminator")
    classes = keras.Input((), dtype="int32", name="classes")
    vectors = SpectralEmbedding(
        num_classes, blocks[-1][0], dtype="float32", kernel_initializer=_weights(1.0), name="class_vectors"
    )(classes)
    projection = layers.Dot(axes=1, dtype="float32", name="projection_dot")([vectors, features])  # (B, 1)
    projection = layers.Reshape((), dtype="float32", name="projection")(projection)
    logits = layers.Add(dtype="float32", name="conditional_logits")([logits, projection])
    return keras.Model([images, classes], logits, name="discriminator")


def _down(x: keras.KerasTensor, width: int, *, halve: bool, first: bool, name: str) -> keras.KerasTensor:
    """A residual block of the discriminator; the first has no ReLU before its convolution, which reads pixels."""
    shortcut = _halve(x, f"{name}_shortcut_down") if halve else x
    if halve or x.shape[-1] != width:
        # The 1x1 convolution gives the same after the averaging as before it, at a quarter of the cost.
        shortcut = _spectral_conv(shortcut, width, 1, f"{name}_shortcut")
    if not first:
        x = layers.ReLU(name=f"{name}_relu_1")(x)
    x = _spectral_conv(x, width, 3, f"{name}_conv_1")
    x = _spectral_conv(layers.ReLU(name=f"{name}_relu_2")(x), width, 3, f"{name}_conv_2")
    if halve:
        x = _halve(x, f"{name}_down")
    return layers.Add(name=name)([shortcut, x])


def _generator_widths(image_size: int, nf: int) -> list[int]:
    """Widths at 4, 8, ... image_size pixels."""
    check_size(image_size, "SNGAN")
    if image_size == 32:
        return [4 * nf] * 4  # table 4
    depths = range(image_size.bit_length() - 3, -1, -1)
    return [nf * min(2**depth, _MOST_WIDENING) for depth in depths]


def _discriminator_blocks(image_size: int, nf: int) -> list[tuple[int, bool]]:
    """For each block its width and whether it halves the size."""
    check_size(image_size, "SNGAN")
    if image_size == 32:
        return [(2 * nf, True), (2 * nf, True), (2 * nf, False), (2 * nf, False)]  # table 4
    widths = [nf * min(2**depth, _MOST_WIDENING) for depth in range(image_size.bit_length() - 3)]
    return [*((width, True) for width in widths), (widths[-1], False)]


def _enlarge(x: keras.KerasTensor, name: str) -> keras.KerasTensor:
    return layers.UpSampling2D(2, interpolation="nearest", name=name)(x)


def _halve(x: keras.KerasTensor, name: str) -> keras.KerasTensor:
    return layers.AveragePooling2D(2, name=name)(x)


def _conv(x: keras.KerasTensor, width: int, size: int, name: str) -> keras.KerasTensor:
    initializer = _weights(2.0 if size > 1 else 1.0)
    return layers.Conv2D(width, size, padding="same", kernel_initializer=initializer, name=name)(x)


def _spectral_conv(x: keras.KerasTensor, width: int, size: int, name: str) -> keras.KerasTensor:
    return SpectralConv2D(width, size, kernel_initializer=_weights(2.0 if size > 1 else 1.0), name=name)(x)


def _weights(scale: float) -> keras.initializers.Initializer:
    # One initializer per layer: it draws its seed when it is created, and layers with one seed have equal weights.
    return keras.initializers.VarianceScaling(scale, mode="fan_avg", distribution="uniform")
