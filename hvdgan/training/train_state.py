"""The variables of a run by the names that a checkpoint gives them."""

import collections
import dataclasses
import itertools
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvdgan.checkpoints.tensor_names import (
    EMA,
    LOSS_SCALES,
    NETWORKS,
    OF_NETWORKS,
    OPTIMIZERS,
    STATE,
    kind_of,
    owner_of,
)
from hvdgan.distributed.ranks import Ranks
from hvdgan.networks.layers import (
    bare_variables,
    freeze,
    is_float,
    is_frozen,
    moved_in_calls,
    other_state_of,
    statistics_of,
)
from hvdgan.recipe import Recipe, recipe_errors
from hvdgan.recipe.batch import State, StateValues
from hvdgan.recipe.contract import check_names, networks_of, optimizers_of
from hvdgan.recipe.nets import Nets
from hvdgan.recipe.recipe_errors import Mistake
from hvdgan.recipe.scheduled import ScheduledValues
from hvdgan.recipe.sharing import Sharing

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


def averaged_variables(network: keras.Model) -> list[keras.Variable]:
    """The variables that can be averaged over time: the floating-point ones."""
    return [variable for variable in network.variables if is_float(variable)]


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


class DeclaredState:
    """The state of a recipe on one rank, from arrays of initial values by name."""

    def __init__(self, declared: Mapping[str, State], ranks: Ranks, global_batch_size: int) -> None:
        self.declared = declared
        (first, past), self._variables = ranks.slice_of(global_batch_size), dict[str, keras.Variable]()
        for name, state in declared.items():
            value = np.repeat(state.initial[None], past - first, axis=0) if state.per_sample else state.initial
            self._variables[name] = keras.Variable(value, trainable=False, dtype=value.dtype.name, name=name)

    def shared(self) -> dict[str, keras.Variable]:
        """The variables that are the same on all ranks, by the names that a checkpoint gives them."""
        return self._named(per_sample=False)

    def seen_in_samples(self) -> dict[str, keras.Variable]:
        """The same variables by the names that the recipe gives them, for its sample() and evaluate()."""
        return {name: self._variables[name] for name, state in self.declared.items() if not state.per_sample}

    def own(self) -> dict[str, keras.Variable]:
        """This rank's slices of the state per sample, by the names that a checkpoint gives the whole."""
        return self._named(per_sample=True)

    def values(self, part: "int | tf.Tensor" = 0, parts: int = 1) -> dict[str, tf.Tensor]:
        """The values by the recipe's names, those per sample of a micro-batch: the part of `parts` with this number."""
        values = {}
        for name, state in self.declared.items():
            value = self._variables[name].value.read_value()
            values[name] = tf.reshape(value, (parts, -1, *value.shape[1:]))[part] if state.per_sample else value
        return values

    def whole(self, values: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Values of this rank from those of its micro-batches, (parts, ...) by name, in which shared ones are equal."""
        return {
            name: tf.reshape(value, (-1, *value.shape[2:])) if self.declared[name].per_sample else value[-1]
            for name, value in values.items()
        }

    def shared_values(self) -> StateValues:
        """The values that are the same on all ranks, as control() sees them."""
        return StateValues({name: each.value.read_value() for name, each in self.seen_in_samples().items()})

    def assign(self, values: Mapping[str, tf.Tensor], finite: tf.Tensor) -> None:
        """Set new values, unless the update that has computed them was not finite."""
        for name, value in values.items():
            variable = self._variables[name].value
            variable.assign(tf.where(finite, value, variable.read_value()))

    def _named(self, *, per_sample: bool) -> dict[str, keras.Variable]:
        return {
            f"{STATE}/{name}": variable
            for name, variable in self._variables.items()
            if self.declared[name].per_sample == per_sample
        }


@dataclasses.dataclass(frozen=True)
class TrainState:
    """The variables of a run."""

    networks: dict[str, keras.Model]
    """networks that the recipe trains"""
    optimizers: dict[str, keras.optimizers.Optimizer]
    """by <network>, or <network>/<name> where a network has several, each built on the network's trainable variables"""
    learning_rates: dict[str, float]
    """learning rate that the recipe gave to each optimizer; optimizers with a schedule are left out"""
    ema: dict[str, list[keras.Variable]]
    """for each averaged network, one average for each of averaged_variables()"""
    loss_scales: dict[str, LossScale] = dataclasses.field(default_factory=dict)
    """loss scales of the updates; empty without float16"""
    held: list[keras.Variable] = dataclasses.field(default_factory=list)
    """variables of the layers of --freeze, which no update changes"""
    frozen: dict[str, keras.Model] = dataclasses.field(default_factory=dict)
    """frozen networks, which no checkpoint holds"""
    outside: dict[str, Any] = dataclasses.field(default_factory=dict)
    """what the traced graphs read and neither a network nor a checkpoint holds, by a description"""
    declared_state: DeclaredState = dataclasses.field(default_factory=lambda: DeclaredState({}, Ranks(), 1))
    """state of the recipe that belongs to no network; empty outside of training"""
    schedules: ScheduledValues = dataclasses.field(default_factory=ScheduledValues)
    """values of the stages' schedules, which no checkpoint holds"""
    local: Collection[str] = ()
    """names of the networks that each rank trains for itself; none outside of training"""

    def tensors(self) -> dict[str, keras.Variable]:
        """All variables by the names that a checkpoint gives them, without state per sample, which differs by rank."""
        named: dict[str, keras.Variable] = {}
        for name, network in self.networks.items():
            _add(named, f"{NETWORKS}/{name}", ((variable.path, variable) for variable in network.variables))
            for each in self.optimizers_of(name):
                _add(named, f"{OPTIMIZERS}/{each}", _slots(self.optimizers[each], network))
        names = {id(variable): name.partition("/")[2] for name, variable in named.items()}
        for pairs in self.sampling_values().values():
            _add(named, EMA, ((names[id(variable)], average) for variable, average in pairs))
        for name, scale in self.loss_scales.items():
            _add(named, f"{LOSS_SCALES}/{name}", [("value", scale.value), ("held", scale.held)])
        return {**named, **self.declared_state.shared()}

    @property
    def sharing(self) -> Sharing:
        """Which networks share variables."""
        return Sharing(self.networks)

    def moved_by(self, owned: Sequence[str]) -> dict[str, list[keras.Variable]]:
        """The networks whose calls move variables of the owned ones, and which others these calls must leave alone."""
        own = {id(variable) for name in owned for variable in self.networks[name].variables} - {*map(id, self.held)}
        moved = {name: moved_in_calls(self.networks[name]) for name in self.sharing.relatives(owned)}
        return {name: [each for each in some if id(each) not in own] for name, some in moved.items()}

    def optimizers_of(self, network: str) -> list[str]:
        """The names of a network's optimizers."""
        return [name for name in self.optimizers if name.partition("/")[0] == network]

    def begin_averages(self, networks: Iterable[str]) -> None:
        """Set the averages of these networks to their weights, as in a new run."""
        pairs = self.sampling_values()
        for variable, average in (pair for name in networks for pair in pairs[name]):
            average.assign(variable)

    def reset_optimizers(self, recipe: Recipe, networks: Iterable[str]) -> None:
        """Reset the optimizers of these networks to the values of new ones."""
        with recipe_errors.of(recipe):
            new = optimizers_of(recipe, self.networks, self.frozen)
        for network in networks:
            for name in self.optimizers_of(network):
                new[name].build(self.networks[network].trainable_variables)
                for variable, initial in zip(self.optimizers[name].variables, new[name].variables, strict=True):
                    variable.assign(initial)

    def statistics(self) -> dict[str, keras.Variable]:
        """What each rank estimates from its own samples, of networks that all ranks train, and the averages of it."""
        ids = {id(v) for name, net in self.networks.items() if name not in self.local for v in statistics_of(net)}
        pairs = itertools.chain(*self.sampling_values().values())
        ids |= {id(average) for variable, average in pairs if id(variable) in ids}
        return {name: variable for name, variable in self.tensors().items() if id(variable) in ids}

    def of_local(self) -> dict[str, keras.Variable]:
        """The variables, slots and averages of the networks that each rank trains for itself."""
        return {
            name: variable
            for name, variable in self.tensors().items()
            if kind_of(name) in OF_NETWORKS and owner_of(name) in self.local
        }

    def other_state(self) -> dict[str, keras.Variable]:
        """The other state of layers and of the recipe, the same on all ranks, by a description for messages."""
        shared = {f"state {name}": variable for name, variable in self.declared_state.seen_in_samples().items()}
        return shared | {
            f"network {name}, layer {layer.name}: {variable.path}": variable
            for name, network in self.networks.items()
            if name not in self.local
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
        state, averages = self.declared_state.seen_in_samples(), self.sampling_values()
        seen: Any = {"state": state, "averages": averages, "schedule": self.schedules.read}
        return Nets(self.networks, frozen=self.frozen, training=False, values=values, **seen)


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


def build_state(recipe: Recipe, ema_decay: float | None, frozen_layers: Sequence[str] = ()) -> TrainState:
    """Build a recipe's networks, their optimizers and, unless ema_decay is 0, their averages."""
    made = networks_of(recipe)
    for name, network in made.items():
        for layer, attribute in bare_variables(network):
            raise recipe_errors.Mistake(
                f"network {name}, layer {layer.name}: {attribute} is a tf.Variable, which Keras 3 neither trains nor "
                "saves; make it with self.add_weight(...)",
                type(layer),
            )
    held = freeze(made, frozen_layers)
    frozen = {name: network for name, network in made.items() if is_frozen(network)}
    networks = {name: network for name, network in made.items() if name not in frozen}
    _refuse_partly_frozen(networks, frozen, recipe.networks)
    optimizers = optimizers_of(recipe, networks, frozen)
    check_names(recipe, made)
    for name, optimizer in optimizers.items():
        optimizer.build(networks[name.partition("/")[0]].trainable_variables)
    averaged = () if ema_decay == 0 else [name for name in recipe.ema if name in networks]
    wanted = {name: averaged_variables(networks[name]) for name in averaged}
    averages = {id(variable): _copy(variable) for variable in itertools.chain(*wanted.values())}
    return TrainState(
        networks,
        optimizers,
        {
            name: float(optimizer.learning_rate)
            for name, optimizer in optimizers.items()
            if isinstance(optimizer.learning_rate, keras.Variable)  # else it is what a schedule returns
        },
        {name: [averages[id(variable)] for variable in variables] for name, variables in wanted.items()},
        held=held,
        frozen=frozen,
    )


def _refuse_partly_frozen(networks: Mapping[str, keras.Model], frozen: Mapping[str, keras.Model], at: Any) -> None:
    """Refuse a layer of a frozen network in one that is trained: the former's statistics would move."""
    owners = {id(variable): name for name, network in frozen.items() for variable in network.variables}
    for name, network in networks.items():
        for variable in (each for each in network.variables if id(each) in owners):
            what = f"network {name} has {variable.path} of {owners[id(variable)]}, which is frozen"
            raise Mistake(f"{what}; leave trainable = False out, or give each network layers of its own", at)


def _copy(variable: keras.Variable) -> keras.Variable:
    name = variable.path.replace("/", "_")
    return keras.Variable(variable.numpy(), trainable=False, dtype=variable.dtype, name=f"{name}_ema")


def _slots(optimizer: keras.optimizers.Optimizer, network: keras.Model) -> Iterable[tuple[str, keras.Variable]]:
    """Name an optimizer's slots <variable path>/<slot>, and its scalars by their own names."""
    seen: collections.Counter[str] = collections.Counter()
    prefixes = {variable.path.replace("/", "_") + "_": variable.path for variable in network.trainable_variables}
    for variable in optimizer.variables:
        name = variable.path.rpartition("/")[2]  # the path of its variable, with "_" instead of "/", and the slot
        # The longest prefix is the right one: conv_1_kernel_momentum also begins with the name of a variable conv_1.
        prefix = max((prefix for prefix in prefixes if name.startswith(prefix)), key=len, default="")
        name = f"{prefixes[prefix]}/{name[len(prefix) :]}" if prefix else name
        seen[name] += 1  # Adafactor has several of one name
        yield (f"{name}_{seen[name]}" if seen[name] > 1 else name), variable


def _add(named: dict[str, keras.Variable], prefix: str, variables: Iterable[tuple[str, keras.Variable]]) -> None:
    """Name variables, but for those that another network has, whose name they keep."""
    known = {id(variable) for variable in named.values()}
    for path, variable in variables:
        if id(variable) in known:
            continue
        name = f"{prefix}/{path}"
        if name in named:
            raise Mistake(f"two variables are named {name}; give the layers of the network names of their own")
        named[name] = variable
