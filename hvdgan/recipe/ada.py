"""Adaptive discriminator augmentation (Karras et al. 2020, arXiv:2006.06676): pictures changed with a probability p.

The transforms are those of the paper's pixel blitting, geometry and colour (appendix B). Pixels between pixels are
interpolated bilinearly, without the paper's oversampling by wavelets.
"""

import math
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from hvdgan.errors import UserError
from hvdgan.recipe.batch import State
from hvdgan.recipe.data_spec import DataSpec
from hvdgan.recipe.draws import Random
from hvdgan.recipe.stages import Update

METRIC = "real_sign"
"""metric of a loss: the mean sign of the discriminator's logits for augmented real pictures, r_t of equation 1"""
_PERIOD = 4  # steps between two changes of p, or more where no update that reports the metric is due
_SHIFT = 0.125  # of the picture's side


def adaptive(images: tf.Tensor, p: tf.Tensor, random: Random, key: str) -> tf.Tensor:
    """Change each picture, (B, H, W, 1 or 3), by each transform with probability p; gradients flow through."""
    return with_colors(with_places(images, p, random, f"{key}/ada"), p, random, f"{key}/ada")


def declared(data: DataSpec, others: Collection[str]) -> State:
    """The state of --ada: p, and since its last change the sum and the number of the signs, and the number of steps."""
    if not data.is_pictures:
        raise UserError(f"--ada: changes pictures, and samples of shape {tuple(data.shape)} are none; leave it out")
    if "ada" in others:
        raise UserError("--ada: the recipe has a state of the name ada; rename it")
    return State(np.zeros(4, np.float32))


def sign_of(updates: Iterable[Update], metrics: Collection[str]) -> tuple[str, int] | None:
    """The name of the metric that --ada follows and the steps from one to the next; None: these updates report none."""
    return next(((name, each.every) for each in updates if (name := f"{each.name}/{METRIC}") in metrics), None)


def next_state(
    state: tf.Tensor, sign: tf.Tensor, finite: tf.Tensor, *, target: float, change: float, every: int = 1
) -> tf.Tensor:
    """The state of declared() after a step with a sign, which comes `every` steps.

    `sign` is r_t of the step over all ranks, and counts if the step is `finite`. Where the mean sign is above `target`,
    p grows, else it shrinks, by `change` for each step since its last change.
    """
    p, total, signs, steps = tf.unstack(state + tf.stack([0.0, sign, 1.0, float(every)]))
    changed = tf.clip_by_value(p + tf.sign(total / signs - target) * steps * change, 0.0, 1.0)
    after = tf.where(steps >= _PERIOD, tf.stack([changed, 0.0, 0.0, 0.0]), tf.stack([p, total, signs, steps]))
    return tf.where(finite, after, state + tf.constant([0.0, 0.0, 0.0, float(every)]))


def with_places(images: tf.Tensor, p: tf.Tensor, random: Random, key: str) -> tf.Tensor:
    """Mirror, turn, scale and shift pictures; the arguments are those of adaptive()."""
    _, height, width, _ = images.shape
    sides = tf.constant([width, height], tf.float32)
    applied = random.uniform(f"{key}/applied", (8,))
    drawn, normal = random.uniform(f"{key}/geometry", (6,)), random.normal(f"{key}/normal", (4,))
    once, rotated = applied < p, applied < 1.0 - tf.sqrt(1.0 - p)  # there are two rotations
    angles = (2.0 * drawn[:, 4:6] - 1.0) * math.pi
    whole = tf.round((2.0 * drawn[:, 2:4] - 1.0) * _SHIFT * sides)
    sizes = tf.pow(2.0, 0.2 * normal[:, :2])
    # From a place of the result to that of the picture: the inverses of the paper's transforms, in its order.
    matrix = _chosen(once[:, 0], _scaling(1.0 - 2.0 * tf.floor(drawn[:, 0] * 2.0), 1.0))
    matrix @= _chosen(once[:, 1], _rotation(math.pi / 2.0 * tf.floor(drawn[:, 1] * 4.0)))
    matrix @= _chosen(once[:, 2], _translation(-whole[:, 0], -whole[:, 1]))
    matrix @= _chosen(once[:, 3], _scaling(1.0 / sizes[:, 0], 1.0 / sizes[:, 0]))
    matrix @= _chosen(rotated[:, 4], _rotation(angles[:, 0]))
    matrix @= _chosen(once[:, 5], _scaling(1.0 / sizes[:, 1], sizes[:, 1]))
    matrix @= _chosen(rotated[:, 6], _rotation(angles[:, 1]))
    moved = normal[:, 2:] * _SHIFT * sides
    matrix @= _chosen(once[:, 7], _translation(-moved[:, 0], -moved[:, 1]))
    return sampled(images, matrix)


