"""One step of a stage, as one tf.function: forward, gradients, all-reduce, apply. The order is that of _run()."""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from hvdgan.cli.config import Config
from hvdgan.data import Samples
from hvdgan.data.batches import specs_of
from hvdgan.distributed.ranks import Ranks
from hvdgan.networks import device
from hvdgan.networks.device import to_device
from hvdgan.networks.layer_state import moved_in_calls
from hvdgan.recipe import Recipe
from hvdgan.recipe.results import verdict_of
from hvdgan.recipe.schedule import Position
from hvdgan.recipe.stages import Stage, Update
from hvdgan.training.averages import move_averages
from hvdgan.training.compiler import Compiler
from hvdgan.training.gradients import Data, Forward, Metrics, MicroBatches, WholeSlice, used
from hvdgan.training.optimizers import apply_gradients, global_norm, rate_at, rate_factor
from hvdgan.training.repeatable import operations, refuse_state_of_samples, refuse_unrepeatable
from hvdgan.training.state import TrainState

Compute = Callable[[int, int, dict[str, tf.Tensor]], tuple[dict[str, Any], tf.Tensor]]
"""what runs one step, as StageStep.__call__ does"""
Steps = Iterable[tuple[int, Position, Compute]]
"""steps of a run, each with its place in the schedule and what runs it"""


Before = Sequence[tuple[keras.Variable, tf.Tensor]]
"""variables with their earlier values"""


