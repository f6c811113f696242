"""The variables of a run, each under the name that a checkpoint gives it: networks, averages, optimizers."""

import contextlib
import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping

import keras
import numpy as np

from hvdgan.networks.layer_state import is_float, other_state_of, statistics_of
from hvdgan.recipe import Recipe, mistakes
from hvdgan.recipe.mistakes import Mistake
from hvdgan.recipe.nets import Nets
from hvdgan.recipe.returned import networks_of, optimizers_of
from hvdgan.training.steps.loss_scale import LossScale


@dataclasses.dataclass(frozen=True)
class TrainState:
    """The variables of a run.

    networks: networks by name.
    optimizers: one optimizer per network, built on its trainable variables.
    learning_rates: learning rate that the recipe gave to each optimizer; optimizers with a schedule are left out.
    ema: for each averaged network, one average per floating-point variable, in the order of averaged_variables().
    loss_scales: loss scales of the updates by name; empty without float16.
    """

    networks: dict[str, keras.Model]
    optimizers: dict[str, keras.optimizers.Optimizer]
    learning_rates: dict[str, float]
    ema: dict[str, list[keras.Variable]]
    loss_scales: dict[str, LossScale] = dataclasses.field(default_factory=dict)

    def tensors(self) -> dict[str, keras.Variable]:
        """All variables by the names that a checkpoint gives them.

        Raises:
            Mistake: two variables of a network have one name.
        """
        named: dict[str, keras.Variable] = {}
        for name, network in self.networks.items():
            _add(named, f"networks/{name}", ((variable.path, variable) for variable in network.variables))
            _add(named, f"optimizers/{name}", _slots(self.optimizers[name], network))
        for name, averages in self.ema.items():
            variables = averaged_variables(self.networks[name])
            _add(named, f"ema/{name}", ((v.path, average) for v, average in zip(variables, averages, strict=True)))
        for name, scale in self.loss_scales.items():
            _add(named, f"loss_scales/{name}", [("value", scale.value), ("held", scale.held)])
        return named

    def digests(self) -> dict[str, str]:
        """The SHA-256 of each tensor that must be the same on all ranks, by name: all except the statistics."""
        own = {id(variable) for variable in self.statistics()}
        return digests({name: variable for name, variable in self.tensors().items() if id(variable) not in own})

    def reset_optimizers(self, recipe: Recipe, networks: Iterable[str]) -> None:
        """Reset the optimizers of these networks to the values of new ones."""
        with mistakes.of(recipe):
            new = optimizers_of(recipe, self.networks)
        for name in networks:
            new[name].build(self.networks[name].trainable_variables)
            for variable, initial in zip(self.optimizers[name].variables, new[name].variables, strict=True):
                variable.assign(initial)

    def statistics(self) -> list[keras.Variable]:
        """The variables that each rank estimates from its own samples: BatchNorm's statistics and their averages."""
        return self._with_averages(statistics_of)

    def other_state(self) -> dict[str, keras.Variable]:
        """The other state of layers, which must be the same on all ranks, by a description for messages."""
        return {
            f"network {name}, layer {layer.name}: {variable.path}": variable
            for name, network in self.networks.items()
            for layer, variable in other_state_of(network)
        }

    def own_statistics(self, saved: np.ndarray) -> np.ndarray | None:
        """Select each rank's statistics from those of a checkpoint.

        Args:
            saved: (size, m), result of read_statistics() on each rank. Older checkpoints also hold every other
                floating-point variable that is not trained.

        Returns:
            (size, n), or None if the checkpoint counts other variables as statistics.
        """
        wanted = {id(variable) for variable in self.statistics()}
        for variables in (self.statistics(), self._with_averages(_floats_not_trained)):
            chosen = [np.full(math.prod(variable.shape), id(variable) in wanted) for variable in variables]
            columns = np.concatenate([np.zeros(0, bool), *chosen])
            if len(columns) == saved.shape[1]:
                return saved[:, columns]
        return None

    def _with_averages(self, chosen: Callable[[keras.Model], list[keras.Variable]]) -> list[keras.Variable]:
        """The chosen variables of each network, each network's followed by their averages over time."""
        found = []
        for name, network in self.networks.items():
            some = chosen(network)
            ids = {id(variable) for variable in some}
            pairs = zip(averaged_variables(network), self.ema.get(name, []), strict=False)
            found += [*some, *(average for variable, average in pairs if id(variable) in ids)]
        return found

    def read_statistics(self) -> np.ndarray:
        """All statistics in one array (n,): float64 if any of them is, else float32."""
        variables = self.statistics()
        dtype = np.float64 if any(variable.dtype == "float64" for variable in variables) else np.float32
        values = [np.asarray(variable.numpy(), dtype).ravel() for variable in variables]
        return np.concatenate([np.zeros(0, dtype), *values])

    def write_statistics(self, values: np.ndarray) -> None:
        """Set the statistics to the result of read_statistics(), of this rank or of another one."""
        begin = 0
        for variable in self.statistics():
            end = begin + math.prod(variable.shape)
            variable.value.assign(values[begin:end].reshape(variable.shape))
            begin = end

    @contextlib.contextmanager
    def with_statistics(self, everyones: np.ndarray) -> Iterator[None]:
        """Set the statistics to their means over ranks, and restore this rank's own bits afterwards.

        Args:
            everyones: (size, n), result of read_statistics() on each rank.
        """
        own = self.read_statistics()
        # In double precision, so that the mean of equal numbers is exactly that number, for any number of ranks.
        means = everyones.astype(np.float64).mean(axis=0).astype(own.dtype)
        if np.array_equal(means, own):  # one rank, or the same values on all ranks
            yield
            return
        self.write_statistics(means)
        try:
            yield
        finally:
            self.write_statistics(own)

    def sampling_values(self) -> dict[str, list[tuple[keras.Variable, keras.Variable]]]:
        """For each averaged network the pairs (variable, average that is used instead of it in samples)."""
        return {
            name: list(zip(averaged_variables(self.networks[name]), averages, strict=True))
            for name, averages in self.ema.items()
        }

    @property
    def sampling_nets(self) -> Nets:
        """The networks in inference mode, with averaged weights for those that the run averages."""
        return Nets(self.networks, training=False, values=self.sampling_values())


