"""Finds losses that are no means over samples: their gradients of some samples are not the mean of those of two halves.

Such a loss has other gradients on another number of ranks. The numbers that are drawn belong to the samples, so they
are the same. BatchNorm, which has a rule of its own, computes in inference mode meanwhile. Nothing of the run changes.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from hvdgan.distributed.ranks import Ranks
from hvdgan.networks.layers import in_float32, joint_means_of, moved_in_calls, without_batch_statistics
from hvdgan.recipe.stages import Update
from hvdgan.training.build import Run
from hvdgan.training.optimizers import values_of
from hvdgan.training.repeatable import Handles, captured_by, operations
from hvdgan.training.step import Data, StageStep, used

MOST = 8
"""samples that are compared, at most; of fewer samples the gradients differ by more"""
_ROUNDING = 2e-4


class MeanCheck:
    """Compares the gradients of a stage's updates, of the first samples of this rank's slice of a batch.

    Left out are updates that use batch.mean, batch.sum or batch.gather, that move an average of all ranks, that have
    reduce=False, that call Python, or that cannot be computed of half the samples.
    """

    def __init__(self, run: Run, step: StageStep, data: Data) -> None:
        """data: this rank's slice of the batch of a step."""
        unit, declared = 2 * run.recipe.pack, run.state.declared_state.declared.values()
        # State per sample can be cut only as the slice is.
        most = step.count if any(each.per_sample for each in declared) else max(MOST, unit)
        self._count = count = min(most, step.count) // unit * unit
        self._updates = [update for update in step.stage.updates if count and update.reduce]
        # A kink of a ReLU may lie between two roundings, but hardly for two batches.
        batches = [used(data), {name: tf.roll(value, 1, 0) for name, value in used(data).items()}]
        self._batches = [{name: each[:count] for name, each in batch.items()} for batch in batches]
        state, config = dataclasses.replace(run.state, loss_scales={}), run.config
        configs = [dataclasses.replace(config, global_batch_size=count, accumulate=parts) for parts in (1, 2)]
        self._steps = [StageStep(run.recipe, state, step.stage, Ranks(), each) for each in configs if count]
        self._frozen = run.state.frozen.values()
        self._functions = dict[tuple[str, int], Any]()
        self._averages = {id(each.value.handle) for net in step.networks.values() for each in joint_means_of(net)}

    def found(self, number: int) -> dict[str, float]:
        """The updates whose losses are no means in the global step of this number, by name, each once.

        The value is the largest difference of a variable's gradients, relative to their size.
        """
        found = dict[str, float]()
        for update in [*self._updates]:
            difference = math.inf
            try:
                for batch in self._batches:
                    difference = min(difference, self._difference(update, number, batch))
                    if difference <= _ROUNDING:
                        break
            except Exception:  # such as batch.mean, which half of the samples cannot call; the run itself has no fault
                difference = math.inf
            if difference > _ROUNDING:
                self._updates.remove(update)
                found |= {update.name: difference} if difference < math.inf else {}
        return found

    def lines(self, number: int) -> Iterator[str]:
        """What found() finds, in words."""
        for name, difference in self.found(number).items():
            yield (
                f"warning: stage {self._steps[0].stage.name}, update {name}: the loss is no mean over samples, and "
                f"depends on the number of ranks: in two halves of {self._count} samples a gradient differs by "
                f"{difference:.2g} of its size; use batch.mean or batch.gather, or --allow batch-dependent-loss"
            )

    def _difference(self, update: Update, number: int, data: Data) -> float:
        """The largest difference of a gradient, relative to that of a half; 0 if they are not finite."""
        parts = ((0, 0), (1, 0), (1, 1))
        whole, *halves = (self._gradients(update, step, part, number, data) for step, part in parts)
        size, ratios = tf.linalg.global_norm([*halves[0], *halves[1]]), [0.0]
        for all_of_it, one, other in zip(whole, *halves, strict=True):
            # What is 0 but for rounding, such as the gradient of a bias before a norm, is compared with all of them.
            least = tf.maximum(tf.norm(one), tf.norm(other)) + 1e-3 * size
            ratios.append(float(tf.norm(0.5 * (one + other) - all_of_it) / least))
        return max(ratios) if all(map(math.isfinite, ratios)) else 0.0

    def _gradients(self, update: Update, which: int, part: int, number: int, data: Data) -> list[tf.Tensor]:
        """The gradients of all samples (0, 0), or of a half of them (1, part); what the calls move is put back."""
        step = self._steps[which]
        networks = [*step.networks.values(), *self._frozen]

        def compute(number: tf.Tensor, data: Data, part: tf.Tensor) -> list[tf.Tensor]:
            # A GPU multiplies in TF32, with 10 bits of the mantissa: rounding would be a hundredth of a gradient there.
            with tf.device("cpu:0"), without_batch_statistics(networks), in_float32(networks):
                computed = step.on_micro_batch(update, number, data, part)
            return [tf.cast(gradient, tf.float32) for gradient in computed.gradients]

        kept = values_of([each for network in step.networks.values() for each in moved_in_calls(network)])
        try:
            with tf.device("cpu:0"):
                arguments = tf.constant(np.int64(number)), data, tf.constant(part)
            if (update.name, which) not in self._functions:
                function = tf.function(compute, autograph=False).get_concrete_function(*arguments)
                self._functions[update.name, which] = function
                if any(
                    self._is_beyond(chain[-1], handles)
                    for chain, handles in operations(function.graph, captured_by(function))
                ):
                    raise NotImplementedError
            return self._functions[update.name, which](*arguments)
        finally:
            for variable, value in kept:
                variable.assign(value)

    def _is_beyond(self, operation: tf.Operation, handles: Handles) -> bool:
        """Whether it may keep a state of its own in Python, or assigns an average, which is of all samples."""
        assigned = operation.inputs[0] if operation.type.startswith("Assign") else None
        return "PyFunc" in operation.type or id(handles.get(id(assigned))) in self._averages