class StageStep:
    """Runs the steps of one stage; one graph is traced for each set of updates that are due together.

    Args:
        recipe: source of the draws and of the losses.
        state: variables that a step changes.
        stage: stage whose updates run.
        ranks: ranks over which gradients are averaged.
        config: settings of the run; seed, batch size, averages, accumulation, compilation and augmentations are
            used.
    """

    def __init__(self, recipe: Recipe, state: TrainState, stage: Stage, ranks: Ranks, config: Config) -> None:
        self._recipe = recipe
        self._state = state
        self.stage = stage
        self._ranks = ranks
        self._config = config
        self._compiler = Compiler(config.jit)
        self.forward = Forward(recipe, state, stage, ranks, config)
        self.metrics: set[str] = set()
        """names of the metrics, after trace()"""
        self._branches = device.chosen().branches
        self._traced: dict[tuple[str, ...], tf.types.experimental.ConcreteFunction] = {}

    def __call__(self, step: int, stage_step: int, data: Data) -> tuple[Metrics, tf.Tensor]:
        """Run one step.

        Args:
            step: the global step, from 0.
            stage_step: step within the stage, from 0.
            data: batch as Batches yields it: `images`, records of the data (B, ...), and `labels`, `conditions` and
                `numbers` where the data have them.

        Returns:
            Metrics, scalars by <update>/<name>; and (n,) bool, for each update that was due, in order: whether its loss
            and gradients were finite on every rank. An update that was not has changed nothing but its loss scale.

        Raises:
            Mistake: as in trace(), if it has not been called.
        """
        due = self.stage.due(stage_step)
        with tf.device("cpu:0"):  # where the graph reads them; on a GPU they would have to be waited for
            numbers = tf.constant(step, tf.int64), tf.constant(stage_step, tf.int64)
        arguments = *numbers, used(data)
        # Call the concrete function: the tf.function would take a millisecond per step to find it.
        traced = self._traced.get(_names(due)) or self._trace(due, *arguments)
        return traced(*arguments)

    def trace(self, source: Samples) -> None:
        """Trace every graph of this stage now, so that a mistake in a loss does not wait until the stage begins.

        Args:
            source: data of the run.

        Raises:
            Mistake: a loss fails, is no scalar, or does not touch a variable that its update owns.
        """
        data = specs_of(source, self.forward.count, on_device=device.chosen().own_memory)
        number = tf.TensorSpec((), tf.int64)
        cycle = math.lcm(*(update.every for update in self.stage.updates))
        for stage_step in range(min(self.stage.steps, cycle)):
            if due := self.stage.due(stage_step):
                self.metrics |= self._trace(due, number, number, data).structured_outputs[0].keys()

    def with_ranks(self, ranks: Ranks) -> "StageStep":
        """Return the step of the same stage over other ranks, which is traced anew."""
        return StageStep(self._recipe, self._state, self.stage, ranks, self._config)

    @property
    def graphs(self) -> list[tf.Graph]:
        """The graphs that trace() has traced."""
        return [traced.graph for traced in self._traced.values()]

    def function(self, due: tuple[Update, ...]) -> "tf.types.experimental.PolymorphicFunction":
        """The step in which exactly these updates run, to be traced."""

        def run(step: tf.Tensor, stage_step: tf.Tensor, data: Data) -> tuple[Metrics, tf.Tensor]:
            return self._run(due, step, stage_step, data)

        return tf.function(run, autograph=False)

    def _trace(self, due: tuple[Update, ...], *arguments: Any) -> "tf.types.experimental.ConcreteFunction":
        traced = self.function(due).get_concrete_function(*arguments)
        recipe = f"recipe {type(self._recipe).__name__}"
        scopes = {f"{self.stage.name}/{update.name}": f"{recipe}, {self.forward.where(update)}" for update in due}
        where = f"{recipe}, stage {self.stage.name}"
        refuse_unrepeatable(traced, self._state, where, scopes)
        samples = traced.graph.inputs[2 : len(tf.nest.flatten(arguments))]  # after the numbers of the step
        refuse_state_of_samples(traced, samples, self._state, where, scopes)
        self._traced[_names(due)] = traced
        switch_off_remapper_if_it_fails(traced.graph)
        return traced

    def _run(
        self, due: tuple[Update, ...], step: tf.Tensor, stage_step: tf.Tensor, data: Data
    ) -> tuple[Metrics, tf.Tensor]:
        metrics: Metrics = {}
        finite: Metrics = {}
        forward, ranks, config = self.forward, self._ranks, self._config
        whole = config.accumulate == 1 and not config.jit
        compute = WholeSlice(forward, due, step, data) if whole else MicroBatches(forward, step, data, self._compiler)
        for update in due:
            # The forward pass moves statistics before it is known whether its loss is finite.
            before = values_of([v for name in update.owns for v in moved_in_calls(self._state.networks[name])])
            with forward.scope(update):
                tape, loss, measured = compute(update)
                gradients = ranks.reduced_gradients(
                    tape, loss, forward.variables(update), config.compression, deterministic=config.deterministic
                )
                wanted = self._wanted(update, measured)
            if scale := self._state.loss_scales.get(update.name):
                gradients = scale.unscaled(gradients)
            optimizing = functools.partial(self._compiler, forward.where(update), self._recipe.optimizers)
            norm = optimizing(global_norm, gradients)
            # Reduced gradients are the same on every rank, so all ranks apply them or none does.
            finite[update.name] = tf.math.is_finite(norm)
            apply = functools.partial(optimizing, self._apply, update, gradients, norm, to_device(stage_step))
            verdicts = finite[update.name], wanted
            if self._branches:
                applied = apply_or_restore(apply, *verdicts, before)
            else:
                applied = apply_and_select(apply, *verdicts, before, changed_by(self._state, update))
            if scale or update.only_if is not None:
                measured["applied"] = tf.cast(applied, tf.float32)
            if scale:
                measured["loss_scale"] = scale.adapt(finite[update.name])
            metrics.update({f"{update.name}/{name}": value for name, value in measured.items()})
        averaged = [name for name in self.stage.owns if name in self._state.ema]
        of_updates = {name: [finite[update.name] for update in due if name in update.owns] for name in averaged}
        self._compiler("the averages", None, move_averages, self._state, of_updates, to_device(step), config)
        return metrics, tf.convert_to_tensor(list(finite.values()), tf.bool)  # one, so that the host reads once

    def _apply(self, update: Update, gradients: list[tf.Tensor], norm: tf.Tensor, stage_step: tf.Tensor) -> None:
        factor = rate_factor(self._config)
        rates = functools.partial(rate_at, stage_step=stage_step, steps=self.stage.steps, factor=factor)
        apply_gradients(self._state, update, gradients, norm, rates)

    def _wanted(self, update: Update, measured: Metrics) -> tf.Tensor:
        """The verdict of the update's only_if on the metrics of all ranks."""
        if update.only_if is None:
            return tf.constant(True)
        means = tf.unstack(self._ranks.mean(self.forward.weight * tf.stack(list(measured.values()))))
        return verdict_of(update.only_if, dict(zip(measured, means, strict=True)), self.forward.where(update))


def _names(due: tuple[Update, ...]) -> tuple[str, ...]:
    return tuple(update.name for update in due)


def switch_off_remapper_if_it_fails(graph: tf.Graph) -> None:
    """Switch the remapper off if it would fail on this graph; otherwise leave it on.

    It fuses a convolution, its bias and a leaky ReLU into one kernel, and fails if the gradient of the leaky ReLU reads
    the biased convolution: nothing is fused, and every rank prints an error. The gradient of hvdgan's leaky ReLU layer
    reads the layer's output (hvdgan/networks/fast/kernels.py); those of tf.nn.leaky_relu and of the activation
    "leaky_relu" read its input.
    """
    found = (chain[-1] for chain, _ in operations(graph))
    if any(each.type == "LeakyReluGrad" and each.inputs[1].op.type == "BiasAdd" for each in found):
        tf.config.optimizer.set_experimental_options({"remapping": False})


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