def with_colors(images: tf.Tensor, p: tf.Tensor, random: Random, key: str) -> tf.Tensor:
    """Change brightness, contrast, luma, hue and saturation of pictures; the arguments are those of adaptive()."""
    count, channels = images.shape[0], images.shape[-1]
    applied = random.uniform(f"{key}/color_applied", (5,)) < p
    normal, drawn = random.normal(f"{key}/color", (3,)), random.uniform(f"{key}/hue", (2,))
    # Luma, hue and saturation change around the axis of the greys, v = (1, 1, 1) / sqrt(3); of grey pictures v is 1.
    axis = tf.fill((channels, channels), 1.0 / channels)  # v v^T
    unit = tf.eye(channels)
    matrix = tf.tile(unit[None], (count, 1, 1))
    offset = tf.where(applied[:, 0], 0.2 * normal[:, 0], 0.0)
    contrast = tf.where(applied[:, 1], tf.pow(2.0, 0.5 * normal[:, 1]), 1.0)
    matrix *= contrast[:, None, None]
    offset *= contrast
    flipped = tf.where(applied[:, 2], tf.floor(drawn[:, 0] * 2.0), 0.0)
    matrix = (unit - 2.0 * axis * flipped[:, None, None]) @ matrix
    offset *= 1.0 - 2.0 * flipped
    if channels == 3:
        angle = tf.where(applied[:, 3], (2.0 * drawn[:, 1] - 1.0) * math.pi, 0.0)[:, None, None]
        cross = tf.constant([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]]) / math.sqrt(3.0)
        matrix = (axis + (unit - axis) * tf.cos(angle) + cross * tf.sin(angle)) @ matrix
        saturation = tf.where(applied[:, 4], tf.pow(2.0, normal[:, 2]), 1.0)[:, None, None]
        matrix = (axis + (unit - axis) * saturation) @ matrix
    return tf.einsum("bhwc,bdc->bhwd", images, matrix) + offset[:, None, None, None]


def sampled(images: tf.Tensor, matrix: tf.Tensor) -> tf.Tensor:
    """Pictures whose pixel at x, counted from the centre, is that at matrix x, mirrored at the edges."""
    count, height, width, channels = images.shape
    across, down = tf.meshgrid(tf.range(width, dtype=tf.float32), tf.range(height, dtype=tf.float32))
    centre = tf.constant([(width - 1) / 2.0, (height - 1) / 2.0])
    places = tf.stack([across, down, tf.ones_like(across)], axis=-1) - tf.concat([centre, [0.0]], axis=0)
    found = tf.einsum("bij,hwj->bhwi", matrix[:, :2], places) + centre
    flat = tf.reshape(images, (count, height * width, channels))
    columns, rows = (_corners(found[..., axis], size) for axis, size in ((0, width), (1, height)))
    result = tf.zeros_like(images)
    for row, of_row in rows:
        for column, of_column in columns:
            pixels = tf.gather(flat, tf.reshape(row * width + column, (count, -1)), batch_dims=1)
            result += tf.reshape(pixels, images.shape) * (of_row * of_column)[..., None]
    return result


def _corners(places: tf.Tensor, size: int) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """The two pixels around each place on an axis, int64, and their weights."""
    last = float(size - 1)
    folded = last - tf.abs(tf.math.floormod(places, 2.0 * last) - last) if size > 1 else tf.zeros_like(places)
    first = tf.clip_by_value(tf.floor(folded), 0.0, max(last - 1.0, 0.0))
    weight = folded - first
    place = tf.cast(first, tf.int64)
    return [(place, 1.0 - weight), (tf.minimum(place + 1, size - 1), weight)]


def _chosen(applied: tf.Tensor, matrix: tf.Tensor) -> tf.Tensor:
    return tf.where(applied[:, None, None], matrix, tf.eye(3))


def _scaling(across: tf.Tensor, down: "tf.Tensor | float") -> tf.Tensor:
    return _matrix((across, 0.0, 0.0), (0.0, down, 0.0))


def _rotation(angle: tf.Tensor) -> tf.Tensor:
    return _matrix((tf.cos(angle), -tf.sin(angle), 0.0), (tf.sin(angle), tf.cos(angle), 0.0))


def _translation(across: tf.Tensor, down: tf.Tensor) -> tf.Tensor:
    return _matrix((1.0, 0.0, across), (0.0, 1.0, down))


def _matrix(*rows: tuple[Any, ...]) -> tf.Tensor:
    """Matrices (B, 3, 3) of which the last row is 0, 0, 1."""
    like = next(each for row in rows for each in row if tf.is_tensor(each))
    filled = [[each if tf.is_tensor(each) else tf.fill(tf.shape(like), each) for each in row] for row in rows]
    last = [tf.zeros_like(like), tf.zeros_like(like), tf.ones_like(like)]
    return tf.stack([tf.stack(row, axis=-1) for row in (*filled, last)], axis=-2)
