"""Divides records of the data into samples, inputs and constants, and cuts out the part that networks see."""

from typing import NamedTuple

import tensorflow as tf

from hvdgan.recipe.draws import Random
from hvdgan.recipe.samples.data_spec import DataSpec
from hvdgan.values.sample_values import Layout


class Parts(NamedTuple):
    """The parts of B samples, as networks see them.

    images: samples, (B, ..., C) float32.
    inputs: their inputs, (B, ..., C) float32, or None.
    constants: fields that all samples share, (1, ..., K) or (B, ..., K) float32, or None.
    """

    images: tf.Tensor
    inputs: tf.Tensor | None = None
    constants: tf.Tensor | None = None


def unpack(records: tf.Tensor, spec: DataSpec, random: Random | None = None) -> Parts:
    """Divide records into their parts.

    Args:
        records: (B, *record shape): uint8 pixels 0 to 255, which become [-1, 1], or float32, which stay as they are.
        spec: facts about the data.
        random: source of the places of --crop, one per sample; None: the centre.
    """
    numbers = tf.cast(records, tf.float32) / 127.5 - 1.0 if records.dtype == tf.uint8 else records
    layout = spec.parts
    inputs, images = layout.split(numbers, tf.reshape)
    constants = None if spec.constants is None else tf.constant(spec.constants[None], tf.float32)
    if constants is None and spec.constants_shape is not None:
        raise ValueError("the constants of these data have not been read")
    parts = Parts(images, inputs, constants)
    return parts if layout.crop is None else _cropped(parts, layout, random)


def _cropped(parts: Parts, layout: Layout, random: Random | None) -> Parts:
    assert layout.crop is not None
    count = parts.images.shape[0]
    images, inputs, constants = parts
    if constants is not None:
        constants = tf.repeat(constants, count, axis=0)
    for axis, (length, size, factor) in enumerate(zip(layout.crop, layout.shape, layout.factors, strict=False), 1):
        # Places are counted in pixels of the input, so that sample and input show the same region.
        possible = (size - length) // factor + 1
        if random is None:
            first = tf.fill((count,), tf.constant((possible - 1) // 2, tf.int64))
        else:
            first = tf.cast(random.integers(f"crop/{axis}", (), possible), tf.int64)  # GPUs add no int32
        images = _cut(images, axis, first * factor, length)
        if inputs is not None:
            inputs = _cut(inputs, axis, first, length // factor)
        if constants is not None:
            constants = _cut(constants, axis, first * factor, length)
    return Parts(images, inputs, constants)


def _cut(numbers: tf.Tensor, axis: int, first: tf.Tensor, length: int) -> tf.Tensor:
    """The part of each sample that begins at its own place along an axis."""
    return tf.gather(numbers, first[:, None] + tf.range(length, dtype=tf.int64)[None], axis=axis, batch_dims=1)
