"""Rebuilds networks from standard Keras layers, which compute the same at inference, for programs without hvdgan."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from hvdgan.networks.devices.blurring import blurred
from hvdgan.networks.equalised import EqualisedConv, EqualisedDense, MinibatchStddev, equalised
from hvdgan.networks.sngan import ConditionalBatchNormalization
from hvdgan.networks.spectral import Spectral, SpectralConv2D, SpectralDense, SpectralEmbedding
from hvdgan.networks.stylegan2 import StyledConv, StyleGAN2Generator, ToImage

_RELU_GAIN = math.sqrt(
    2.0
)  # gain of equalised.leaky_relu; it commutes with a leaky ReLU, so it is folded into the weights

Call = Callable[..., Any]


def plain(network: keras.Model) -> keras.Model:
    """Replace the layers of hvdgan in a network by standard layers of Keras, in inference mode.

    Args:
        network: built network; its standard layers are shared with the result.

    Returns:
        A functional model with the same inputs and outputs. A recipe's own layers stay in it, see foreign(), and a
        recipe's own subclass of keras.Model is returned unchanged.
    """
    if type(network) is StyleGAN2Generator:
        return _stylegan2(network)
    if not _is_standard(network):
        return network
    calls: dict[int, Call] = {}

    def call(operation: keras.Operation, *arguments: Any, **keywords: Any) -> Any:
        if id(operation) not in calls:
            calls[id(operation)] = _translated(operation)
        translated = calls[id(operation)]
        if translated is not operation:
            keywords.pop("training", None)
        return translated(*arguments, **keywords)

    if isinstance(network, keras.Sequential):
        x = inputs = keras.Input(
            batch_shape=network.inputs[0].shape, dtype=network.inputs[0].dtype, name=network.inputs[0].name
        )
        for layer in network.layers:
            x = call(layer, x)
        return keras.Model(inputs, x, name=network.name)
    return keras.models.clone_model(network, clone_function=lambda operation: operation, call_function=call)


def foreign(network: keras.Model) -> str | None:
    """The first part of a network that Keras alone could not load, and what it is, or None."""
    if not _is_standard(network):
        return f"network {network.name} ({type(network).__name__}) is a class of the recipe"
    for operation in network.operations:
        if isinstance(operation, keras.Model):
            if found := foreign(operation):
                return found
        elif not _is_standard(operation):
            return f"layer {operation.name} ({type(operation).__name__}) is a class of the recipe"
        elif isinstance(operation, layers.Lambda) or _names_foreign(keras.saving.serialize_keras_object(operation)):
            return f"layer {operation.name} ({type(operation).__name__}) holds a Python function"
    return None


def _is_standard(operation: Any) -> bool:
    return type(operation).__module__.split(".")[0] == "keras"


def _names_foreign(config: Any) -> bool:
    """Whether a serialised object contains an object that is not Keras' own, such as a Python activation."""
    if isinstance(config, list | tuple):
        return any(_names_foreign(value) for value in config)
    if not isinstance(config, Mapping):
        return False
    own = str(config.get("module") or "keras").split(".")[0] == "keras" and ">" not in str(
        config.get("registered_name")
    )
    is_object = "class_name" in config and "config" in config
    return (is_object and not own) or any(_names_foreign(value) for value in config.values())


def _translated(operation: keras.Operation) -> Call:
    """The function to call instead of an operation: the operation itself if it needs no translation."""
    if isinstance(operation, keras.Model):
        return plain(operation)
    translation = _TRANSLATIONS.get(type(operation))
    return operation if translation is None else translation(operation)


def _spectral_conv(layer: SpectralConv2D) -> Call:
    return _conv(layer.name, _normalised(layer), _numpy(layer.bias))


def _spectral_dense(layer: SpectralDense) -> Call:
    return _dense(layer.name, _normalised(layer), _numpy(layer.bias))


def _spectral_embedding(layer: SpectralEmbedding) -> Call:
    return _embedding(layer.name, _normalised(layer))


def _normalised(layer: Spectral) -> np.ndarray:
    return _numpy(layer.normalised_kernel(training=False))


