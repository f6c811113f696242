"""The variables of a run by the names that a checkpoint gives them, and those of them that differ between ranks."""

import collections
import contextlib
import dataclasses
import math
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvdgan.distributed.ranks import Ranks
from hvdgan.networks.layer_state import is_float, is_frozen, other_state_of, statistics_of
from hvdgan.networks.nested_layers import bare_variables
from hvdgan.recipe import Recipe, recipe_errors
from hvdgan.recipe.contract import check_names, networks_of, optimizers_of
from hvdgan.recipe.nets import Nets
from hvdgan.recipe.recipe_errors import Mistake
from hvdgan.training.recipe_state import RecipeState

FIRST = 2.0**15
"""initial value of each scale"""
_GROW_AFTER = 2000  # updates in a row without an overflow


def copy_of(variable: keras.Variable) -> np.ndarray:
    """Copy a variable's value, of its shape and dtype.

    variable.numpy() takes four times as long, which is a large part of a checkpoint of small networks.
    """
    value = variable.value
    return np.asarray(tf.raw_ops.ReadVariableOp(resource=value.handle, dtype=value.dtype).numpy())


def copies_of(variables: Mapping[str, keras.Variable]) -> dict[str, np.ndarray]:
    """Copy the values of variables, by their names."""
    return {name: copy_of(variable) for name, variable in variables.items()}


@dataclasses.dataclass(frozen=True)
class Statistics:
    """The statistics of all networks and their averages over time, which differ between the ranks."""

    networks: Mapping[str, keras.Model]
    ema: Mapping[str, Sequence[keras.Variable]]

    def variables(self) -> list[keras.Variable]:
        """Each network's statistics, followed by their averages over time."""
        found = []
        for name, network in self.networks.items():
            some = statistics_of(network)
            ids = {id(variable) for variable in some}
            pairs = zip(averaged_variables(network), self.ema.get(name, []), strict=False)
            found += [*some, *(average for variable, average in pairs if id(variable) in ids)]
        return found

    def read(self) -> np.ndarray:
        """All statistics in one array (n,): float64 if any of them is, else float32."""
        variables = self.variables()
        dtype = np.float64 if any(variable.dtype == "float64" for variable in variables) else np.float32
        values = [copy_of(variable).astype(dtype, copy=False).ravel() for variable in variables]
        return np.concatenate([np.zeros(0, dtype), *values])

    def write(self, values: np.ndarray) -> None:
        """Set the statistics to the result of read(), of this rank or of another one."""
        begin = 0
        for variable in self.variables():
            end = begin + math.prod(variable.shape)
            variable.value.assign(values[begin:end].reshape(variable.shape))
            begin = end

    @contextlib.contextmanager
    def set_to_means(self, everyones: np.ndarray) -> Iterator[None]:
        """Set the statistics to their means over ranks, and restore this rank's own bits afterwards."""
        if len(everyones) == 1:
            yield
            return
        own = self.read()
        # In double precision, so that the mean of equal numbers is exactly that number, for any number of ranks.
        means = everyones.astype(np.float64).mean(axis=0).astype(own.dtype)
        self.write(means)
        try:
            yield
        finally:
            self.write(own)


def averaged_variables(network: keras.Model) -> list[keras.Variable]:
    """The variables that can be averaged over time: the floating-point ones."""
    return [variable for variable in network.variables if is_float(variable)]


class LocalNetworks:
    """The networks that each rank trains for itself: all their variables, slots and averages differ between the ranks.

    A checkpoint holds those of every rank, one after another, (ranks, ...) each. A run that resumes on another number
    of ranks gives rank r those of rank r modulo the number of ranks that saved.

    Args:
        names: names of the networks.
        tensors: all variables of the run, by the names that a checkpoint gives them, which holds those of rank 0.
        ranks: ranks of the run.
    """

    def __init__(self, names: Collection[str], tensors: Mapping[str, keras.Variable], ranks: Ranks) -> None:
        self.names, self._ranks = names, ranks
        of_networks = ("networks/", "optimizers/", "ema/")  # an update's loss scale may have the name of a network
        self._own = {
            f"local/{key}": variable
            for key, variable in tensors.items()
            if key.startswith(of_networks) and key.split("/")[1] in names
        }

    def own(self) -> dict[str, keras.Variable]:
        """This rank's variables, by the names that a checkpoint gives those of all ranks."""
        return self._own

    def whole(self) -> dict[str, np.ndarray]:
        """The values of all ranks, by the names of own(); every rank calls this."""
        return {name: self._ranks.concatenate(variable.numpy()[None]) for name, variable in self._own.items()}

    def whole_variables(self, saved: Mapping[str, Any]) -> dict[str, keras.Variable]:
        """New variables for the values of all ranks, to be read from a checkpoint whose manifest has these tensors."""
        shapes = {name: saved[name]["shape"] if name in saved else (1, *v.shape) for name, v in self._own.items()}
        return {
            name: keras.Variable(np.zeros(shapes[name]), trainable=False, dtype=variable.dtype)
            for name, variable in self._own.items()
        }

    def take(self, whole: Mapping[str, np.ndarray], root: int) -> None:
        """Take this rank's part of what the root knows; the others pass nothing. Every rank calls this."""
        for name, variable in self._own.items():
            rows = self._ranks.broadcast_array(np.array([len(whole.get(name, ()))]), root)[0]
            known = whole.get(name, np.zeros((rows, *variable.shape), variable.dtype))
            everyones = self._ranks.broadcast_array(known, root)
            # An average that the checkpoint lacks (--allow-changed ema_decay) begins at this rank's weights.
            weights = self._own[name.replace("local/ema/", "local/networks/")]
            variable.assign(everyones[self._ranks.rank % rows] if rows else weights)


