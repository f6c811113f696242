"""What the ranks reduce of a step's gradients: the tapes that Horovod wraps, and the bundles and groups of gradients.

Horovod's DistributedGradientTape copies the class of the tape that it wraps, not the instance, so the data of a tape
must be captured by a closure.

A bundle holds all small gradients of one dtype, one after another. A large gradient is a bundle of its own. Horovod
reduces the bundles of a group together, when all of them are ready. Bundles without a group are reduced as they
become ready, while the backward pass still computes others, and which of them share a buffer differs from run to run.
So do the last bits of a sum over three and more ranks: a ring begins each part of a buffer at another rank, so a
number's place in the buffer decides the order in which the ranks are added. Two ranks have one order.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvdgan.errors import UserError

SMALL = 256 * 1024
"""bytes below which a gradient is small; to copy a larger one into a bundle and back costs more than it saves"""


class UntouchedVariables(UserError):
    """The loss does not depend on some variables that its gradients are asked for; `indices` are their numbers."""

    def __init__(self, indices: Sequence[int]) -> None:
        super().__init__(f"the loss does not depend on the variables {', '.join(map(str, indices))}")
        self.indices = indices


class OwnedTape(tf.GradientTape):
    """A tape that refuses variables that the loss does not depend on, before any rank reduces a gradient.

    Horovod passes on a gradient that is None, and stalls if it is None on some ranks only.
    """

    def gradient(self, target: tf.Tensor, sources: Sequence[tf.Variable], *others: Any, **more: Any) -> list[tf.Tensor]:
        """As tf.GradientTape.gradient; raises UntouchedVariables."""
        gradients = super().gradient(target, sources, *others, **more)
        if untouched := [index for index, gradient in enumerate(gradients) if gradient is None]:
            raise UntouchedVariables(untouched)
        return gradients


def tape_of_gradients(gradients: list[tf.Tensor]) -> tf.GradientTape:
    """A tape whose gradient() returns these gradients, for Horovod's tape to reduce."""

    class Computed(tf.GradientTape):
        def gradient(self, *_: Any, **__: Any) -> list[tf.Tensor]:
            return gradients

    return Computed()


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
    little and gives equal bits; two ranks have equal bits without a group.
    """
    return 1 if deterministic or not (on_gpu or size == 2) else None