def _conditional_norm(layer: ConditionalBatchNormalization) -> Call:
    norm = layers.BatchNormalization(epsilon=layer.norm.epsilon, center=False, scale=False, name=f"{layer.name}_norm")
    mean, variance = _numpy(layer.norm.moving_mean), _numpy(layer.norm.moving_variance)
    norm.build((None, None, None, len(mean)))
    norm.set_weights([mean, variance])
    gamma = _embedding(f"{layer.name}_gamma", _numpy(layer.gamma))
    beta = _embedding(f"{layer.name}_beta", _numpy(layer.beta))

    multiply, add = layers.Multiply(name=f"{layer.name}_scaled"), layers.Add(name=layer.name)

    def call(inputs: Any) -> Any:
        images, classes = inputs
        return add([multiply([norm(images), _over_pixels(gamma(classes))]), _over_pixels(beta(classes))])

    return call


def _equalised_dense(layer: EqualisedDense, name: str = "") -> Call:
    gain = 1.0 if layer.linear else _RELU_GAIN
    kernel = _numpy(equalised(layer.kernel, layer.lr_multiplier)) * gain
    dense = _dense(name or layer.name, kernel, _numpy(layer.bias) * (layer.lr_multiplier * gain))
    return dense if layer.linear else _with_leaky_relu(dense)


def _equalised_conv(layer: EqualisedConv) -> Call:
    gain = layer.gain * (1.0 if layer.linear else _RELU_GAIN)
    kernel = equalised(layer.kernel, gain)
    bias = None if layer.linear else _numpy(layer.bias) * gain
    strides = 2 if layer.down else 1
    conv = _conv(layer.name, _numpy(blurred(kernel) if layer.down else kernel), bias, strides=strides)
    return conv if layer.linear else _with_leaky_relu(conv)


def _minibatch_stddev(layer: MinibatchStddev) -> Call:
    """Average over groups by a matrix (B, B), since standard operations cannot read the batch size."""
    concatenate = layers.Concatenate(name=layer.name)

    def call(x: Any) -> Any:
        ones = ops.ones_like(x[:, 0, 0, 0])
        batch, places = ops.sum(ones), ops.cumsum(ones) - 1.0
        group = ops.ones_like(batch)
        for size in range(2, layer.group + 1):
            group = ops.where(ops.equal(ops.mod(batch, float(size)), 0.0), float(size), group)
        numbers = ops.floor(
            (places + 0.5) / group
        )  # (B,): number of the group; adding 0.5 avoids rounding errors of the division
        same = ops.cast(ops.equal(ops.expand_dims(numbers, 1), ops.expand_dims(numbers, 0)), "float32") / group
        flat = ops.reshape(x, (-1, math.prod(x.shape[1:])))
        variance = ops.matmul(same, ops.square(flat - ops.matmul(same, flat)))
        deviation = ops.mean(ops.sqrt(variance + 1e-8), axis=1)  # (B,)
        seen = ops.ones_like(x[..., :1]) * ops.reshape(deviation, (-1, 1, 1, 1))
        return concatenate([x, seen])

    return call


_TRANSLATIONS: dict[type, Callable[[Any], Call]] = {
    SpectralConv2D: _spectral_conv,
    SpectralDense: _spectral_dense,
    SpectralEmbedding: _spectral_embedding,
    ConditionalBatchNormalization: _conditional_norm,
    EqualisedDense: _equalised_dense,
    EqualisedConv: _equalised_conv,
    MinibatchStddev: _minibatch_stddev,
}


