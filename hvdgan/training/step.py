"""One step of a stage, as one tf.function: losses, gradients, all-reduce, optimizers, averages. Begin at _run()."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from hvdgan.data import Samples
from hvdgan.data.batches import specs_of
from hvdgan.distributed.joint_means import assigned_together
from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import list_some
from hvdgan.networks import cpu_or_gpu
from hvdgan.networks.cpu_or_gpu import to_device
from hvdgan.networks.layers import moved_in_calls
from hvdgan.recipe import ada
from hvdgan.recipe.augment import diff_augment, flip_batch
from hvdgan.recipe.batch import Batch, StateValues, scoped, shrunk
from hvdgan.recipe.contract import controlled, decision_of, grown_of, loss_of, new_state, prepare
from hvdgan.recipe.draws import Random
from hvdgan.recipe.layer_draws import LayerDraws
from hvdgan.recipe.nets import Nets, SharedForward
from hvdgan.recipe.recipe import Recipe
from hvdgan.recipe.recipe_errors import Mistake
from hvdgan.recipe.sharing import parts
from hvdgan.recipe.stages import Stage, Update
from hvdgan.settings.config import Config
from hvdgan.training.averages import move_averages
from hvdgan.training.optimizers import Before, apply_gradients, apply_if, global_norm, undone_by, values_of
from hvdgan.training.train_state import TrainState
from hvdgan.training.whole_batch import Traffic, WholeBatch, own_means, own_state

Metrics = dict[str, tf.Tensor]
"""scalars by name"""
Data = dict[str, tf.Tensor]
"""this rank's slice of a global batch as Batches yields it, (B, ...) by name"""
_OWN_LESS = "own only networks that the loss calls, or set trainable=False on the variables that it leaves out"
_OF_NUMPY = "a tf.numpy_function has no gradient: use TensorFlow's operations, or a tf.py_function of them"


class Computed(NamedTuple):
    """What this rank has computed for an update, of its slice of the global batch or of a micro-batch."""

    gradients: list[tf.Tensor]
    """one for each trainable variable of the owned networks"""
    metrics: Metrics
    state: Data
    """new values of the recipe's state, those per sample (B, ...), by name"""


class Reduced(NamedTuple):
    """What all ranks have computed for an update, and the values of what its calls have moved, `before` them."""

    computed: Computed
    norm: tf.Tensor
    is_finite: tf.Tensor
    is_wanted: tf.Tensor
    before: Before


