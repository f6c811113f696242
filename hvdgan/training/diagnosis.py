"""Finds the loss or the gradients that were not finite, after every rank has skipped an update."""

import tensorflow as tf

from hvdgan.training.compiler import Compiler
from hvdgan.training.forward import Data, used
from hvdgan.training.gradients import MicroBatches
from hvdgan.training.step import StageStep


def not_finite(stage_step: StageStep, update: str, step: int, data: Data) -> list[str]:
    """Compute an update's gradients on this rank again, and name what is not finite."""
    forward = stage_step.forward
    (chosen,) = (each for each in stage_step.stage.updates if each.name == update)

    @tf.function(autograph=False)
    def look(part: tf.Tensor) -> tf.Tensor:
        micro_batches = MicroBatches(forward, tf.constant(step, tf.int64), used(data), Compiler())
        gradients, metrics = micro_batches.one(chosen, part)
        return tf.stack([tf.reduce_all(tf.math.is_finite(each)) for each in (metrics["loss"], *gradients)])

    verdicts = [look(tf.constant(part)).numpy() for part in range(forward.micro_batches)]
    names = ["loss", *(variable.path for variable in forward.variables(chosen))]
    return [name for name, finite in zip(names, zip(*verdicts, strict=True), strict=True) if not all(finite)]
