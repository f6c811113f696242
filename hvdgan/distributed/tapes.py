"""The gradient tapes of a step: the only module that subclasses tf.GradientTape.

Horovod's DistributedGradientTape copies the class of the tape that it wraps, not the instance, so the data of a tape
must be captured by a closure.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvdgan.cli.errors import UserError
from hvdgan.distributed.bundling import bundle


class Untouched(UserError):
    """The loss does not depend on some variables that its gradients are asked for."""


class OwnedTape(tf.GradientTape):
    """A tape that refuses variables that the loss does not depend on, before any rank reduces a gradient.

    Horovod passes on a gradient that is None, and stalls if it is None on some ranks only.
    """

    def gradient(self, target: tf.Tensor, sources: Sequence[tf.Variable], *others: Any, **more: Any) -> list[tf.Tensor]:
        """As tf.GradientTape.gradient.

        Raises:
            Untouched: the target does not depend on some of the sources; the message names them.
        """
        gradients = super().gradient(target, sources, *others, **more)
        untouched = [s.name.removesuffix(":0") for s, g in zip(sources, gradients, strict=True) if g is None]
        if untouched:
            named = ", ".join(untouched[:5]) + (f" and {len(untouched) - 5} more" if len(untouched) > 5 else "")
            raise Untouched(
                f"the loss does not depend on {named}; own only networks that the loss calls, or set trainable=False "
                "on the variables that it leaves out"
            )
        return gradients


def tape_of_gradients(gradients: list[tf.Tensor]) -> tf.GradientTape:
    """A tape whose gradient() returns these gradients, so that sums over micro-batches are reduced like others."""

    class Computed(tf.GradientTape):
        def gradient(self, *_: Any, **__: Any) -> list[tf.Tensor]:
            return gradients

    return Computed()


def tape_of_bundles(tape: tf.GradientTape, variables: Sequence[tf.Variable]) -> tf.GradientTape:
    """A tape whose gradient() returns the bundles of another tape's gradients, for Horovod's tape to reduce.

    Args:
        tape: the tape that recorded the loss.
        variables: variables of static shapes, to differentiate with respect to; the sources that the new tape is asked
            for are ignored.
    """

    class Bundled(tf.GradientTape):
        def gradient(self, target: tf.Tensor, *_: Any, **__: Any) -> list[tf.Tensor]:
            return bundle([tf.convert_to_tensor(each) for each in tape.gradient(target, variables)], variables)

    return Bundled()
