"""The step of a stage, one tf.function: forward, the owned variables' gradients, reduce, apply."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from hvdgan.distributed import Ranks
from hvdgan.draws import Random
from hvdgan.errors import UserError
from hvdgan.nets import Nets
from hvdgan.recipe import Batch, Recipe, split_pairs
from hvdgan.stages import LearningRate, Stage, Update
from hvdgan.state import TrainState, averaged_variables

Metrics = dict[str, tf.Tensor]


class OwnedTape(tf.GradientTape):
    """A tape that refuses, before anything is reduced, variables that the loss does not depend on.

    Horovod passes a None gradient through, and one that is None on some ranks only is a stall.
    """

    def gradient(self, target: tf.Tensor, sources: Sequence[tf.Variable], *others: Any, **more: Any) -> list[tf.Tensor]:
        """As tf.GradientTape.gradient; raises UserError naming the untouched variables."""
        gradients = super().gradient(target, sources, *others, **more)
        untouched = [s.name.removesuffix(":0") for s, g in zip(sources, gradients, strict=True) if g is None]
        if untouched:
            named = ", ".join(untouched[:5]) + (f" and {len(untouched) - 5} more" if len(untouched) > 5 else "")
            raise UserError(
                f"the loss does not depend on {named}; own only networks that the loss calls, or set trainable=False "
                "on what it leaves out"
            )
        return gradients


class StageStep:
    """Runs the steps of one stage; traced once for each set of updates that fall due together.

    Args:
        recipe: draws what a batch needs and holds the losses.
        state: what the step changes.
        stage: whose updates run.
        ranks: over which gradients are averaged.
        seed: of the run.
        global_batch_size: images per step over all ranks.
        ema_decay: of the averaged networks, per step.
    """

    def __init__(
        self,
        recipe: Recipe,
        state: TrainState,
        stage: Stage,
        ranks: Ranks,
        *,
        seed: int,
        global_batch_size: int,
        ema_decay: float,
    ) -> None:
        self.recipe = recipe
        self.state = state
        self.stage = stage
        self.ranks = ranks
        self.seed = seed
        self.global_batch_size = global_batch_size
        self.ema_decay = ema_decay
        self._functions: dict[tuple[str, ...], tf.types.experimental.PolymorphicFunction] = {}

    def __call__(self, step: int, stage_step: int, data: dict[str, tf.Tensor]) -> tuple[Metrics, Metrics]:
        """Run one step.

        Args:
            step: the global step, from 0.
            stage_step: the step within the stage, from 0.
            data: images (B, H, W, C) uint8, or (B, H, W, 2C) where the recipe is paired, and labels (B,) int32 where
                the data has them.

        Returns:
            Metrics, scalars by <update>/<name>, and for each update whether its gradients were finite on every rank;
            an update with other gradients changed no weight.

        Raises:
            UserError: where trace() was not called, what it raises.
        """
        due = self.stage.due(stage_step)
        data = {name: data[name] for name in ("images", "labels") if name in data}
        return self.function(due)(tf.constant(step, tf.int64), tf.constant(stage_step, tf.int64), data)

    def trace(self, image_size: int, channels: int, *, labelled: bool) -> None:
        """Trace all that this stage will run: a mistake in its losses must not wait for hours until the stage begins.

        Args:
            image_size: pixels.
            channels: of an image.
            labelled: whether the data has labels.

        Raises:
            UserError: a loss is no scalar, or does not touch a variable that its update owns.
        """
        first, last = self.ranks.slice_of(self.global_batch_size)
        if self.recipe.paired:
            channels *= 2
        data = {"images": tf.TensorSpec((last - first, image_size, image_size, channels), tf.uint8)}
        if labelled:
            data["labels"] = tf.TensorSpec((last - first,), tf.int32)
        number = tf.TensorSpec((), tf.int64)
        cycle = math.lcm(*(update.every for update in self.stage.updates))
        for stage_step in range(min(self.stage.steps, cycle)):
            if due := self.stage.due(stage_step):
                self.function(due).get_concrete_function(number, number, data)

    def function(self, due: tuple[Update, ...]) -> "tf.types.experimental.PolymorphicFunction":
        """The traced step in which exactly these updates run."""
        key = tuple(update.name for update in due)
        if key not in self._functions:

            def run(step: tf.Tensor, stage_step: tf.Tensor, data: dict[str, tf.Tensor]) -> tuple[Metrics, Metrics]:
                return self._run(due, step, stage_step, data)

            self._functions[key] = tf.function(run, autograph=False)
        return self._functions[key]

    def _run(
        self, due: tuple[Update, ...], step: tf.Tensor, stage_step: tf.Tensor, data: dict[str, tf.Tensor]
    ) -> tuple[Metrics, Metrics]:
        random = Random(self.seed, step, self.ranks.rank, self.ranks.size, self.global_batch_size)
        inputs, images = split_pairs(data["images"], paired=self.recipe.paired)
        drawn = self.recipe.draw(random.scoped("draw"))
        metrics: Metrics = {}
        finite: Metrics = {}
        for update in due:
            batch = Batch(images, data.get("labels"), random.scoped(update.name), drawn, inputs=inputs)
            # Horovod matches the ranks' tensors by name: no two updates may share one.
            with tf.name_scope(f"{self.stage.name}/{update.name}"):
                measured, finite[update.name] = self._update(update, batch, stage_step)
            metrics.update({f"{update.name}/{name}": value for name, value in measured.items()})
        self._average({name for update in due for name in update.owns}, step)
        return metrics, finite

    def _update(self, update: Update, batch: Batch, stage_step: tf.Tensor) -> tuple[Metrics, tf.Tensor]:
        variables = [v for name in update.owns for v in self.state.networks[name].trainable_variables]
        where = f"stage {self.stage.name}, update {update.name}"
        with OwnedTape(watch_accessed_variables=False) as tape:
            tape.watch([variable.value for variable in variables])
            loss, measured = update.loss(Nets(self.state.networks, owned=update.owns, training=True), batch)
            loss = tf.convert_to_tensor(loss)
        if loss.shape.rank != 0:
            raise UserError(
                f"{where}: the loss has shape {tuple(loss.shape)}; it must be a scalar, the mean over the batch"
            )
        try:
            gradients = self.ranks.reduced_gradients(tape, loss, variables)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        # Reduced gradients are the same on every rank, and so is the verdict.
        norm = tf.sqrt(2.0 * tf.add_n([tf.nn.l2_loss(gradient) for gradient in gradients]))
        finite = tf.math.is_finite(norm)

        def apply() -> tf.Tensor:
            self._apply(update, gradients, norm, stage_step)
            return tf.constant(True)

        finite = tf.cond(finite, apply, lambda: tf.constant(False))
        if "loss" in measured:
            raise UserError(f"{where}: a metric is named loss, as the loss itself is; rename it")
        return {"loss": loss, **{name: tf.cast(value, tf.float32) for name, value in measured.items()}}, finite

    def _apply(self, update: Update, gradients: list[tf.Tensor], norm: tf.Tensor, stage_step: tf.Tensor) -> None:
        """One step of each owned network's optimizer, with the update's rate, decays and clipping."""
        if update.clip_norm is not None:
            scale = update.clip_norm / tf.maximum(norm, update.clip_norm)
            gradients = [gradient * scale for gradient in gradients]
        begin = 0
        for name in update.owns:
            optimizer, variables = self.state.optimizers[name], self.state.networks[name].trainable_variables
            rate = self.state.learning_rates.get(name) if update.learning_rate is None else update.learning_rate
            if rate is not None:
                optimizer.learning_rate.assign(rate_at(rate, stage_step, self.stage.steps))
            with _betas(optimizer, update.betas):
                optimizer.apply(gradients[begin : begin + len(variables)], variables)
            begin += len(variables)

    def _average(self, owned: set[str], step: tf.Tensor) -> None:
        # The first weights are noise: the average forgets them sooner (as in TensorFlow's ExponentialMovingAverage).
        done = tf.cast(step, tf.float32)
        decay = tf.minimum(self.ema_decay, (1.0 + done) / (10.0 + done))
        for name in sorted(owned & self.state.ema.keys()):
            variables = averaged_variables(self.state.networks[name])
            for average, variable in zip(self.state.ema[name], variables, strict=True):
                average.value.assign_sub((1.0 - decay) * (average.value - variable.value))


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
