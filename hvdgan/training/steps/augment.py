"""Augmentations as functions of (seed, step, sample): flips of the data, and changes that gradients flow through."""

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
        random: source of the draws, one per image.
    """
    return tf.where(random.uniform("flip", (1, 1, 1)) < 0.5, images, tf.reverse(images, axis=[2]))


def diff_augment(images: tf.Tensor, kinds: Sequence[Kind], random: Random, key: str) -> tf.Tensor:
    """Augment the images that a discriminator sees; gradients flow through.

    Args:
        images: (B, H, W, C) in [-1, 1].
        kinds: augmentations to apply, always in the order colour, translation, cutout.
        random: source of the draws.
        key: name of the draws; each key has its own numbers.

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
    """Shift by whole pixels, and fill with 0."""
    for axis in (1, 2):
        size = images.shape[axis]
        most = int(size * _SHIFT + 0.5)
        shift = _whole(draws[:, axis - 1], 2 * most + 1) - most
        places = tf.range(size)[None] + shift[:, None]  # (B, size): row or column that moves to each place
        inside = tf.cast((places >= 0) & (places < size), images.dtype)
        images = tf.gather(images, tf.clip_by_value(places, 0, size - 1), axis=axis, batch_dims=1)
        images *= inside[:, :, None, None] if axis == 1 else inside[:, None, :, None]
    return images


def _cut_out(images: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    """Set a square to 0, a part of which may lie outside the image."""
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
    """Turn numbers in [0, 1) into integers in [0, below)."""
    return tf.cast(draws * below, tf.int32)
