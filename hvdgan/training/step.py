"""One step of a stage, as one tf.function: forward, gradients, all-reduce, apply. The order is that of _run()."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvdgan.data import Samples
from hvdgan.data.batches import specs_of
from hvdgan.distributed.ranks import Ranks
from hvdgan.networks import device
from hvdgan.networks.device import to_device
from hvdgan.networks.layer_state import moved_in_calls
from hvdgan.recipe import Recipe, ada
from hvdgan.recipe.contract import controlled, decision_of, grown_of
from hvdgan.recipe.stages import LEVEL, LearningRate, Stage, Update
from hvdgan.settings.config import Config
from hvdgan.training.averages import move_averages
from hvdgan.training.gradients import Data, Forward, Metrics, MicroBatches, WholeSlice, used
from hvdgan.training.optimizers import apply_gradients, global_norm, rate_at, rate_factor
from hvdgan.training.train_state import TrainState

Before = Sequence[tuple[keras.Variable, tf.Tensor]]
"""variables with their earlier values"""


class StageStep:
    """Runs the steps of one stage; one graph is traced for each set of updates that are due together."""

    def __init__(self, recipe: Recipe, state: TrainState, stage: Stage, ranks: Ranks, config: Config) -> None:
        self._recipe, self._whole, self.stage, self._ranks, self._config = recipe, state, stage, ranks, config
        self.networks = {**state.networks, **grown_of(recipe, state.networks, stage)}
        """the networks of this stage, which are parts of the run's own if the stage names a size"""
        self._state = dataclasses.replace(state, networks=self.networks)
        self.forward = Forward(recipe, self._state, state, stage, ranks, config)
        self.metrics: set[str] = set()
        """names of the metrics, after trace()"""
        self._branches = device.chosen().branches
        self.traced: dict[tuple[str, ...], tf.types.experimental.ConcreteFunction] = {}
        """for the names of the updates that are due together, the step in which exactly these run"""

    def __call__(self, step: int, stage_step: int, data: Data) -> tuple[Metrics, tf.Tensor]:
        """Run one step, the global one and the one within the stage from 0, on a batch as Batches yields it.

        Returns:
            Metrics, scalars by <update>/<name>; and (n,) bool, for each update that was due, in order: whether its loss
            and gradients were finite on every rank. An update that was not has changed nothing but its loss scale.
        """
        due = self.stage.due(stage_step)
        with tf.device("cpu:0"):  # where the graph reads them; on a GPU they would have to be waited for
            # By NumPy: TensorFlow keeps each number of Python that it has converted, 700 bytes (tensorflow#68196).
            numbers = tf.constant(np.int64(step)), tf.constant(np.int64(stage_step))
        arguments = *numbers, used(data)
        # Call the concrete function: the tf.function would take a millisecond per step to find it.
        traced = self.traced.get(_names(due)) or self._trace(due, *arguments)
        return traced(*arguments)

    def trace(self, source: Samples) -> None:
        """Trace every graph of this stage now, so that a mistake in a loss does not wait until the stage begins."""
        data = specs_of(source, self.forward.count, on_device=device.chosen().own_memory)
        number = tf.TensorSpec((), tf.int64)
        cycle = math.lcm(*(update.every for update in self.stage.updates))
        for stage_step in range(min(self.stage.steps, cycle)):
            if _names(due := self.stage.due(stage_step)) not in self.traced:
                self.metrics |= self._trace(due, number, number, data).structured_outputs[0].keys()

    def function(self, due: tuple[Update, ...]) -> "tf.types.experimental.PolymorphicFunction":
        """The step in which exactly these updates run, to be traced."""
        return tf.function(functools.partial(self._run, due), autograph=False)

    def _trace(self, due: tuple[Update, ...], *arguments: Any) -> "tf.types.experimental.ConcreteFunction":
        self.traced[_names(due)] = traced = self.function(due).get_concrete_function(*arguments)
        return traced

    def _run(
        self, due: tuple[Update, ...], step: tf.Tensor, stage_step: tf.Tensor, data: Data
    ) -> tuple[Metrics, tf.Tensor]:
        metrics: Metrics = {}
        finite: Metrics = {}
        forward, ranks, config = self.forward, self._ranks, self._config
        if self.stage.level is not None:
            first, last = self.stage.level
            done = tf.cast(to_device(stage_step), tf.float32) / max(self.stage.steps - 1, 1)
            self._state.declared_state.assign({LEVEL: first + (last - first) * done}, tf.constant(True))
        whole = config.accumulate == 1
        compute = WholeSlice(forward, due, step, data) if whole else MicroBatches(forward, step, data)
        for update in due:
            # The forward pass moves statistics before it is known whether its loss is finite.
            before = values_of([v for name in update.owns for v in moved_in_calls(self._state.networks[name])])
            with forward.scope(update):
                tape, loss, measured, moved = compute(update)
                variables = forward.variables(update)
                if update.reduce:
                    gradients = ranks.reduced_gradients(tape, loss, variables, config.compression)
                else:
                    own = tape.gradient(loss, [variable.value for variable in variables])
                    gradients = [tf.convert_to_tensor(gradient) for gradient in own]
                wanted = self._wanted(update, measured)
            if scale := self._state.loss_scales.get(update.name):
                gradients = scale.unscaled(gradients)
            norm = global_norm(gradients)
            # Reduced gradients are the same on every rank; of a rank's own, all ranks apply theirs or none does.
            with forward.scope(update):
                finite[update.name] = tf.math.is_finite(norm if update.reduce else ranks.mean(0.0 * norm))
            self._state.declared_state.assign(moved, finite[update.name])
            apply = functools.partial(self._apply, update, gradients, norm, to_device(stage_step))
            if self._branches:
                applied = apply_or_restore(apply, finite[update.name], wanted, before)
            else:
                applied = apply_and_select(apply, finite[update.name], wanted, before, changed_by(self._state, update))
            if scale or update.only_if is not None:
                measured["applied"] = tf.cast(applied, tf.float32)
            if scale:
                measured["loss_scale"] = scale.adapt(finite[update.name])
            metrics.update({f"{update.name}/{name}": value for name, value in measured.items()})
        if due:
            self._control(metrics, tf.reduce_all(list(finite.values())))
        averaged = [name for name in self.stage.owns if name in self._state.ema]
        of_updates = {name: [finite[update.name] for update in due if name in update.owns] for name in averaged}
        # Averages are of whole networks, also where the stage sees parts of them.
        move_averages(self._whole, of_updates, to_device(step), config)
        if (seconds := ranks.waited()) is not None:
            metrics["reduce_seconds"] = seconds
        return metrics, tf.convert_to_tensor(list(finite.values()), tf.bool)  # one, so that the host reads once

    def _apply(self, update: Update, gradients: list[tf.Tensor], norm: tf.Tensor, stage_step: tf.Tensor) -> None:
        factor = rate_factor(self._config)

        def rates(rate: float | LearningRate) -> tf.Tensor:
            return rate_at(rate, stage_step, self.stage.steps, factor)

        apply_gradients(self._state, update, gradients, norm, rates)

    def _wanted(self, update: Update, measured: Metrics) -> tf.Tensor:
        """What the update's only_if decides, given the metrics of all ranks."""
        if update.only_if is None:
            return tf.constant(True)
        return decision_of(update.only_if, self._means(measured), self.forward.where(update))

    def _control(self, metrics: Metrics, finite: tf.Tensor) -> None:
        """Set the recipe's state, and that of --ada, from the metrics of all ranks, unless an update was not finite."""
        kept, config = self._state.declared_state, self._config
        reported = None if config.ada is None else ada.sign_of(self.stage.updates, metrics)
        controls = type(self._recipe).control is not Recipe.control
        if not (controls or reported):
            return
        with tf.name_scope(f"{self.stage.name}/control"):
            means, values = self._means(metrics), kept.shared_values()
            if controls:
                kept.assign(controlled(self._recipe, kept.declared, values, means, f"stage {self.stage.name}"), finite)
            if reported:
                assert config.ada is not None
                change, (sign, every) = config.global_batch_size / config.ada_images, reported
                how: dict[str, Any] = {"target": config.ada, "change": change, "every": every}
                kept.assign({"ada": ada.next_state(values.ada, means[sign], finite, **how)}, tf.constant(True))
                metrics["ada/p"] = values.ada[0]

    def _means(self, measured: Metrics) -> Metrics:
        """The metrics as means over all samples of all ranks."""
        means = tf.unstack(self._ranks.mean(self.forward.weight * tf.stack(list(measured.values()))))
        return dict(zip(measured, means, strict=True))


def _names(due: tuple[Update, ...]) -> tuple[str, ...]:
    return tuple(update.name for update in due)


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
