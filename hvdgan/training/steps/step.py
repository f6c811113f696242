"""The step of a stage, one tf.function: forward, the owned variables' gradients, reduce, apply."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from hvdgan.cli.config import Config
from hvdgan.distributed.ranks import Ranks
from hvdgan.distributed.tapes import OwnedTape, Untouched, tape_of_gradients
from hvdgan.recipe.augment import diff_augment, flip
from hvdgan.recipe.draws import Random
from hvdgan.recipe.mistakes import Mistake
from hvdgan.recipe.nets import Forwards, Nets
from hvdgan.recipe.recipe import Batch, Recipe, split_pairs
from hvdgan.recipe.returned import drawn_by, loss_of, verdict_of
from hvdgan.recipe.stages import Stage, Update
from hvdgan.training.state import TrainState, averaged_variables
from hvdgan.training.steps import remapper
from hvdgan.training.steps.optimizers import apply_gradients
from hvdgan.training.steps.repeatable import refuse_unrepeatable

Metrics = dict[str, tf.Tensor]
Data = dict[str, tf.Tensor]


class StageStep:
    """Runs the steps of one stage; traced once for each set of updates that fall due together.

    Args:
        recipe: draws what a batch needs and holds the losses.
        state: what the step changes.
        stage: whose updates run.
        ranks: over which gradients are averaged.
        config: seed, batch, average, accumulation and augmentation are used.
    """

    def __init__(self, recipe: Recipe, state: TrainState, stage: Stage, ranks: Ranks, config: Config) -> None:
        self.recipe = recipe
        self.state = state
        self.stage = stage
        self.ranks = ranks
        self.config = config
        self.augments = False
        """whether some loss that was traced augments what the discriminator sees"""
        self.metrics: set[str] = set()
        """the names of the metrics, once trace() has been called"""
        first, last = ranks.slice_of(config.global_batch_size)
        self._first, self._count = first, last - first
        self._weight = ranks.weights(config.global_batch_size)[ranks.rank]
        self._functions: dict[tuple[str, ...], tf.types.experimental.PolymorphicFunction] = {}
        self._traced: dict[tuple[str, ...], tf.types.experimental.ConcreteFunction] = {}

    def __call__(self, step: int, stage_step: int, data: Data) -> tuple[Metrics, Metrics]:
        """Run one step.

        Args:
            step: the global step, from 0.
            stage_step: the step within the stage, from 0.
            data: images (B, H, W, C) uint8, or (B, H, W, 2C) where the recipe is paired, and labels (B,) int32 where
                the data has them.

        Returns:
            Metrics, scalars by <update>/<name>, and for each update whether its loss and gradients were finite on
            every rank. Those that were not have changed nothing but the loss scale.

        Raises:
            Mistake: where trace() was not called, what it raises.
        """
        due = self.stage.due(stage_step)
        data = {name: data[name] for name in ("images", "labels") if name in data}
        arguments = tf.constant(step, tf.int64), tf.constant(stage_step, tf.int64), data
        # The trace itself: the function would look for one that fits at every call, which takes a millisecond.
        traced = self._traced.get(_names(due)) or self._trace(due, *arguments)
        return traced(*arguments)

    def trace(self, image_size: int, channels: int, *, labelled: bool) -> None:
        """Trace all that this stage will run: a mistake in its losses must not wait for hours until the stage begins.

        Args:
            image_size: pixels.
            channels: of an image.
            labelled: whether the data has labels.

        Raises:
            Mistake: a loss fails, is no scalar, or does not touch a variable that its update owns, or no update has
                the metric whose plateau ends the stage.
        """
        channels *= 2 if self.recipe.paired else 1
        data = {"images": tf.TensorSpec((self._count, image_size, image_size, channels), tf.uint8)}
        if labelled:
            data["labels"] = tf.TensorSpec((self._count,), tf.int32)
        number = tf.TensorSpec((), tf.int64)
        cycle = math.lcm(*(update.every for update in self.stage.updates))
        for stage_step in range(min(self.stage.steps, cycle)):
            if due := self.stage.due(stage_step):
                self.metrics |= self._trace(due, number, number, data).structured_outputs[0].keys()
        until = self.stage.until
        if until and until.metric not in self.metrics:
            raise Mistake(
                f"stage {self.stage.name}: it ends on a plateau of {until.metric}, and its metrics are "
                f"{', '.join(sorted(self.metrics))}",
                self.stage,
            )

    def _trace(self, due: tuple[Update, ...], *arguments: Any) -> "tf.types.experimental.ConcreteFunction":
        traced = self.function(due).get_concrete_function(*arguments)
        recipe = f"recipe {type(self.recipe).__name__}"
        scopes = {f"{self.stage.name}/{update.name}": f"{recipe}, {self.where(update)}" for update in due}
        saved = self.state.tensors().values()
        refuse_unrepeatable(traced, saved, f"{recipe}, stage {self.stage.name}", scopes)
        self._traced[_names(due)] = traced
        remapper.switch_off_if_it_fails(traced.graph)
        return traced

    def function(self, due: tuple[Update, ...]) -> "tf.types.experimental.PolymorphicFunction":
        """The step in which exactly these updates run."""
        key = _names(due)
        if key not in self._functions:

            def run(step: tf.Tensor, stage_step: tf.Tensor, data: Data) -> tuple[Metrics, Metrics]:
                return self._run(due, step, stage_step, data)

            self._functions[key] = tf.function(run, autograph=False)
        return self._functions[key]

    def _run(
        self, due: tuple[Update, ...], step: tf.Tensor, stage_step: tf.Tensor, data: Data
    ) -> tuple[Metrics, Metrics]:
        metrics: Metrics = {}
        finite: Metrics = {}
        compute = _InTurn(self, due, step, data) if self.config.accumulate == 1 else _InParts(self, step, data)
        for update in due:
            # A forward pass moves statistics before anybody knows whether it was finite.
            before = [(v, v.value.read_value()) for name in update.owns for v in self._moving(name)]
            gradients, measured = compute(update)
            finite[update.name], more = self._apply(update, gradients, measured, stage_step, before)
            metrics.update({f"{update.name}/{name}": value for name, value in {**measured, **more}.items()})
        self._average({name: [finite[u.name] for u in due if name in u.owns] for name in self.state.ema}, step)
        return metrics, finite

    def random(self, step: tf.Tensor, part: "int | tf.Tensor" = 0) -> Random:
        """The draws of a micro-batch of this rank's slice."""
        count = self._count // self.config.accumulate
        return Random(self.config.seed, step, self._first + part * count, count)

    def prepare(self, data: Data, random: Random) -> tuple[Data, Metrics]:
        """What all updates of a step share: the images as they see them, and the recipe's draws."""
        pixels = data["images"]
        if self.config.flip:
            pixels = flip(pixels, random.scoped("data"))
        inputs, images = split_pairs(pixels, paired=self.recipe.paired)
        drawn = drawn_by(self.recipe, random.scoped("draw"), f"stage {self.stage.name}: ")
        return {**data, "images": images, "inputs": inputs}, drawn

    def loss(
        self, update: Update, data: Data, random: Random, drawn: Metrics, forwards: Forwards | None
    ) -> tuple[tf.Tensor, Metrics]:
        """An update's loss, scaled where there is a loss scale, and its metrics, the loss itself among them."""

        def augment(images: tf.Tensor, key: str) -> tf.Tensor:
            self.augments = True
            return diff_augment(images, self.config.diff_augment, random.scoped(update.name), key)

        batch = Batch(
            data["images"],
            data.get("labels"),
            random.scoped(update.name),
            drawn,
            inputs=data["inputs"],
            augment=augment,
        )
        nets = Nets(self.state.networks, owned=update.owns, training=True, forwards=forwards)
        loss, measured = loss_of(update.loss, nets, batch, self.where(update))
        metrics = {"loss": loss, **measured}
        # Gradients may be finite where the loss is not: they must not be.
        # The reduced gradient is that of the mean over all samples, also where the ranks' slices are not equal.
        factor = self._weight * self.ranks.loss_factor(self.config.compression)
        loss *= tf.stop_gradient(tf.where(tf.math.is_finite(loss), factor, math.nan))
        scale = self.state.loss_scales.get(update.name)
        return loss if scale is None else loss * scale.value.value, metrics

    def diagnose(self, name: str, step: int, data: Data) -> list[str]:
        """What is not finite in an update on this rank: `loss` or variables by path; every rank calls it.

        Args:
            name: of the update.
            step: the global step that was skipped.
            data: of that step.
        """
        update = next(update for update in self.stage.updates if update.name == name)
        data = {key: data[key] for key in ("images", "labels") if key in data}

        def look() -> tuple[tf.Tensor, list[tf.Tensor]]:
            parts = _InParts(self, tf.constant(step, tf.int64), data)
            gradients, metrics = parts.one(update, tf.constant(0))
            return tf.math.is_finite(metrics["loss"]), [tf.reduce_all(tf.math.is_finite(g)) for g in gradients]

        loss, gradients = tf.function(look, autograph=False)()
        paths = [variable.path for variable in self.variables(update)]
        bad = [path for path, finite in zip(paths, gradients, strict=True) if not finite.numpy()]
        return bad if loss.numpy() else ["loss", *bad]

    def variables(self, update: Update) -> list[keras.Variable]:
        """What the update computes gradients of."""
        return [v for name in update.owns for v in self.state.networks[name].trainable_variables]

    def reduced(self, tape: tf.GradientTape, loss: tf.Tensor, update: Update) -> list[tf.Tensor]:
        """The update's gradients, averaged over the ranks."""
        return self.ranks.reduced_gradients(tape, loss, self.variables(update), self.config.compression)

    def where(self, update: Update) -> str:
        """The update's place, for messages."""
        return f"stage {self.stage.name}, update {update.name}"

    def scope(self, update: Update) -> Any:
        """The name scope of an update: Horovod matches the ranks' tensors by name, and no two updates may share one."""
        return tf.name_scope(f"{self.stage.name}/{update.name}")

    def _moving(self, network: str) -> list[keras.Variable]:
        """What a network's own forward pass may move."""
        return self.state.networks[network].non_trainable_variables

    def _apply(
        self,
        update: Update,
        gradients: Sequence[tf.Tensor],
        measured: Metrics,
        stage_step: tf.Tensor,
        before: Sequence[tuple[keras.Variable, tf.Tensor]],
    ) -> tuple[tf.Tensor, Metrics]:
        """Step where the gradients are finite, else take back what the forward pass moved.

        Reduced gradients are the same on every rank, and so is the verdict.
        """
        scale = self.state.loss_scales.get(update.name)
        if scale is not None:
            gradients = [gradient / scale.value.value for gradient in gradients]
        norm = tf.sqrt(2.0 * tf.add_n([tf.nn.l2_loss(gradient) for gradient in gradients]))
        finite = tf.math.is_finite(norm)
        wanted = self._wanted(update, measured)

        def apply() -> tf.Tensor:
            apply_gradients(
                self.state,
                update,
                gradients,
                norm,
                stage_step=stage_step,
                stage_steps=self.stage.steps,
                rate_factor=self.config.rate_factor,
            )
            return tf.constant(True)

        def take_back() -> tf.Tensor:
            for variable, value in before:
                variable.assign(value)
            return tf.constant(False)

        applied = tf.cond(finite & wanted, apply, lambda: tf.cond(finite, lambda: tf.constant(False), take_back))
        more = {} if update.only_if is None and scale is None else {"applied": tf.cast(applied, tf.float32)}
        if scale is None:
            return finite, more
        used = tf.identity(scale.value.value)
        scale.adapt(finite)
        return finite, {**more, "loss_scale": used}

    def _wanted(self, update: Update, measured: Metrics) -> tf.Tensor:
        """What only_if says of the metrics of all ranks."""
        if update.only_if is None:
            return tf.constant(True)
        with self.scope(update):
            means = tf.unstack(self.ranks.mean(self._weight * tf.stack(list(measured.values()))))
        return verdict_of(update.only_if, dict(zip(measured, means, strict=True)), self.where(update))

    def _average(self, finite: dict[str, list[tf.Tensor]], step: tf.Tensor) -> None:
        """Move the averages of networks of which an update was finite, of those that were due."""
        # The first weights are noise: the average forgets them sooner (as in TensorFlow's ExponentialMovingAverage).
        done = tf.cast(step, tf.float32)
        decay = tf.minimum(self.config.ema_decay, (1.0 + done) / (10.0 + done))
        for name in sorted(name for name, verdicts in finite.items() if verdicts):
            alpha = tf.where(tf.reduce_any(finite[name]), 1.0 - decay, 0.0)
            variables = averaged_variables(self.state.networks[name])
            for average, variable in zip(self.state.ema[name], variables, strict=True):
                # average -= (1 - decay) (average - variable), the product and the difference in one pass
                tf.raw_ops.ResourceApplyGradientDescent(
                    var=average.value.handle, alpha=alpha, delta=average.value - variable.value
                )


