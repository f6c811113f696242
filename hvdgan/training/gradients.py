"""This rank's losses of an update and their gradients: of the whole slice at once, or the mean over micro-batches."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from hvdgan.distributed.ranks import Ranks
from hvdgan.distributed.reduction import OwnedTape, UntouchedVariables, tape_of_gradients
from hvdgan.networks.device import to_device
from hvdgan.networks.layer_state import averages_of
from hvdgan.recipe import Batch, Recipe
from hvdgan.recipe.ada import adaptive
from hvdgan.recipe.augment import diff_augment, flip, flip_axes
from hvdgan.recipe.batch import Domain, Parts, scoped, shrunk
from hvdgan.recipe.contract import loss_of, new_state, prepare, reads
from hvdgan.recipe.draws import Random
from hvdgan.recipe.nets import Nets, SharedForward
from hvdgan.recipe.recipe_errors import Mistake
from hvdgan.recipe.stages import Stage, Update
from hvdgan.recipe.state import StateValues
from hvdgan.settings.config import Config
from hvdgan.training.train_state import TrainState

Metrics = dict[str, tf.Tensor]
Data = dict[str, tf.Tensor]
_OWN_LESS = "own only networks that the loss calls, or set trainable=False on the variables that it leaves out"
_OF_NUMPY = "a tf.numpy_function has no gradient: use TensorFlow's operations, or a tf.py_function of them"


class Forward:
    """Computes the losses of one stage, on this rank's slice of the global batch or on a micro-batch of it."""

    def __init__(
        self, recipe: Recipe, state: TrainState, whole: TrainState, stage: Stage, ranks: Ranks, config: Config
    ) -> None:
        self.augments = False
        """whether a loss that was traced calls batch.augment"""
        self.micro_batches = config.accumulate
        """number of micro-batches in this rank's slice"""
        first, past = ranks.slice_of(config.global_batch_size)
        self._first, self.count = first, past - first
        """number of samples in this rank's slice"""
        self._recipe, self._state, self._stage, self._config = recipe, state, stage, config
        self._whole, self._size = whole, ranks.size
        self.of_several: list[Mistake] = []
        """what several ranks would refuse of the losses that were traced"""
        self.weight = ranks.weights(config.global_batch_size)[ranks.rank]
        """factor of this rank's means, so that the mean over ranks is the mean over all samples"""
        self._factor = self.weight * ranks.loss_factor(config.compression)

    def prepare(self, step: tf.Tensor, data: Data, part: "int | tf.Tensor" = 0) -> Batch:
        """Crop and flip the samples of a micro-batch, and draw what all updates of the step share."""
        count = self.count // self.micro_batches
        if "labels" in data:
            data = {**data, "labels": tf.cast(data["labels"], tf.int32)}
        random = Random(self._config.seed, step, self._first + part * count, count, to_device=to_device)
        of_data = random.scoped("data")
        batch = prepare(self._recipe, data, random, f"stage {self._stage.name}: ", of_data)
        if self._stage.size is not None:
            batch.images = shrunk(batch.images, self._stage.size)
        parts, axes = Parts(batch.images, batch.inputs, batch.constants), flip_axes(self._config)
        batch.images, batch.inputs, batch.constants = flip(parts, axes, of_data)
        for number, (name, each) in enumerate(batch.domains.items()):
            flipped = flip(Parts(each.images), axes, of_data.scoped(name)).images if number else batch.images
            batch.domains[name] = Domain(flipped, each.labels, each.conditions)
        return batch

    def loss(
        self, update: Update, prepared: Batch, shared: SharedForward | None, state: Data
    ) -> tuple[tf.Tensor, Metrics, Metrics]:
        """Compute an update's loss, scaled for the gradient, its metrics, among them the loss itself, and new state.

        state: the recipe's state by name, that per sample of the samples of `prepared`.
        """
        batch = scoped(prepared, update.name)
        batch.state = StateValues(state)

        def augment(images: tf.Tensor, key: str) -> tf.Tensor:
            self.augments = True
            images = diff_augment(images, self._config.diff_augment, batch.random, key)
            return images if self._config.ada is None else adaptive(images, batch.state.ada[0], batch.random, key)

        batch.augment = augment
        of_calls: list[tuple[str, tf.Tensor | None]] = []
        networks, frozen = self._state.networks, self._state.frozen
        owned, averages = update.owns, self._whole.sampling_values()
        nets = Nets(
            networks, frozen=frozen, owned=owned, training=True, shared=shared, losses=of_calls, averages=averages
        )
        loss, measured, moved = loss_of(update.loss, nets, batch, self.where(update))
        what, declared = f"{self.where(update)}: the loss", self._state.declared_state.declared
        moved = new_state(moved, declared, batch.state, what, update.loss, per_sample=True)
        if of_networks := self._of_networks(update, of_calls):
            measured["network_losses"] = tf.add_n(of_networks)
            loss += measured["network_losses"]
        self._refuse_own_averages(update, loss, prepared)
        metrics = {"loss": loss, **measured}
        # If the loss is not finite, make the gradients NaN too, so that no rank applies them.
        loss *= tf.stop_gradient(tf.where(tf.math.is_finite(loss), self._factor if update.reduce else 1.0, math.nan))
        scale = self._state.loss_scales.get(update.name)
        return loss if scale is None else loss * scale.value.value, metrics, moved

    def _refuse_own_averages(self, update: Update, loss: tf.Tensor, prepared: Batch) -> None:
        """Refuse, or note if there is one rank, averages over a rank's own samples that the loss reads."""
        captured = {id(outer): inner for outer, inner in loss.graph.captures}
        samples = [each for each in tf.nest.flatten([*vars(prepared).values()]) if tf.is_tensor(each)]
        shared = [self._state.networks[name] for name in update.owns if update.reduce]
        for layer, variable in (each for network in shared for each in averages_of(network)):
            read = captured.get(id(variable.value.handle))
            found = (each for each in loss.graph.get_operations() if each.type.startswith("Assign"))
            new = [each.inputs[1] for each in found if each.inputs[0] is read]
            if new and reads(loss, read) and any(reads(each, part, "Horovod") for each in new for part in samples):
                what = f"{self.where(update)}: the loss reads {variable.path}, a mean over the samples of one rank"
                self.of_several.append(Mistake(f"{what}; train it as a weight (docs/recipes.md)", type(layer)))
                if self._size > 1:
                    raise self.of_several[0]

    def _of_networks(self, update: Update, of_calls: list[tuple[str, tf.Tensor | None]]) -> list[tf.Tensor]:
        """The losses of the owned networks themselves: of each call, and of their weights once."""
        for name, loss in of_calls:
            if loss is None or loss.graph is not tf.compat.v1.get_default_graph():
                raise Mistake(
                    f"{self.where(update)}: network {name} has losses of its own (activity_regularizer, add_loss), and "
                    "is called in a branch, a loop or a function; call it outside of tf.cond or tf.recompute_grad",
                    update.loss,
                )
        of_weights = [v.regularizer(v) for v in self.variables(update) if v.regularizer is not None]
        return [tf.cast(loss, tf.float32) for loss in (*(loss for _, loss in of_calls), *of_weights)]

    def state(self, part: "int | tf.Tensor" = 0) -> Data:
        """The values of the recipe's state for a micro-batch."""
        return self._state.declared_state.values(part, self.micro_batches)

    def variables(self, update: Update) -> list[keras.Variable]:
        """The variables that the update computes gradients of: the trainable ones of its networks."""
        return [v for name in update.owns for v in self._state.networks[name].trainable_variables]

    @contextlib.contextmanager
    def scope(self, update: Update) -> Iterator[None]:
        """Name the operations after stage and update, and let an error about untouched variables name these.

        Horovod matches the ranks' tensors by name, so no two updates may share a name.
        """
        try:
            with tf.name_scope(f"{self._stage.name}/{update.name}"):
                yield
        except UntouchedVariables as error:
            networks = self._state.networks
            paths = [f"{v.path} of {name}" for name in update.owns for v in networks[name].trainable_variables]
            untouched = [paths[index] for index in error.indices]
            named = ", ".join(untouched[:5]) + (f" and {len(untouched) - 5} more" if len(untouched) > 5 else "")
            in_numpy = any(each.type.startswith("PyFunc") for each in tf.compat.v1.get_default_graph().get_operations())
            what = f"{self.where(update)}: the loss does not depend on {named}"
            raise Mistake(f"{what}; {_OF_NUMPY if in_numpy else _OWN_LESS}", update.loss) from None
        except (LookupError, NotImplementedError) as error:
            if isinstance(error, KeyError | IndexError):
                raise
            hint = "; give recurrent layers use_cudnn=False" if "Cudnn" in str(error) else ""
            raise Mistake(
                f"{self.where(update)}: its gradient cannot be computed: {error}{hint}", update.loss
            ) from None

    def where(self, update: Update) -> str:
        """The update's stage and name, for messages."""
        return f"stage {self._stage.name}, update {update.name}"