@dataclasses.dataclass(frozen=True)
class LossScale:
    """The dynamic factor of one update's loss: it keeps small gradients from underflow, and falls after an overflow.

    Reference: Micikevicius et al. 2018, "Mixed precision training", section 3.2.
    """

    value: keras.Variable
    """float32"""
    held: keras.Variable
    """number of updates in a row without an overflow, int64: TensorFlow keeps an int32 variable in the host's memory,
    and each step would wait until the GPU knows whether to count on"""

    @staticmethod
    def new(name: str) -> "LossScale":
        """A scale with its initial value, for the update of this name."""
        return LossScale(
            keras.Variable(FIRST, trainable=False, dtype="float32", name=f"{name}_scale"),
            keras.Variable(0, trainable=False, dtype="int64", name=f"{name}_held"),
        )

    def unscaled(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The gradients of the loss itself, from those of the scaled loss."""
        return [gradient / tf.cast(self.value.value, gradient.dtype) for gradient in gradients]

    def adapt(self, finite: tf.Tensor) -> tf.Tensor:
        """Double the scale after many finite updates in a row; halve it, to no less than 1, after one that is not."""
        used = tf.identity(self.value.value)
        none = tf.zeros((), tf.int64)
        held = tf.where(finite, self.held.value + 1, none)
        grown = held >= _GROW_AFTER
        factor = tf.where(finite, tf.where(grown, 2.0, 1.0), 0.5)
        self.value.assign(tf.maximum(self.value.value * factor, 1.0))
        self.held.assign(tf.where(grown, none, held))
        return used


@dataclasses.dataclass(frozen=True)
class TrainState:
    """The variables of a run."""

    networks: dict[str, keras.Model]
    """networks that the recipe trains"""
    optimizers: dict[str, keras.optimizers.Optimizer]
    """one for each network, built on its trainable variables"""
    learning_rates: dict[str, float]
    """learning rate that the recipe gave to each optimizer; optimizers with a schedule are left out"""
    ema: dict[str, list[keras.Variable]]
    """for each averaged network, one average for each of averaged_variables()"""
    loss_scales: dict[str, LossScale] = dataclasses.field(default_factory=dict)
    """loss scales of the updates; empty without float16"""
    frozen: dict[str, keras.Model] = dataclasses.field(default_factory=dict)
    """frozen networks, which no checkpoint holds"""
    outside: dict[str, Any] = dataclasses.field(default_factory=dict)
    """what the traced graphs read and neither a network nor a checkpoint holds, by a description"""
    recipe_state: RecipeState = dataclasses.field(default_factory=lambda: RecipeState({}, Ranks(), 1))
    """state of the recipe that belongs to no network; empty outside of training"""
    local: LocalNetworks = dataclasses.field(default_factory=lambda: LocalNetworks((), {}, Ranks()))
    """networks that each rank trains for itself; none outside of training"""

    def tensors(self) -> dict[str, keras.Variable]:
        """All variables by the names that a checkpoint gives them, without state per sample, which differs by rank."""
        named: dict[str, keras.Variable] = {}
        for name, network in self.networks.items():
            _add(named, f"networks/{name}", ((variable.path, variable) for variable in network.variables))
            _add(named, f"optimizers/{name}", _slots(self.optimizers[name], network))
        for name, pairs in self.sampling_values().items():
            _add(named, f"ema/{name}", ((variable.path, average) for variable, average in pairs))
        for name, scale in self.loss_scales.items():
            _add(named, f"loss_scales/{name}", [("value", scale.value), ("held", scale.held)])
        return {**named, **self.recipe_state.shared()}

    def reset_optimizers(self, recipe: Recipe, networks: Iterable[str]) -> None:
        """Reset the optimizers of these networks to the values of new ones."""
        with recipe_errors.of(recipe):
            new = optimizers_of(recipe, self.networks, self.frozen)
        for name in networks:
            new[name].build(self.networks[name].trainable_variables)
            for variable, initial in zip(self.optimizers[name].variables, new[name].variables, strict=True):
                variable.assign(initial)

    @property
    def statistics(self) -> Statistics:
        """The variables that each rank estimates from its own samples, of the networks that all ranks train."""
        shared = {name: network for name, network in self.networks.items() if name not in self.local.names}
        return Statistics(shared, self.ema)

    def of_rank(self) -> list[keras.Variable]:
        """The variables that differ between the ranks, without state per sample."""
        return [*self.statistics.variables(), *self.local.own().values()]

    def other_state(self) -> dict[str, keras.Variable]:
        """The other state of layers, which must be the same on all ranks, by a description for messages."""
        return {
            f"network {name}, layer {layer.name}: {variable.path}": variable
            for name, network in self.networks.items()
            if name not in self.local.names
            for layer, variable in other_state_of(network)
        }

    def sampling_values(self) -> dict[str, list[tuple[keras.Variable, keras.Variable]]]:
        """For each averaged network the pairs (variable, average that is used instead of it in samples)."""
        return {
            name: list(zip(averaged_variables(self.networks[name]), averages, strict=True))
            for name, averages in self.ema.items()
        }

    @property
    def sampling_nets(self) -> Nets:
        """The networks in inference mode, with averaged weights for those that the run averages."""
        return self.nets(self.sampling_values())

    def nets(self, values: Mapping[str, Sequence[tuple[keras.Variable, keras.Variable]]] | None = None) -> Nets:
        """The networks in inference mode, with other values of variables if some are given, by network."""
        state, averages = self.recipe_state.seen_in_samples(), self.sampling_values()
        return Nets(self.networks, frozen=self.frozen, training=False, values=values, state=state, averages=averages)


def prepare_keras(precision: str, seed: int, part: str = "") -> None:
    """Set Keras' global state, so that the same networks are built on every host and at any time in a process.

    part: name of a part of the recipe's code other than networks(), which draws other numbers.
    """
    seed_generators(seed, part)
    keras.config.set_floatx("float32")  # ~/.keras/keras.json may differ, even between hosts
    keras.config.set_image_data_format("channels_last")
    keras.utils.clear_session()  # layers without a name are numbered from 1 again
    keras.config.set_dtype_policy(precision)


def seed_generators(seed: int, part: str = "") -> None:
    """Seed the generators of Python, NumPy and TensorFlow; the arguments are those of prepare_keras()."""
    keras.utils.set_random_seed(zlib.crc32(f"{seed} {part}".encode()) if part else seed)


def build_state(recipe: Recipe, ema_decay: float | None) -> TrainState:
    """Build a recipe's networks, their optimizers and, unless ema_decay is 0, their averages."""
    made = networks_of(recipe)
    for name, network in made.items():
        for layer, attribute in bare_variables(network):
            raise recipe_errors.Mistake(
                f"network {name}, layer {layer.name}: {attribute} is a tf.Variable, which Keras 3 neither trains nor "
                "saves; make it with self.add_weight(...)",
                type(layer),
            )
    frozen = {name: network for name, network in made.items() if is_frozen(network)}
    networks = {name: network for name, network in made.items() if name not in frozen}
    optimizers = optimizers_of(recipe, networks, frozen)
    check_names(recipe, made)
    for name, network in networks.items():
        optimizers[name].build(network.trainable_variables)
    averaged = () if ema_decay == 0 else [name for name in recipe.ema if name in networks]
    return TrainState(
        networks,
        {name: optimizers[name] for name in networks},
        {
            name: float(optimizers[name].learning_rate)
            for name in networks
            if not isinstance(optimizers[name].get_config().get("learning_rate"), dict)  # a schedule
        },
        {name: [_copy(variable) for variable in averaged_variables(networks[name])] for name in averaged},
        frozen=frozen,
    )


def _copy(variable: keras.Variable) -> keras.Variable:
    name = variable.path.replace("/", "_")
    return keras.Variable(variable.numpy(), trainable=False, dtype=variable.dtype, name=f"{name}_ema")


def _slots(optimizer: keras.optimizers.Optimizer, network: keras.Model) -> Iterable[tuple[str, keras.Variable]]:
    """Name an optimizer's slots <variable path>/<slot>, and its scalars by their own names.

    Keras names a slot after the path of its variable, with "_" instead of "/". Adafactor has several of one name, which
    are numbered.
    """
    seen: collections.Counter[str] = collections.Counter()
    prefixes = {variable.path.replace("/", "_") + "_": variable.path for variable in network.trainable_variables}
    for variable in optimizer.variables:
        name = variable.path.rpartition("/")[2]
        # The longest prefix is the right one: conv_1_kernel_momentum also begins with the name of a variable conv_1.
        prefix = max((prefix for prefix in prefixes if name.startswith(prefix)), key=len, default="")
        name = f"{prefixes[prefix]}/{name[len(prefix) :]}" if prefix else name
        seen[name] += 1
        yield (f"{name}_{seen[name]}" if seen[name] > 1 else name), variable


def _add(named: dict[str, keras.Variable], prefix: str, variables: Iterable[tuple[str, keras.Variable]]) -> None:
    for path, variable in variables:
        name = f"{prefix}/{path}"
        if name in named:
            raise Mistake(f"two variables are named {name}; give the layers of the network names of their own")
        named[name] = variable