def _names(due: tuple[Update, ...]) -> tuple[str, ...]:
    return tuple(update.name for update in due)


class _InTurn:
    """The reduced gradients of one update after another, on the whole slice; unchanged networks run once for all."""

    def __init__(self, step: StageStep, due: Sequence[Update], number: tf.Tensor, data: Data) -> None:
        self._step = step
        self._random = step.random(number)
        self._data, self._drawn = step.prepare(data, self._random)
        self._forwards = Forwards()
        # All are open from the start: a later update may differentiate what an earlier one has computed.
        self._tapes = {update.name: OwnedTape(watch_accessed_variables=False) for update in due}
        for update in due:
            with self._tapes[update.name] as tape:
                tape.watch([variable.value for variable in step.variables(update)])

    def __call__(self, update: Update) -> tuple[list[tf.Tensor], Metrics]:
        step = self._step
        with step.scope(update):
            with self._forwards.recorded(list(self._tapes.values())):
                loss, metrics = step.loss(update, self._data, self._random, self._drawn, self._forwards)
            try:
                gradients = step.reduced(self._tapes.pop(update.name), loss, update)
            except Untouched as error:
                raise Mistake(f"{step.where(update)}: {error}", update.loss) from None
        for name in update.owns:
            self._forwards.forget(name)
        return gradients, metrics


