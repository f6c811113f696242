"""The gradient tapes of a step: the only module that subclasses tf.GradientTape.

Horovod's DistributedGradientTape copies the class of the tape that it wraps, not the instance, so the data of a tape
must be captured by a closure.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvdgan.cli.errors import UserError
from hvdgan.distributed.bundling import bundle


class UntouchedVariables(UserError):
    """The loss does not depend on some variables that its gradients are asked for; `places` are their numbers."""

    def __init__(self, places: Sequence[int]) -> None:
        super().__init__(f"the loss does not depend on the variables {', '.join(map(str, places))}")
        self.places = places


class OwnedTape(tf.GradientTape):
    """A tape that refuses variables that the loss does not depend on, before any rank reduces a gradient.

    Horovod passes on a gradient that is None, and stalls if it is None on some ranks only.
    """

    def gradient(self, target: tf.Tensor, sources: Sequence[tf.Variable], *others: Any, **more: Any) -> list[tf.Tensor]:
        """As tf.GradientTape.gradient.

        Raises:
            Untouched: the target does not depend on some of the sources.
        """
        gradients = super().gradient(target, sources, *others, **more)
        if untouched := [place for place, gradient in enumerate(gradients) if gradient is None]:
            raise UntouchedVariables(untouched)
        return gradients


def tape_of_gradients(gradients: list[tf.Tensor]) -> tf.GradientTape:
    """A tape whose gradient() returns these gradients, so that sums over micro-batches are reduced like others."""

    class Computed(tf.GradientTape):
        def gradient(self, *_: Any, **__: Any) -> list[tf.Tensor]:
            return gradients

    return Computed()


def tape_of_bundles(tape: tf.GradientTape, variables: Sequence[tf.Variable]) -> tf.GradientTape:
    """A tape whose gradient() returns the bundles of another tape's gradients, for Horovod's tape to reduce."""

    class Bundled(tf.GradientTape):
        def gradient(self, target: tf.Tensor, *_: Any, **__: Any) -> list[tf.Tensor]:
            return bundle([tf.convert_to_tensor(each) for each in tape.gradient(target, variables)], variables)

    return Bundled()
