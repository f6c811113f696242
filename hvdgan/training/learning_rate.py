"""Computes a learning rate at a step of a stage, and refuses updates that an optimizer cannot make."""

import math
from collections.abc import Sequence

import tensorflow as tf

from hvdgan.cli.config import Config
from hvdgan.recipe.mistakes import Mistake
from hvdgan.recipe.stages import LearningRate, Stage
from hvdgan.training.state import TrainState


def rate_factor(config: Config) -> float:
    """The factor that --lr-scaling gives to all learning rates.

    Reference: Goyal et al. 2017, section 2.1 (linear); Krizhevsky 2014, section 5 (root).
    """
    ratio = config.global_batch_size / config.lr_base_batch_size
    return {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[config.lr_scaling]


def rate_at(rate: float | LearningRate, stage_step: tf.Tensor, steps: int, factor: float = 1.0) -> tf.Tensor:
    """The learning rate at a step of a stage."""
    if not isinstance(rate, LearningRate):
        return factor * tf.constant(rate, tf.float32)
    done = tf.cast(stage_step, tf.float32)
    warmup = float(rate.warmup_steps)
    # The last step has the final rate.
    left = 1.0 - tf.clip_by_value((done - warmup) / max(steps - 1 - warmup, 1.0), 0.0, 1.0)
    if rate.decay == "cosine":
        left = 0.5 * (1.0 - tf.cos(math.pi * left))
    value = rate.peak if rate.decay == "constant" else rate.final + (rate.peak - rate.final) * left
    return factor * (value * tf.minimum(1.0, (done + 1.0) / (warmup + 1.0)))


def check_optimizers(stages: Sequence[Stage], state: TrainState) -> None:
    """Refuse updates without trainable variables, or with a learning rate or betas that an optimizer cannot have."""
    for where, update in ((f"stage {stage.name}, update {u.name}", u) for stage in stages for u in stage.updates):
        if not any(state.networks[name].trainable_variables for name in update.owns):
            raise Mistake(
                f"{where}: it owns only {', '.join(update.owns)}, without trainable variables; let it own a network "
                "that it trains, too",
                update,
            )
        for name in update.owns:
            if update.learning_rate is not None and name not in state.learning_rates:
                raise Mistake(
                    f"{where}: it has a learning rate, and the optimizer of {name} has a schedule of its own; leave "
                    "one out",
                    update,
                )
            has_betas = all(hasattr(state.optimizers[name], beta) for beta in ("beta_1", "beta_2"))
            if update.betas is not None and not has_betas:
                raise Mistake(
                    f"{where}: it has betas, and the optimizer of {name} has none; leave them out, or use Adam", update
                )
