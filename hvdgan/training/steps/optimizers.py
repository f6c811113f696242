"""How an update's gradients change its networks: their norm, clipping, learning rate and decays."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import keras
import tensorflow as tf

from hvdgan.recipe.stages import LearningRate, Update
from hvdgan.training.variables.state import TrainState


def global_norm(gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """The Euclidean norm of all gradients together; not finite if any of their numbers is not."""
    return tf.sqrt(2.0 * tf.add_n([tf.nn.l2_loss(gradient) for gradient in gradients]))


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
    """Apply the gradients if they are finite and wanted; if they are not finite, undo what the forward pass moved.

    Args:
        apply: function that applies the gradients.
        finite: scalar bool, the same on every rank.
        wanted: scalar bool, the same on every rank.
        before: variables that the forward pass may have moved, with their earlier values.

    Returns:
        Scalar bool: whether the gradients were applied.
    """

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

    Args:
        apply, finite, wanted, before: those of apply_or_restore().
        changed: variables that `apply` changes.

    Returns:
        Scalar bool: whether the gradients were applied.
    """
    applies, kept = finite & wanted, values_of(changed)
    apply()
    for chosen, variables in ((applies, kept), (finite, before)):
        for variable, value in variables:
            variable.assign(tf.where(chosen, variable.value, value))
    return applies


def apply_gradients(
    state: TrainState,
    update: Update,
    gradients: Sequence[tf.Tensor],
    norm: tf.Tensor,
    rates: Callable[[float | LearningRate], tf.Tensor],
) -> None:
    """Clip the gradients, and let the optimizer of each owned network make one step.

    Args:
        state: networks and slots, which change.
        update: update that owns the networks.
        gradients: reduced gradients, one per trainable variable of the owned networks, in order.
        norm: global norm of the gradients.
        rates: function from a learning rate to its value at this step.
    """
    gradients = _clipped(gradients, norm, update.clip_norm)
    begin = 0
    for name in update.owns:
        optimizer, variables = state.optimizers[name], state.networks[name].trainable_variables
        rate = state.learning_rates.get(name) if update.learning_rate is None else update.learning_rate
        if rate is not None:
            optimizer.learning_rate.assign(rates(rate))
        with _betas(optimizer, update.betas):
            optimizer.apply(gradients[begin : begin + len(variables)], variables)
        begin += len(variables)


def _clipped(gradients: Sequence[tf.Tensor], norm: tf.Tensor, clip_norm: float | None) -> Sequence[tf.Tensor]:
    """The gradients, scaled down to a global norm of at most clip_norm; None: no limit."""
    if clip_norm is None:
        return gradients
    scale = clip_norm / tf.maximum(norm, clip_norm)
    return [gradient * scale for gradient in gradients]


@contextlib.contextmanager
def _betas(optimizer: keras.optimizers.Optimizer, betas: tuple[float, float] | None) -> Iterator[None]:
    """Trace an optimizer with an update's own decays, which Keras reads as Python numbers while it is traced."""
    if betas is None:
        yield
        return
    own = optimizer.beta_1, optimizer.beta_2
    optimizer.beta_1, optimizer.beta_2 = betas
    try:
        yield
    finally:
        optimizer.beta_1, optimizer.beta_2 = own