class _InParts:
    """The reduced gradients of an update from micro-batches, one in memory at a time, and one reduction for all."""

    def __init__(self, step: StageStep, number: tf.Tensor, data: Data) -> None:
        self._step = step
        self._number = number
        parts = step.config.accumulate
        self._data = {name: tf.reshape(value, (parts, -1, *value.shape[1:])) for name, value in data.items()}

    def __call__(self, update: Update) -> tuple[list[tf.Tensor], Metrics]:
        step, parts = self._step, self._step.config.accumulate
        part_spec = tf.TensorSpec((), tf.int32)
        # A function of its own: its outputs, which the loop must know beforehand, are known before the loop is made.
        one = tf.function(lambda part: self.one(update, part), autograph=False)
        shapes = one.get_concrete_function(part_spec).structured_outputs
        zeros = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), shapes)

        def add(part: tf.Tensor, sums: Any) -> tuple[tf.Tensor, Any]:
            return part + 1, tf.nest.map_structure(lambda total, value: total + value / parts, sums, one(part))

        first = tf.constant(0)
        _, (gradients, metrics) = tf.while_loop(
            lambda part, _: part < parts, add, (first, zeros), parallel_iterations=1, maximum_iterations=parts
        )
        with step.scope(update):
            tape = tape_of_gradients(gradients)
            return step.reduced(tape, tf.constant(0.0), update), metrics

    def one(self, update: Update, part: tf.Tensor) -> tuple[list[tf.Tensor], Metrics]:
        """This rank's gradients and metrics of one micro-batch."""
        step = self._step
        random = step.random(self._number, part)
        data, drawn = step.prepare({name: value[part] for name, value in self._data.items()}, random)
        variables = step.variables(update)
        with step.scope(update), OwnedTape(watch_accessed_variables=False) as tape:
            tape.watch([variable.value for variable in variables])
            loss, metrics = step.loss(update, data, random, drawn, None)
        try:
            gradients = tape.gradient(loss, [variable.value for variable in variables])
        except Untouched as error:
            raise Mistake(f"{step.where(update)}: {error}", update.loss) from None
        return [tf.convert_to_tensor(gradient) for gradient in gradients], metrics
