"""Augmentation as functions of (seed, step, sample): flips of the data, and what the discriminator is shown."""

from collections.abc import Sequence

import tensorflow as tf

from hvdgan.cli.types import Kind
from hvdgan.recipe.draws import Random

_SHIFT = 0.125  # of the image's side, at most
_CUT = 0.5  # of the image's side


def flip(images: tf.Tensor, random: Random) -> tf.Tensor:
    """Mirror half of the images left to right.

    Args:
        images: (B, H, W, C).
        random: draws once per image.
    """
    return tf.where(random.uniform("flip", (1, 1, 1)) < 0.5, images, tf.reverse(images, axis=[2]))


def diff_augment(images: tf.Tensor, kinds: Sequence[Kind], random: Random, key: str) -> tf.Tensor:
    """Change images in ways that gradients flow through.

    Args:
        images: (B, H, W, C) in [-1, 1].
        kinds: which changes; they are made in the order colour, translation, cutout.
        random: draws some numbers per image.
        key: other numbers for each.

    Reference: Zhao et al. 2020, "Differentiable augmentation for data-efficient GAN training", section 4.
    """
    if "color" in kinds:
        images = _color(images, random.uniform(f"{key}/color", (3,)))
    if "translation" in kinds:
        images = _translate(images, random.uniform(f"{key}/translation", (2,)))
    if "cutout" in kinds:
        images = _cut_out(images, random.uniform(f"{key}/cutout", (2,)))
    return images


def _color(images: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    """Brightness by up to 0.5, saturation by a factor up to 2 (of the colours alone), contrast by 0.5 to 1.5."""
    brightness, saturation, contrast = tf.unstack(draws[:, :, None, None, None], axis=1)
    images = images + brightness - 0.5
    if images.shape[-1] > 1:
        grey = tf.reduce_mean(images, axis=3, keepdims=True)
        images = grey + (images - grey) * saturation * 2.0
    mean = tf.reduce_mean(images, axis=(1, 2, 3), keepdims=True)
    return mean + (images - mean) * (contrast + 0.5)


def _translate(images: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    """Shift by whole pixels; what comes in is 0."""
    for axis in (1, 2):
        size = images.shape[axis]
        most = int(size * _SHIFT + 0.5)
        shift = _whole(draws[:, axis - 1], 2 * most + 1) - most
        places = tf.range(size)[None] + shift[:, None]  # (B, size): which row or column comes here
        inside = tf.cast((places >= 0) & (places < size), images.dtype)
        images = tf.gather(images, tf.clip_by_value(places, 0, size - 1), axis=axis, batch_dims=1)
        images *= inside[:, :, None, None] if axis == 1 else inside[:, None, :, None]
    return images


def _cut_out(images: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    """Set a square to 0; a part of it may lie outside the image."""
    covered = []
    for axis in (1, 2):
        size = images.shape[axis]
        cut = int(size * _CUT + 0.5)
        first = _whole(draws[:, axis - 1], size + 1 - cut % 2) - cut // 2
        places = tf.range(size)[None]
        covered.append((places >= first[:, None]) & (places < first[:, None] + cut))
    hole = covered[0][:, :, None] & covered[1][:, None, :]
    return images * tf.cast(~hole, images.dtype)[..., None]


def _whole(draws: tf.Tensor, below: int) -> tf.Tensor:
    """Numbers in [0, 1) as whole ones in [0, below)."""
    return tf.cast(draws * below, tf.int32)
