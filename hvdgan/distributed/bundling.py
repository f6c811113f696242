"""Small gradients travel together: each tensor that is reduced by itself costs the ranks an agreement.

A bundle is all small gradients of a dtype, one after another; a large gradient is a bundle of its own.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

SMALL = 256 * 1024
"""bytes below which a gradient is small; larger ones are not worth a copy into a bundle and back"""


def tape_of_bundles(tape: tf.GradientTape, variables: Sequence[tf.Variable]) -> tf.GradientTape:
    """A tape whose gradients are the bundles of another's; Horovod's tape, which wraps it, reduces them.

    Args:
        tape: that recorded the loss.
        variables: to differentiate with respect to, of static shapes, whatever sources the new one is asked for.
    """

    # A class of its own: Horovod makes its tape from the class, and forgets the object.
    class Bundled(tf.GradientTape):
        def gradient(self, target: tf.Tensor, *_: Any, **__: Any) -> list[tf.Tensor]:
            return bundle([tf.convert_to_tensor(each) for each in tape.gradient(target, variables)], variables)

    return Bundled()


def bundle(tensors: Sequence[tf.Tensor], like: Sequence[Any]) -> list[tf.Tensor]:
    """The bundles of tensors.

    Args:
        tensors: gradients, whose shapes tracing may not know where somebody has written a gradient himself.
        like: tensors or variables of the same shapes and dtypes, known.
    """
    return [
        tensors[places[0]] if len(places) == 1 else tf.concat([tf.reshape(tensors[place], [-1]) for place in places], 0)
        for places in bundles(like)
    ]


def unbundle(reduced: Sequence[tf.Tensor], like: Sequence[Any]) -> list[tf.Tensor]:
    """The tensors that bundle() was given, from what became of the bundles.

    Args:
        reduced: as bundle() returns them.
        like: as bundle() was given.
    """
    tensors = {}
    for places, values in zip(bundles(like), reduced, strict=True):
        if len(places) == 1:
            tensors[places[0]] = values
            continue
        parts = tf.split(values, [like[place].shape.num_elements() for place in places])
        tensors.update({place: tf.reshape(part, like[place].shape) for place, part in zip(places, parts, strict=True)})
    return [tensors[place] for place in range(len(like))]


def bundles(like: Sequence[Any]) -> list[list[int]]:
    """The places of those that travel together, by shapes and dtypes alone: the same on every rank."""
    together: dict[Any, list[int]] = {}
    for place, each in enumerate(like):
        small = each.shape.num_elements() * each.dtype.size < SMALL
        together.setdefault(each.dtype if small else place, []).append(place)
    return list(together.values())