def used(data: Data) -> Data:
    """The tensors of a batch of data that a step computes with."""
    return {name: data[name] for name in data if not name.endswith("index")}


class Local(NamedTuple):
    """A tape that returns this rank's gradients (Horovod wraps tapes alone), and the loss to call it with.

    metrics: scalars by name.
    moved: new values of the recipe's state for this rank's slice, (B, ...) by name.
    """

    tape: tf.GradientTape
    loss: tf.Tensor
    metrics: Metrics
    moved: Metrics


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
            loss, metrics, moved = self._forward.loss(update, self._prepared, self._shared, self._forward.state())
        for name in update.owns:  # its optimizer is about to change them
            self._shared.forget(name)
        return Local(self._tapes.pop(update.name), loss, metrics, moved)


class MicroBatches:
    """Computes an update's gradients on one micro-batch at a time, so that only one is in memory."""

    def __init__(self, forward: Forward, step: tf.Tensor, data: Data) -> None:
        self._forward, self._step = forward, step
        self._parts = forward.micro_batches
        self._data = {name: tf.reshape(value, (self._parts, -1, *value.shape[1:])) for name, value in data.items()}

    def __call__(self, update: Update) -> Local:
        """Compute the update's gradients, the mean over all micro-batches."""
        # The loop must know the shapes of its results before it is built, so one round is traced first.
        one = tf.function(lambda part: self.one(update, part), autograph=False)
        shapes = one.get_concrete_function(tf.TensorSpec((), tf.int32)).structured_outputs
        of_sums, of_state = shapes[:2], shapes[2]
        zeros = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), of_sums)
        moved = {name: tf.zeros((self._parts, *spec.shape), spec.dtype) for name, spec in of_state.items()}

        def add(part: tf.Tensor, sums: Any) -> tuple[tf.Tensor, Any]:
            *found, new = one(part)
            total = tf.nest.map_structure(lambda total, value: total + value / self._parts, sums[0], tuple(found))
            placed = {name: tf.tensor_scatter_nd_update(sums[1][name], [[part]], new[name][None]) for name in new}
            return part + 1, (total, placed)

        start, parts = (tf.constant(0), (zeros, moved)), self._parts
        # Without maximum_iterations: its "and" would be computed on the GPU, and each round would wait for it.
        _, (sums, moved) = tf.while_loop(lambda part, _: part < parts, add, start, parallel_iterations=1)
        whole = {name: tf.reshape(value, (-1, *value.shape[2:])) for name, value in moved.items()}
        return Local(tape_of_gradients(sums[0]), tf.constant(0.0), sums[1], whole)

    def one(self, update: Update, part: "int | tf.Tensor") -> tuple[list[tf.Tensor], Metrics, Metrics]:
        """Compute this rank's gradients, metrics and new state of one micro-batch, whose number is a scalar int32."""
        data = {name: value[part] for name, value in self._data.items()}
        prepared, state = self._forward.prepare(self._step, data, part), self._forward.state(part)
        values = [variable.value for variable in self._forward.variables(update)]
        with self._forward.scope(update):
            with OwnedTape(watch_accessed_variables=False) as tape:
                tape.watch(values)
                loss, metrics, moved = self._forward.loss(update, prepared, None, state)
            gradients = tape.gradient(loss, values)
        return [tf.convert_to_tensor(gradient) for gradient in gradients], metrics, moved
