"""How an update's gradients change its networks: their norm, clipping, learning rate and decays."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import keras
import tensorflow as tf

from hvdgan.recipe.stages import LearningRate, Update
from hvdgan.training.state import TrainState


def global_norm(gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """The Euclidean norm of all gradients together, float32; not finite if any of their numbers is not."""
    return tf.sqrt(2.0 * tf.add_n([tf.cast(tf.nn.l2_loss(gradient), tf.float32) for gradient in gradients]))


def apply_gradients(
    state: TrainState,
    update: Update,
    gradients: Sequence[tf.Tensor],
    norm: tf.Tensor,
    rates: Callable[[float | LearningRate], tf.Tensor],
) -> None:
    """Clip the gradients, and let the optimizer of each owned network make one step."""
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
    return [gradient * tf.cast(scale, gradient.dtype) for gradient in gradients]


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
