"""Augmentations as functions of (seed, step, sample): flips of the data, and changes that gradients flow through."""

import functools
from collections.abc import Mapping, Sequence

import tensorflow as tf

from hvdgan.errors import UserError
from hvdgan.recipe.batch import Batch, Domain, Parts
from hvdgan.recipe.data_spec import ArraysByName
from hvdgan.recipe.draws import Random
from hvdgan.settings.types import Kind

_SHIFT = 0.125  # of the image's side, at most
_CUT = 0.5  # of the image's side
AXES = {"width": -2, "height": -3, "depth": -4}
"""axes of a sample (B, D, H, W, C) or (B, H, W, C) by their names"""


def flip(parts: Parts, axes: Sequence[str], random: Random) -> Parts:
    """Mirror half of the samples along each axis, together with their inputs, constants, and arrays that are fields."""
    for axis in axes:
        draws = random.uniform("flip" if axis == "width" else f"flip/{axis}", ())
        parts = parts.changed(functools.partial(_mirrored, axis=AXES[axis], stays=draws < 0.5))
    return parts


def flip_batch(batch: Batch, axes: Sequence[str], random: Random) -> None:
    """Mirror half of the samples of a batch, of each domain with draws of its own."""
    sample = Parts(batch.images, batch.inputs, batch.constants, batch.arrays)
    batch.images, batch.inputs, batch.constants, arrays = flip(sample, axes, random)
    batch.arrays = ArraysByName(arrays)
    for place, (name, each) in enumerate(batch.domains.items()):
        images = flip(Parts(each.images), axes, random.scoped(name)).images if place else batch.images
        batch.domains[name] = Domain(images, each.labels, each.conditions)


def check_flips(axes: Sequence[str], flag: str, shape: Sequence[int], others: Mapping[str, Sequence[int]]) -> None:
    """Refuse flips along axes, which a flag names, that samples of this shape, or its other arrays, do not have.

    Arrays that are vectors have no axes in space, and stay.
    """
    names = list(AXES)[: len(shape) - 1]
    for axis in axes:
        if axis not in names:
            there = f"the axes {', '.join(names)}" if names else "no axes in space"
            raise UserError(f"{flag}: no axis {axis} in samples of shape {tuple(shape)}, which have {there}")
    for name, other in others.items() if axes else ():
        if len(other) != len(shape) and (name == "inputs" or len(other) > 1):
            raise UserError(
                f"{flag}: mirrors {name} along the axes of the samples, and {name} of shape {tuple(other)} has other "
                f"axes than samples of shape {tuple(shape)}; leave the flag out"
            )


def check_augmentations(kinds: Sequence[Kind], shape: Sequence[int]) -> None:
    """Refuse augmentations that samples of this shape cannot have."""
    if len(shape) == 1 and (moved := [kind for kind in kinds if kind != "color"]):
        raise UserError(f"--diff-augment {moved[0]}: moves samples in space, and these are vectors {tuple(shape)}")


def _mirrored(numbers: tf.Tensor, axis: int, stays: tf.Tensor) -> tf.Tensor:
    rank = numbers.shape.rank
    return tf.where(tf.reshape(stays, (-1, *[1] * (rank - 1))), numbers, tf.reverse(numbers, axis=[rank + axis]))


def diff_augment(images: tf.Tensor, kinds: Sequence[Kind], random: Random, key: str) -> tf.Tensor:
    """Augment images (B, ..., C) as a discriminator sees them; gradients flow through. A key has draws of its own.

    Reference: Zhao et al. 2020, "Differentiable augmentation for data-efficient GAN training", section 4.
    """
    space = images.shape.rank - 2
    if "color" in kinds:
        images = _color(images, random.uniform(f"{key}/color", (3,)))
    if "translation" in kinds:
        images = _translate(images, random.uniform(f"{key}/translation", (space,)))
    if "cutout" in kinds:
        images = _cut_out(images, random.uniform(f"{key}/cutout", (space,)))
    return images


def _color(images: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    """Brightness by up to 0.5, saturation by a factor up to 2 (of the colours alone), contrast by 0.5 to 1.5."""
    axes = list(range(1, images.shape.rank))
    brightness, saturation, contrast = (tf.reshape(draw, (-1, *[1] * len(axes))) for draw in tf.unstack(draws, axis=1))
    images = images + brightness - 0.5
    if images.shape[-1] > 1:
        grey = tf.reduce_mean(images, axis=-1, keepdims=True)
        images = grey + (images - grey) * saturation * 2.0
    mean = tf.reduce_mean(images, axis=axes, keepdims=True)
    return mean + (images - mean) * (contrast + 0.5)


def _translate(images: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    """Shift by whole pixels along each axis in space, and fill with 0."""
    for axis in range(1, images.shape.rank - 1):
        size = images.shape[axis]
        most = int(size * _SHIFT + 0.5)
        shift = _whole(draws[:, axis - 1], 2 * most + 1) - most
        places = tf.range(size, dtype=tf.int64)[None] + shift[:, None]  # (B, size): the place that moves to each place
        inside = tf.cast((places >= 0) & (places < size), images.dtype)
        images = tf.gather(images, tf.clip_by_value(places, 0, size - 1), axis=axis, batch_dims=1)
        images *= _along(inside, axis, images.shape.rank)
    return images


def _cut_out(images: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    """Set a square or a box to 0, a part of which may lie outside the image."""
    hole = tf.ones((1,) * images.shape.rank, tf.bool)
    for axis in range(1, images.shape.rank - 1):
        size = images.shape[axis]
        cut = int(size * _CUT + 0.5)
        first = _whole(draws[:, axis - 1], size + 1 - cut % 2) - cut // 2
        places = tf.range(size, dtype=tf.int64)[None]
        covered = (places >= first[:, None]) & (places < first[:, None] + cut)
        hole &= _along(covered, axis, images.shape.rank)
    return images * tf.cast(~hole, images.dtype)


def _along(values: tf.Tensor, axis: int, rank: int) -> tf.Tensor:
    """Values (B, size) in the shape of images (B, ..., C) with `size` on one axis and 1 on all others."""
    return tf.reshape(values, (-1, *[values.shape[1] if place == axis else 1 for place in range(1, rank)]))


def _whole(draws: tf.Tensor, below: int) -> tf.Tensor:
    """Turn numbers in [0, 1) into integers in [0, below), of a type that GPUs compute with."""
    return tf.cast(draws * below, tf.int64)
