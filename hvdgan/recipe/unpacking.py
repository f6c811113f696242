"""Divides records of the data into samples, inputs and constants, cuts out the part that networks see, and maps it."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from hvdgan.recipe.data_spec import KERAS, DataSpec
from hvdgan.recipe.draws import Random
from hvdgan.values.sample_values import Layout, may_be_pictures
from hvdgan.values.value_map import ValueMap


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
    """Divide records into their parts, crop them, and map their numbers to those that networks see.

    Args:
        records: (B, *record shape): uint8 pictures, whose 0 to 255 become [-1, 1]; float32, which stay as they are,
            because they have been mapped; or arrays of another type as they are stored, which the maps of `spec` apply
            to.
        spec: facts about the data.
        random: source of the places of --crop, one per sample; None: the centre.
    """
    layout = spec.parts
    inputs, images = layout.split(tf.cast(records, tf.float32), tf.reshape)
    fields = spec.constants
    if fields is None and spec.constants_shape is not None:
        # Without the data, the mask of missing numbers is known, and no other field.
        fields = spec.missing.field if spec.missing and spec.constants_shape[-1] == 1 else None
        if fields is None:
            raise ValueError("the constants of these data have not been read")
    constants = None if fields is None else tf.constant(fields[None], tf.float32)
    parts = Parts(images, inputs, constants)
    if layout.crop is not None:
        parts = _cropped(parts, layout, random)
    if records.dtype == tf.float32:
        return parts
    if records.dtype == tf.uint8 and may_be_pictures(layout.shape):
        return Parts(_scaled(parts.images), _scaled(parts.inputs), parts.constants)
    assert spec.values is not None, "the maps of these data are not known"
    images, inputs = _mapped(parts.images, spec.values.images), _mapped(parts.inputs, spec.values.inputs)
    return Parts(images, inputs, parts.constants)


def _scaled(pixels: tf.Tensor | None) -> tf.Tensor | None:
    return None if pixels is None else pixels / 127.5 - 1.0


def _mapped(numbers: tf.Tensor | None, value_map: ValueMap | None) -> tf.Tensor | None:
    if numbers is None or value_map is None:
        return numbers
    return value_map.forward_of(numbers, dataclasses.replace(KERAS, constant=_constant))


def _constant(values: Sequence[float], like: tf.Tensor) -> tf.Tensor:
    """An input of the graph, because TensorFlow divides by a constant with a product, which rounds otherwise."""
    with tf.init_scope():
        return tf.constant(values, like.dtype)


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