class StageStep:
    """Runs the steps of one stage; one graph is traced for each set of updates that are due together."""

    def __init__(self, recipe: Recipe, run_state: TrainState, stage: Stage, ranks: Ranks, config: Config) -> None:
        self._recipe, self._run_state, self.stage, self._ranks, self._config = recipe, run_state, stage, ranks, config
        self.networks = {**run_state.networks, **grown_of(recipe, run_state.networks, stage)}
        """the networks of this stage, which are parts of the run's own if the stage names a size"""
        self._stage_state = dataclasses.replace(run_state, networks=self.networks)
        self._first, past = ranks.slice_of(config.global_batch_size)
        self.count, self.micro_batches = past - self._first, config.accumulate
        """numbers of samples and of micro-batches in this rank's slice of the global batch"""
        # Rank r computes the mean loss L_r of its n_r samples. The mean over all N samples of the global batch is
        #     L = sum(n_r L_r) / N = sum(w_r L_r) / size   with the weight w_r = n_r size / N, 1 if slices are equal.
        # So each loss is multiplied by w_r / size, and Horovod adds up the gradients. That costs nothing; to divide the
        # sums would cost a pass over all of them. In float16 the smallest gradients would underflow, so there each loss
        # is multiplied by w_r alone, and Horovod divides the sums. Metrics are multiplied by w_r before their mean.
        self._weight = ranks.weights(config.global_batch_size)[ranks.rank]
        self._loss_factor = self._weight * ranks.loss_factor(config.compression)
        self._changed: dict[str, str] = {}
        """in the step that is being traced, the last update that has changed a network, by the network's name"""
        self.augments = False
        """whether a loss that was traced calls batch.augment"""
        self.traffic = {update.name: Traffic() for update in stage.updates}
        """what batch.mean, sum and gather send in each update, after trace()"""
        self.of_several: list[Mistake] = []
        """what several ranks would refuse of the losses that were traced"""
        self.metrics: set[str] = set()
        """names of the metrics, after trace()"""
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
            arguments = tf.constant(np.int64(step)), tf.constant(np.int64(stage_step)), used(data)
        # Call the concrete function: the tf.function would take a millisecond per step to find it.
        traced = self.traced.get(_names(due)) or self._trace(due, *arguments)
        return traced(*arguments)

    def trace(self, source: Samples) -> None:
        """Trace every graph of this stage now, so that a mistake in a loss does not wait until the stage begins."""
        data = specs_of(source, self.count, on_device=cpu_or_gpu.chosen().own_memory)
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
        """For each update: loss, gradients, reduce, finite?, apply; then the averages of the weights."""
        state, stage, ranks, config = self._stage_state, self.stage, self._ranks, self._config
        stage_step = to_device(stage_step)
        state.schedules.assign(stage, stage_step)
        at = functools.partial(state.schedules.at, stage=stage, stage_step=stage_step)
        compute = self._on_slice(due, step, data) if self.micro_batches == 1 else self._on_micro_batches(step, data)
        metrics, norms, finite, self._changed = Metrics(), Metrics(), Metrics(), {}
        # In a simultaneous step all updates are computed before one is applied, else each is applied before the next.
        for group in [due] if stage.together else [(update,) for update in due]:
            for update, found in zip(group, [self._reduced(each, compute) for each in group], strict=True):
                (gradients, measured, new_values), norm, is_finite = found.computed, found.norm, found.is_finite
                apply = functools.partial(apply_gradients, state, update, gradients, norm, at, config)
                applied = apply_if(is_finite, found.is_wanted, apply, found.before, undone_by(state, update))
                state.declared_state.assign(new_values, is_finite)
                scale = state.loss_scales.get(update.name)
                if scale or update.only_if is not None:
                    measured["applied"] = tf.cast(applied, tf.float32)
                if scale:
                    measured["loss_scale"] = scale.adapt(is_finite)
                finite[update.name], norms[f"{update.name}/gradient_norm"] = is_finite, norm
                metrics |= {f"{update.name}/{name}": value for name, value in measured.items()}
                self._changed |= dict.fromkeys(update.owns, update.name)
        if due:
            self._control(metrics, tf.reduce_all(list(finite.values())))
        changed = self._run_state.sharing.relatives
        of_updates = {k: [finite[u.name] for u in due if k in changed(u.owns)] for k in changed(stage.owns)}
        # Averages are of whole networks, also where the stage sees parts of them.
        move_averages(self._run_state, of_updates, to_device(step), config)
        if (seconds := ranks.waited()) is not None:
            metrics["reduce_seconds"] = seconds
        metrics = {**norms, **metrics}  # after the controls, which combine all metrics of all ranks
        return metrics, tf.convert_to_tensor(list(finite.values()), tf.bool)  # one, so that the host reads once

    def _reduced(self, update: Update, compute: Callable[[Update], Computed]) -> Reduced:
        """Compute an update, and average its gradients over the ranks."""
        state, ranks = self._stage_state, self._ranks
        ranks.activity.doing(f"tracing {self._where(update)}")
        # The forward pass moves statistics before it is known whether its loss is finite.
        before = values_of([v for name in update.owns for v in moved_in_calls(state.networks[name])])
        with self._scope(update):
            gradients, measured, new_values = compute(update)
            if update.reduce:
                gradients = ranks.reduced(gradients, self._config.compression)
            if scale := state.loss_scales.get(update.name):
                gradients = scale.unscaled(gradients)
            norm = global_norm(gradients)
            # Reduced gradients are the same on every rank; of a rank's own, all ranks apply theirs or none does.
            is_finite = tf.math.is_finite(norm if update.reduce else ranks.mean(0.0 * norm))
            is_wanted = tf.constant(True)
            if update.only_if is not None:
                is_wanted = decision_of(update.only_if, self._means(measured), self._where(update))
        if self.stage.together:  # the next update must not compute with statistics that are not finite
            apply_if(is_finite, tf.constant(True), lambda _: None, before, ())
            before = ()
        return Reduced(Computed(gradients, measured, new_values), norm, is_finite, is_wanted, before)

    def _on_slice(self, due: tuple[Update, ...], step: tf.Tensor, data: Data) -> Callable[[Update], Computed]:
        """Compute each update on this rank's whole slice; forward passes are shared between the updates of the step."""
        batch = self.batch_at(step, data)
        shared = SharedForward(self._stage_state.sharing, together=self.stage.together)
        # All tapes are open from the start: a later update may differentiate what an earlier one has computed.
        tapes = {update.name: self._tape(update) for update in due}

        def compute(update: Update) -> Computed:
            with shared.recorded(list(tapes.values())):
                loss, metrics, state = self._loss(update, batch, self._stage_state.declared_state.values(), shared)
            for name in update.owns:  # its optimizer may be about to change them
                shared.forget(name)
            return Computed(self._gradients(update, tapes.pop(update.name), loss), metrics, state)

        return compute

    def _on_micro_batches(self, step: tf.Tensor, data: Data) -> Callable[[Update], Computed]:
        """Compute each update as the mean over micro-batches, one at a time, so that only one is in memory."""
        count = self.micro_batches

        def compute(update: Update) -> Computed:
            # The loop must know the shapes of its results before it is built, so one round is traced first.
            one = tf.function(lambda number: self.on_micro_batch(update, step, data, number), autograph=False)
            specs = one.get_concrete_function(tf.TensorSpec((), tf.int32)).structured_outputs
            zeros = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), specs[:2])
            empty = {name: tf.zeros((count, *spec.shape), spec.dtype) for name, spec in specs[2].items()}

            def add(number: tf.Tensor, means: Any, states: Data) -> tuple[tf.Tensor, Any, Data]:
                *found, state = one(number)
                means = tf.nest.map_structure(lambda mean, value: mean + value / count, means, tuple(found))
                placed = {k: tf.tensor_scatter_nd_update(states[k], [[number]], state[k][None]) for k in state}
                return number + 1, means, placed

            # Without maximum_iterations: its "and" would be computed on the GPU, and each round would wait for it.
            start = tf.constant(0), tuple(zeros), empty
            _, means, states = tf.while_loop(lambda number, *_: number < count, add, start, parallel_iterations=1)
            return Computed(means[0], means[1], self._stage_state.declared_state.whole(states))

        return compute

    def on_micro_batch(self, update: Update, step: tf.Tensor, data: Data, number: tf.Tensor) -> Computed:
        """Compute an update on one micro-batch of this rank's slice, a scalar int32, with forward passes of its own."""
        count = self.micro_batches
        data = {name: tf.reshape(value, (count, -1, *value.shape[1:]))[number] for name, value in data.items()}
        batch, values = self.batch_at(step, data, number), self._stage_state.declared_state.values(number, count)
        with self._scope(update):
            with self._tape(update) as tape:
                loss, metrics, state = self._loss(update, batch, values)
            return Computed(self._gradients(update, tape, loss), metrics, state)

    def batch_at(self, step: tf.Tensor, data: Data, number: "int | tf.Tensor" = 0) -> Batch:
        """Crop and flip the samples of a micro-batch, and draw what all updates of the step share."""
        count, config = self.count // self.micro_batches, self._config
        if "labels" in data:
            data = {**data, "labels": tf.cast(data["labels"], tf.int32)}
        random = Random(config.seed, step, self._first + number * count, count, to_device=to_device)
        of_data = random.scoped("data")
        batch = prepare(self._recipe, data, random, f"stage {self.stage.name}: ", of_data)
        if self.stage.size is not None:
            batch.images = shrunk(batch.images, self.stage.size)
        flip_batch(batch, config.mirrored_axes, of_data)
        return batch

    def _loss(
        self, update: Update, prepared: Batch, values: Data, shared: SharedForward | None = None
    ) -> tuple[tf.Tensor, Metrics, Data]:
        """Compute an update's loss, scaled for the gradient, its metrics, among them the loss itself, and new state.

        values: the recipe's state by name, that per sample of the samples of `prepared`.
        """
        state, config, where = self._stage_state, self._config, self._where(update)
        batch = scoped(prepared, update.name)
        batch.state, batch.schedule = StateValues(values), state.schedules.read

        def augment(images: tf.Tensor, key: str) -> tf.Tensor:
            self.augments = True
            images = diff_augment(images, config.diff_augment, batch.random, key)
            if config.ada is None and "augment" not in state.schedules.variables:
                return images
            p = batch.schedule("augment") if config.ada is None else batch.state.ada[0]
            return ada.adaptive(images, p, batch.random, key)

        batch.augment = augment
        whole = WholeBatch(self._ranks, config, self._recipe.pack, update, where)
        batch.mean, batch.sum, batch.gather = whole.mean, whole.sum, whole.gather
        self.traffic[update.name] = whole.traffic
        of_calls: list[tuple[str, tf.Tensor | None]] = []
        nets = Nets(
            state.networks,
            frozen=state.frozen,
            owned=state.moved_by(update.owns),
            training=True,
            shared=shared,
            losses=of_calls,
            averages=self._run_state.sampling_values(),
        )
        versions, pack, of_step = self._changed, self._recipe.pack, vars(prepared).values()
        draws = LayerDraws(prepared.random, update.name, of_step, versions=versions, pack=pack, taped=True)
        loss, measured, new = loss_of(update.loss, nets, batch, where, draws)
        new = new_state(new, batch.state, f"{where}: the loss", update.loss)
        if of_networks := self._network_losses(update, of_calls):
            measured["network_losses"] = tf.add_n(of_networks)
            loss += measured["network_losses"]
        self._refuse_own_values(update, loss, new, prepared, values)
        metrics = {"loss": loss, **measured}
        # If the loss is not finite, make the gradients NaN too, so that no rank applies them.
        factor = self._loss_factor if update.reduce else 1.0
        loss *= tf.stop_gradient(tf.where(tf.math.is_finite(loss), factor, math.nan))
        scale = state.loss_scales.get(update.name)
        return loss if scale is None else loss * scale.value.value, metrics, new

    def _network_losses(self, update: Update, of_calls: list[tuple[str, tf.Tensor | None]]) -> list[tf.Tensor]:
        """The losses of the owned networks themselves: of each call, and of their weights once."""
        for name, loss in of_calls:
            if loss is None or loss.graph is not tf.compat.v1.get_default_graph():
                raise Mistake(
                    f"{self._where(update)}: network {name} has losses of its own (activity_regularizer, add_loss), "
                    "and is called in a branch, a loop or a function; call it outside of tf.cond or tf.recompute_grad",
                    update.loss,
                )
        of_weights = [v.regularizer(v) for v in self.variables(update) if v.regularizer is not None]
        return [tf.cast(loss, tf.float32) for loss in (*(loss for _, loss in of_calls), *of_weights)]

    def _refuse_own_values(self, update: Update, loss: tf.Tensor, new: Data, prepared: Batch, values: Data) -> None:
        """Refuse what must not depend on the samples of one rank or micro-batch; note it if there is one of each."""
        declared, count = self._stage_state.declared_state.declared, prepared.images.shape[0]
        read = [*vars(prepared).values(), *(values[name] for name in declared if declared[name].per_sample)]
        # What draw() gives without this first dimension is the same on all ranks.
        samples = [each for each in tf.nest.flatten(read) if tf.is_tensor(each) and each.shape[:1] == [count]]
        of_state = [*own_state(new, declared, samples, update, self._where(update))]
        reduced = [self.networks[name] for name in update.owns if update.reduce]
        self.of_several += [*of_state, *own_means(loss, reduced, samples, self._where(update))]
        if (self.of_several and self._ranks.size > 1) or (of_state and self.micro_batches > 1):
            raise self.of_several[0]

    def variables(self, update: Update) -> list[keras.Variable]:
        """The variables that the update computes gradients of: the trainable ones of its networks."""
        return [variable for some in parts(self.networks, update.owns).values() for variable in some]

    def _tape(self, update: Update) -> tf.GradientTape:
        tape = tf.GradientTape(watch_accessed_variables=False)
        with tape:
            tape.watch([variable.value for variable in self.variables(update)])
        return tape

    def _gradients(self, update: Update, tape: tf.GradientTape, loss: tf.Tensor) -> list[tf.Tensor]:
        """Compute dense gradients of the owned variables; refuse to leave one out, for which the ranks would wait."""
        gradients = tape.gradient(loss, [variable.value for variable in self.variables(update)])
        paths = [f"{v.path} of {name}" for name, some in parts(self.networks, update.owns).items() for v in some]
        if untouched := [path for path, gradient in zip(paths, gradients, strict=True) if gradient is None]:
            in_numpy = any(each.type.startswith("PyFunc") for each in tf.compat.v1.get_default_graph().get_operations())
            what = f"{self._where(update)}: the loss does not depend on {list_some(untouched)}"
            raise Mistake(f"{what}; {_OF_NUMPY if in_numpy else _OWN_LESS}", update.loss)
        return [tf.convert_to_tensor(gradient) for gradient in gradients]

    @contextlib.contextmanager
    def _scope(self, update: Update) -> Iterator[None]:
        """Name the operations after stage and update, by which Horovod matches the ranks' tensors, and errors, too."""
        try:
            with tf.name_scope(f"{self.stage.name}/{update.name}"), assigned_together(self._ranks, self._weight):
                yield
        except (LookupError, NotImplementedError) as error:
            if isinstance(error, KeyError | IndexError):
                raise
            hint = "; give recurrent layers use_cudnn=False" if "Cudnn" in str(error) else ""
            what = f"{self._where(update)}: its gradient cannot be computed: {error}{hint}"
            raise Mistake(what, update.loss) from None

    def _where(self, update: Update) -> str:
        """The update's stage and name, for messages."""
        return f"stage {self.stage.name}, update {update.name}"

    def _control(self, metrics: Metrics, finite: tf.Tensor) -> None:
        """Set the recipe's state, and that of --ada, from the metrics of all ranks, unless an update was not finite."""
        kept, config = self._stage_state.declared_state, self._config
        reported = None if config.ada is None else ada.sign_of(self.stage.updates, metrics)
        controls = type(self._recipe).control is not Recipe.control
        if not (controls or reported):
            return
        with tf.name_scope(f"{self.stage.name}/control"):
            means, values = self._means(metrics), kept.shared_values()
            if controls:
                kept.assign(controlled(self._recipe, values, means, f"stage {self.stage.name}"), finite)
            if reported:
                assert config.ada is not None
                change, (sign, every) = config.global_batch_size / config.ada_images, reported
                how: dict[str, Any] = {"target": config.ada, "change": change, "every": every}
                kept.assign({"ada": ada.next_state(values.ada, means[sign], finite, **how)}, tf.constant(True))
                metrics["ada/p"] = values.ada[0]

    def _means(self, measured: Metrics) -> Metrics:
        """The metrics as means over all samples of all ranks."""
        means = tf.unstack(self._ranks.mean(self._weight * tf.stack(list(measured.values()))))
        return dict(zip(measured, means, strict=True))


def used(data: Data) -> Data:
    """The tensors of a batch of data that a step computes with."""
    return {name: data[name] for name in data if name.startswith("arrays/") or not name.endswith("index")}


def _names(due: tuple[Update, ...]) -> tuple[str, ...]:
    return tuple(update.name for update in due)
