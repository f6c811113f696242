"""The bundles and groups in which the ranks reduce a step's gradients.

A bundle holds all small gradients of one dtype, one after another. A large gradient is a bundle of its own. Horovod
reduces the bundles of a group together, when all of them are ready. Bundles without a group are reduced as they
become ready, while the backward pass still computes others, and which of them share a buffer differs from run to run.
So do the last bits of a sum over three and more ranks: a ring begins each part of a buffer at another rank, so a
number's place in the buffer decides the order in which the ranks are added. Two ranks have one order.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

SMALL = 256 * 1024
"""bytes below which a gradient is small; to copy a larger one into a bundle and back costs more than it saves"""


def bundle(gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The bundles of gradients."""
    return [
        gradients[places[0]] if len(places) == 1 else tf.concat([tf.reshape(gradients[p], [-1]) for p in places], 0)
        for places in _places(gradients)
    ]


def unbundle(reduced: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The gradients in reduced bundles, in the order and the shapes of those that bundle() received."""
    found: dict[int, tf.Tensor] = {}
    for places, values in zip(_places(gradients), reduced, strict=True):
        shapes = [gradients[place].shape for place in places]
        pieces = tf.split(values, [shape.num_elements() for shape in shapes]) if len(places) > 1 else [values]
        found |= {place: tf.reshape(piece, shape) for place, piece, shape in zip(places, pieces, shapes, strict=True)}
    return [found[place] for place in range(len(gradients))]


def _places(gradients: Sequence[tf.Tensor]) -> list[list[int]]:
    """The indices of the gradients in each bundle; they depend on shapes and dtypes only, so all ranks agree."""
    together: dict[Any, list[int]] = {}
    for place, each in enumerate(gradients):
        small = each.shape.num_elements() * each.dtype.size < SMALL
        together.setdefault(each.dtype if small else place, []).append(place)
    return list(together.values())


def is_one_group(size: int, *, on_gpu: bool, deterministic: bool) -> bool:
    """Whether all bundles are a group, or each is reduced as soon as it is ready.

    On a GPU the reduction runs beside the backward pass. On a CPU it takes cores from it, so that one group costs
    little and gives equal bits; two ranks have equal bits without a group.
    """
    return deterministic or not (on_gpu or size == 2)