def _stylegan2(generator: StyleGAN2Generator) -> keras.Model:
    """The generator without truncation: [latents (B, 1 or 2, n), crossover (B,), noise (B, numbers)] to images."""
    sizes = [4]
    for layer in generator.convolutions[1:]:
        sizes.append(sizes[-1] * (2 if layer.up else 1))
    latents = keras.Input((None, generator.style_mean.shape[0]), name="latents")
    crossover = keras.Input((), name="crossover")
    noise = keras.Input((sum(size * size for size in sizes),), name="noise")
    styles = latents * ops.rsqrt(ops.mean(ops.square(latents), axis=-1, keepdims=True) + 1e-8)
    for layer in generator.mapping:
        styles = _equalised_dense(layer)(styles)  # (B, 1 or 2, n)

    def style(number: int) -> Any:
        is_first = ops.expand_dims(ops.greater(crossover, float(number)), 1)
        return ops.where(is_first, styles[:, 0], styles[:, -1])

    start = _numpy(generator.start)
    nothing = ops.cast(ops.zeros_like(crossover), "int32")  # (B,): all images start from the same vector
    x = _embedding("start", start.reshape(1, -1))(nothing)
    x, images, begin = layers.Reshape(start.shape[1:], name="start_4")(x), None, 0
    for number, (layer, size) in enumerate(zip(generator.convolutions, sizes, strict=True)):
        noise_map = layers.Reshape((size, size, 1), name=f"noise_{number + 1}")(noise[:, begin : begin + size * size])
        begin += size * size
        x = _styled_conv(layer, x, style(number), noise_map)
        if not layer.up:
            image = _to_image(generator.to_image[number // 2], x, style(number + 1))
            if images is not None:
                image = layers.Add(name=f"images_{size}")([_enlarged(images, size), image])
            images = image
    return keras.Model([latents, crossover, noise], images, name=generator.name)


def _styled_conv(layer: StyledConv, x: Any, style: Any, noise: Any) -> Any:
    kernel = equalised(layer.kernel)
    squares = np.square(_numpy(kernel), dtype=np.float64).sum(axis=(0, 1)).astype(np.float32)  # (C, F)
    scales = _equalised_dense(layer.style, f"{layer.name}_style")(style)
    x = layers.Multiply(name=f"{layer.name}_modulated")([x, _over_pixels(scales)])
    if layer.up:
        x = _transposed_conv(layer.name, 4.0 * _RELU_GAIN * _numpy(blurred(kernel)))(x)
    else:
        x = _conv(layer.name, _RELU_GAIN * _numpy(kernel))(x)
    epsilon = np.full(layer.filters, 1e-8, np.float32)
    norms = _dense(f"{layer.name}_squares", squares, epsilon)(ops.square(scales))
    x = layers.Multiply(name=f"{layer.name}_demodulated")([x, _over_pixels(ops.rsqrt(norms))])
    strength = np.full((1, 1, 1, layer.filters), _numpy(layer.noise_strength) * _RELU_GAIN, np.float32)
    noise = _conv(f"{layer.name}_noise", strength, _numpy(layer.bias) * _RELU_GAIN)(noise)
    return layers.LeakyReLU(0.2, name=f"{layer.name}_relu")(layers.Add(name=f"{layer.name}_sum")([x, noise]))


def _to_image(layer: ToImage, x: Any, style: Any) -> Any:
    scales = _equalised_dense(layer.style, f"{layer.name}_style")(style)
    x = layers.Multiply(name=f"{layer.name}_modulated")([x, _over_pixels(scales)])
    return _conv(layer.name, _numpy(equalised(layer.kernel)), _numpy(layer.bias))(x)


def _enlarged(images: Any, size: int) -> Any:
    unit = np.eye(images.shape[-1], dtype=np.float32)[None, None]
    return _transposed_conv(f"images_up_{size}", 4.0 * _numpy(blurred(ops.convert_to_tensor(unit))))(images)


def _dense(name: str, kernel: np.ndarray, bias: np.ndarray) -> layers.Layer:
    layer = layers.Dense(kernel.shape[1], name=name)
    layer.build((None, kernel.shape[0]))
    layer.set_weights([kernel, bias])
    return layer


def _embedding(name: str, vectors: np.ndarray) -> layers.Layer:
    layer = layers.Embedding(*vectors.shape, name=name)
    layer.build((None,))
    layer.set_weights([vectors])
    return layer


def _conv(name: str, kernel: np.ndarray, bias: np.ndarray | None = None, *, strides: int = 1) -> layers.Layer:
    size, _, width, filters = kernel.shape
    layer = layers.Conv2D(filters, size, strides=strides, padding="same", use_bias=bias is not None, name=name)
    layer.build((None, None, None, width))
    layer.set_weights([kernel] if bias is None else [kernel, bias])
    return layer


def _transposed_conv(name: str, kernel: np.ndarray) -> layers.Layer:
    """A layer that doubles height and width; the kernel is (k, k, C, F), as for a convolution."""
    size, _, width, filters = kernel.shape
    layer = layers.Conv2DTranspose(filters, size, strides=2, padding="same", use_bias=False, name=name)
    layer.build((None, None, None, width))
    layer.set_weights([kernel.transpose(0, 1, 3, 2)])
    return layer


def _with_leaky_relu(layer: layers.Layer) -> Call:
    relu = layers.LeakyReLU(0.2, name=f"{layer.name}_relu")
    return lambda x: relu(layer(x))


def _over_pixels(vectors: Any) -> Any:
    """(B, C) as (B, 1, 1, C)."""
    return ops.reshape(vectors, (-1, 1, 1, vectors.shape[-1]))


def _numpy(value: Any) -> np.ndarray:
    return ops.convert_to_numpy(value)