def prepare_keras(precision: str) -> None:
    """Set Keras' global state, so that the same networks are built on every host and at any time in a process.

    Args:
        precision: dtype policy of layers that name none.
    """
    keras.config.set_floatx("float32")  # ~/.keras/keras.json may differ, even between hosts
    keras.config.set_image_data_format("channels_last")
    keras.utils.clear_session()  # layers without a name are numbered from 1 again
    keras.config.set_dtype_policy(precision)


def build_state(recipe: Recipe, ema_decay: float) -> TrainState:
    """Build a recipe's networks, their optimizers and their averages.

    Args:
        recipe: recipe that makes the networks and the optimizers.
        ema_decay: decay of the averages; 0: none are kept.

    Raises:
        Mistake: a network is not built, shares variables with another, or has no optimizer.
    """
    networks = networks_of(recipe)
    optimizers = optimizers_of(recipe, networks)
    _check_names(recipe, networks)
    for name, network in networks.items():
        optimizers[name].build(network.trainable_variables)
    averaged = recipe.ema if ema_decay else ()
    return TrainState(
        networks,
        {name: optimizers[name] for name in networks},
        {name: float(optimizers[name].learning_rate) for name in networks if _has_constant_rate(optimizers[name])},
        {name: [_copy(variable) for variable in averaged_variables(networks[name])] for name in averaged},
    )


def digests(variables: Mapping[str, keras.Variable]) -> dict[str, str]:
    """The SHA-256 of each variable's value."""
    return {
        name: hashlib.sha256(np.ascontiguousarray(variable.numpy()).tobytes()).hexdigest()
        for name, variable in variables.items()
    }


def _check_names(recipe: Recipe, networks: Mapping[str, keras.Model]) -> None:
    """Refuse unknown names in the recipe's ema and may_change."""
    options = [field.name for field in dataclasses.fields(recipe.options)]
    for attribute, known, where in (("ema", list(networks), "networks()"), ("may_change", options, "Options")):
        names, at = getattr(recipe, attribute), mistakes.attribute(type(recipe), attribute)
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            example = f'("{names}",)' if isinstance(names, str) else f'("{known[0]}",)' if known else "()"
            raise Mistake(f"{attribute} is {names!r}; it must be a tuple of names, as in {example}", at)
        if unknown := sorted(set(names) - set(known)):
            said = f"{where} returns" if attribute == "ema" else f"{where} has"
            raise Mistake(f"{attribute} names {', '.join(unknown)}, and {said} {', '.join(known)}", at)


def averaged_variables(network: keras.Model) -> list[keras.Variable]:
    """The variables that can be averaged over time: the floating-point ones."""
    return [variable for variable in network.variables if is_float(variable)]


def _floats_not_trained(network: keras.Model) -> list[keras.Variable]:
    return [variable for variable in network.non_trainable_variables if is_float(variable)]


def _copy(variable: keras.Variable) -> keras.Variable:
    name = variable.path.replace("/", "_")
    return keras.Variable(variable.numpy(), trainable=False, dtype=variable.dtype, name=f"{name}_ema")


def _has_constant_rate(optimizer: keras.optimizers.Optimizer) -> bool:
    return not isinstance(optimizer.get_config().get("learning_rate"), dict)


def _slots(optimizer: keras.optimizers.Optimizer, network: keras.Model) -> Iterable[tuple[str, keras.Variable]]:
    """Name an optimizer's slots <variable path>/<slot>, and its scalars by their own names.

    Keras names a slot after the path of its variable, with "_" instead of "/".
    """
    prefixes = {variable.path.replace("/", "_") + "_": variable.path for variable in network.trainable_variables}
    for variable in optimizer.variables:
        name = variable.path.rpartition("/")[2]
        # The longest prefix is the right one: conv_1_kernel_momentum also begins with the name of a variable conv_1.
        prefix = max((prefix for prefix in prefixes if name.startswith(prefix)), key=len, default="")
        yield (f"{prefixes[prefix]}/{name[len(prefix) :]}" if prefix else name), variable


def _add(named: dict[str, keras.Variable], prefix: str, variables: Iterable[tuple[str, keras.Variable]]) -> None:
    for path, variable in variables:
        name = f"{prefix}/{path}"
        if name in named:
            raise Mistake(f"two variables are named {name}; give the layers of the network names of their own")
        named[name] = variable
