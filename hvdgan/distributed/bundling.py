"""Packs small gradients into bundles, and bundles into groups, because the ranks must agree on what they reduce.

A bundle holds all small gradients of one dtype, one after another. A large gradient is a bundle of its own.

Horovod reduces the bundles of a group together, when all of them are ready. Bundles without a group are reduced as they
become ready, while the backward pass still computes others, and which of them share a buffer differs from run to run.
So do the last bits of a sum over three and more ranks: a ring begins each part of a buffer at another rank, so a
number's place in the buffer decides the order in which the ranks are added. Two ranks have one order.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

SMALL = 256 * 1024
"""bytes below which a gradient is small; to copy a larger one into a bundle and back costs more than it saves"""


def bundle(tensors: Sequence[tf.Tensor], like: Sequence[Any]) -> list[tf.Tensor]:
    """The bundles of tensors."""
    return [
        tensors[places[0]] if len(places) == 1 else tf.concat([tf.reshape(tensors[place], [-1]) for place in places], 0)
        for places in bundles(like)
    ]


def unbundle(reduced: Sequence[tf.Tensor], like: Sequence[Any]) -> list[tf.Tensor]:
    """The tensors of reduced bundles, in the order in which bundle() received them."""
    tensors = {}
    for places, values in zip(bundles(like), reduced, strict=True):
        if len(places) == 1:
            tensors[places[0]] = values
            continue
        parts = tf.split(values, [like[place].shape.num_elements() for place in places])
        tensors.update({place: tf.reshape(part, like[place].shape) for place, part in zip(places, parts, strict=True)})
    return [tensors[place] for place in range(len(like))]


def bundles(like: Sequence[Any]) -> list[list[int]]:
    """The indices of the tensors in each bundle; they depend on shapes and dtypes only, so all ranks agree."""
    together: dict[Any, list[int]] = {}
    for place, each in enumerate(like):
        small = each.shape.num_elements() * each.dtype.size < SMALL
        together.setdefault(each.dtype if small else place, []).append(place)
    return list(together.values())


def groups(size: int, *, on_gpu: bool, deterministic: bool) -> int | None:
    """The number of groups, for Horovod: 1, or None if each bundle is reduced as soon as it is ready.

    On a GPU the reduction runs beside the backward pass. On a CPU it takes cores from it, so that one group costs
    little and gives equal bits; a pair of ranks has these in any case.
    """
    return 1 if deterministic or not (on_gpu or size == 2) else None
