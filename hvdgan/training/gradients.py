"""This rank's gradients of an update: of the whole slice at once, or the mean over micro-batches.

Both return a tape. Its gradient() computes the gradients on this rank; Ranks.reduced_gradients calls it and averages
them over the ranks.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from hvdgan.distributed.reduction import OwnedTape, tape_of_gradients
from hvdgan.recipe.results import PreparedBatch
from hvdgan.recipe.shared_forward import SharedForward
from hvdgan.recipe.stages import Update
from hvdgan.training.compiled_random import on_device
from hvdgan.training.compiler import Compiler
from hvdgan.training.forward import Data, Forward, Metrics


class Local(NamedTuple):
    """A tape that returns this rank's gradients, the scalar loss to call it with, and the metrics."""

    tape: tf.GradientTape
    loss: tf.Tensor
    metrics: Metrics


class WholeSlice:
    """Computes one update after another on this rank's whole slice, and shares forward passes between them."""

    def __init__(self, forward: Forward, due: Sequence[Update], step: tf.Tensor, data: Data) -> None:
        self._forward = forward
        self._prepared = forward.prepare(step, data)
        self._shared = SharedForward()
        # All tapes are open from the start: a later update may differentiate what an earlier one has computed.
        self._tapes = {update.name: OwnedTape(watch_accessed_variables=False) for update in due}
        for update in due:
            with self._tapes[update.name] as tape:
                tape.watch([variable.value for variable in forward.variables(update)])

    def __call__(self, update: Update) -> Local:
        """Compute the loss of the update that is next."""
        with self._shared.recorded(list(self._tapes.values())):
            loss, metrics = self._forward.loss(update, self._prepared, self._shared)
        for name in update.owns:  # its optimizer is about to change them
            self._shared.forget(name)
        return Local(self._tapes.pop(update.name), loss, metrics)


class MicroBatches:
    """Computes an update's gradients on one micro-batch at a time, so that only one is in memory."""

    def __init__(self, forward: Forward, step: tf.Tensor, data: Data, compiler: Compiler) -> None:
        self._forward, self._compiler = forward, compiler
        self._step = step
        self._parts = forward.micro_batches
        self._data = {name: tf.reshape(value, (self._parts, -1, *value.shape[1:])) for name, value in data.items()}

    def __call__(self, update: Update) -> Local:
        """Compute the update's gradients, the mean over all micro-batches."""
        if self._parts == 1:
            gradients, metrics = self.one(update, 0)
            return Local(tape_of_gradients(gradients), tf.constant(0.0), metrics)
        # The loop must know the shapes of its results before it is built, so one round is traced first.
        one = tf.function(lambda part: self.one(update, part), autograph=False)
        shapes = one.get_concrete_function(tf.TensorSpec((), tf.int32)).structured_outputs
        zeros = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), shapes)

        def add(part: tf.Tensor, sums: Any) -> tuple[tf.Tensor, Any]:
            return part + 1, tf.nest.map_structure(lambda total, value: total + value / self._parts, sums, one(part))

        start, parts = (tf.constant(0), zeros), self._parts
        # Without maximum_iterations: its "and" would be computed on the GPU, and each round would wait for it.
        _, (gradients, metrics) = tf.while_loop(lambda part, _: part < parts, add, start, parallel_iterations=1)
        return Local(tape_of_gradients(gradients), tf.constant(0.0), metrics)

    def one(self, update: Update, part: "int | tf.Tensor") -> tuple[list[tf.Tensor], Metrics]:
        """Compute this rank's gradients and metrics of one micro-batch, whose number is a scalar int32."""
        data = {name: value[part] for name, value in self._data.items()}
        apart = vars(self._forward.prepare(self._step, data, part))
        random = on_device(apart["random"]) if self._compiler.on else vars(apart["random"])
        where = self._forward.where(update)
        return self._compiler(where, update.loss, self._of, update, apart, random)

    def _of(self, update: Update, apart: dict[str, Any], random: dict[str, Any]) -> tuple[list[tf.Tensor], Metrics]:
        """Compute gradients and metrics, given a Prepared and its Random as their fields."""
        prepared = PreparedBatch(**{**apart, "random": self._compiler.random(**random)})
        values = [variable.value for variable in self._forward.variables(update)]
        with self._forward.scope(update):
            with OwnedTape(watch_accessed_variables=False) as tape:
                tape.watch(values)
                loss, metrics = self._forward.loss(update, prepared, None)
            gradients = tape.gradient(loss, values)
        return [tf.convert_to_tensor(gradient) for gradient in gradients], metrics
