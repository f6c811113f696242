"""One step of the optimizers of an update: its learning rate, its decays and its clipping."""

import contextlib
import math
from collections.abc import Iterator, Sequence

import keras
import tensorflow as tf

from hvdgan.recipe.mistakes import Mistake
from hvdgan.recipe.stages import LearningRate, Stage, Update
from hvdgan.training.state import TrainState


def apply_gradients(
    state: TrainState,
    update: Update,
    gradients: Sequence[tf.Tensor],
    norm: tf.Tensor,
    *,
    stage_step: tf.Tensor,
    stage_steps: int,
    rate_factor: float,
) -> None:
    """Let the optimizer of each owned network make one step.

    Args:
        state: its networks and slots change.
        update: says what it owns, and how it steps.
        gradients: one per trainable variable of the owned networks, in order; reduced.
        norm: of all of them together.
        stage_step: scalar int64, from 0.
        stage_steps: of the stage, where schedules end.
        rate_factor: that learning rates are multiplied with.
    """
    if update.clip_norm is not None:
        scale = update.clip_norm / tf.maximum(norm, update.clip_norm)
        gradients = [gradient * scale for gradient in gradients]
    begin = 0
    for name in update.owns:
        optimizer, variables = state.optimizers[name], state.networks[name].trainable_variables
        rate = state.learning_rates.get(name) if update.learning_rate is None else update.learning_rate
        if rate is not None:
            optimizer.learning_rate.assign(rate_factor * rate_at(rate, stage_step, stage_steps))
        with _betas(optimizer, update.betas):
            optimizer.apply(gradients[begin : begin + len(variables)], variables)
        begin += len(variables)


def check_optimizers(stages: Sequence[Stage], state: TrainState) -> None:
    """Refuse updates that ask of an optimizer what it does not have.

    Args:
        stages: whose updates these are.
        state: its optimizers are looked at.

    Raises:
        Mistake: naming stage, update and network.
    """
    for where, update in ((f"stage {stage.name}, update {u.name}", u) for stage in stages for u in stage.updates):
        for name in update.owns:
            if update.learning_rate is not None and name not in state.learning_rates:
                raise Mistake(
                    f"{where}: it has a learning rate, and the optimizer of {name} a schedule of its own; leave one "
                    "out",
                    update,
                )
            has_betas = all(hasattr(state.optimizers[name], beta) for beta in ("beta_1", "beta_2"))
            if update.betas is not None and not has_betas:
                raise Mistake(
                    f"{where}: it has betas, and the optimizer of {name} none; leave them out, or use Adam", update
                )


def rate_at(rate: float | LearningRate, stage_step: tf.Tensor, steps: int) -> tf.Tensor:
    """The learning rate at a step of a stage.

    Args:
        rate: constant, or a schedule.
        stage_step: scalar int64, from 0.
        steps: of the stage.

    Returns:
        Scalar float32.
    """
    if not isinstance(rate, LearningRate):
        return tf.constant(rate, tf.float32)
    done = tf.cast(stage_step, tf.float32)
    warmup = float(rate.warmup_steps)
    # The last step has the final rate.
    left = 1.0 - tf.clip_by_value((done - warmup) / max(steps - 1 - warmup, 1.0), 0.0, 1.0)
    if rate.decay == "cosine":
        left = 0.5 * (1.0 - tf.cos(math.pi * left))
    value = rate.peak if rate.decay == "constant" else rate.final + (rate.peak - rate.final) * left
    return value * tf.minimum(1.0, (done + 1.0) / (warmup + 1.0))


@contextlib.contextmanager
def _betas(optimizer: keras.optimizers.Optimizer, betas: tuple[float, float] | None) -> Iterator[None]:
    """Let an optimizer be traced with other decays: Keras reads them as Python numbers while the step is traced."""
    if betas is None:
        yield
        return
    own = optimizer.beta_1, optimizer.beta_2
    optimizer.beta_1, optimizer.beta_2 = betas
    try:
        yield
    finally:
        optimizer.beta_1, optimizer.beta_2 = own
