"""Skips an update that is not finite or not wanted, so that it changes nothing: by a branch, or by selection."""

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from hvdgan.recipe.stages import Update
from hvdgan.training.state import TrainState

Before = Sequence[tuple[keras.Variable, tf.Tensor]]
"""variables with their earlier values"""


def values_of(variables: Sequence[keras.Variable]) -> Before:
    """The variables with the values that they have now."""
    return [(variable, variable.value.read_value()) for variable in variables]


def changed_by(state: TrainState, update: Update) -> list[keras.Variable]:
    """The variables that apply_gradients() changes: the weights of the update's networks, and their slots."""
    return [
        variable
        for name in update.owns
        for variable in [*state.networks[name].trainable_variables, *state.optimizers[name].variables]
    ]


def apply_or_restore(apply: Callable[[], None], finite: tf.Tensor, wanted: tf.Tensor, before: Before) -> tf.Tensor:
    """Apply the gradients if they are finite and wanted; if they are not finite, undo what the forward pass moved."""

    def applied() -> tf.Tensor:
        apply()
        return tf.constant(True)

    def restored() -> tf.Tensor:
        for variable, value in before:
            variable.assign(value)
        return tf.constant(False)

    return tf.cond(finite & wanted, applied, lambda: tf.cond(finite, lambda: tf.constant(False), restored))


def apply_and_select(
    apply: Callable[[], None],
    finite: tf.Tensor,
    wanted: tf.Tensor,
    before: Before,
    changed: Sequence[keras.Variable],
) -> tf.Tensor:
    """Do what apply_or_restore() does, to the last bit, without a branch: a GPU would stop until the host knows it.

    The earlier values of all that changes are kept until the end: three times the weights, with Adam.
    """
    applies, kept = finite & wanted, values_of(changed)
    apply()
    for chosen, variables in ((applies, kept), (finite, before)):
        for variable, value in variables:
            variable.assign(tf.where(chosen, variable.value, value))
    return applies
