"""The variables of a run, each under the name that a checkpoint gives it: networks, averages, optimizers."""

import dataclasses
import zlib
from collections.abc import Iterable
from typing import Any

import keras

from hvdgan.networks.layer_state import is_frozen, other_state_of
from hvdgan.networks.nested_layers import bare_variables
from hvdgan.recipe import Recipe, mistakes
from hvdgan.recipe.nets import Nets
from hvdgan.recipe.results import check_names, networks_of, optimizers_of
from hvdgan.training.loss_scale import LossScale
from hvdgan.training.statistics import Statistics, averaged_variables
from hvdgan.training.tensor_names import named_tensors


@dataclasses.dataclass(frozen=True)
class TrainState:
    """The variables of a run.

    networks: networks that the recipe trains, by name.
    optimizers: one optimizer for each of them, built on its trainable variables.
    learning_rates: learning rate that the recipe gave to each optimizer; optimizers with a schedule are left out.
    ema: for each averaged network, one average per floating-point variable, in the order of averaged_variables().
    loss_scales: loss scales of the updates by name; empty without float16.
    frozen: frozen networks by name, which no checkpoint holds.
    outside: what the traced graphs read and neither a network nor a checkpoint holds, by a description.
    """

    networks: dict[str, keras.Model]
    optimizers: dict[str, keras.optimizers.Optimizer]
    learning_rates: dict[str, float]
    ema: dict[str, list[keras.Variable]]
    loss_scales: dict[str, LossScale] = dataclasses.field(default_factory=dict)
    frozen: dict[str, keras.Model] = dataclasses.field(default_factory=dict)
    outside: dict[str, Any] = dataclasses.field(default_factory=dict)

    def tensors(self) -> dict[str, keras.Variable]:
        """All variables by the names that a checkpoint gives them.

        Raises:
            Mistake: two variables of a network have one name.
        """
        return named_tensors(self.networks, self.optimizers, self.ema, self.loss_scales)

    def reset_optimizers(self, recipe: Recipe, networks: Iterable[str]) -> None:
        """Reset the optimizers of these networks to the values of new ones."""
        with mistakes.of(recipe):
            new = optimizers_of(recipe, self.networks, self.frozen)
        for name in networks:
            new[name].build(self.networks[name].trainable_variables)
            for variable, initial in zip(self.optimizers[name].variables, new[name].variables, strict=True):
                variable.assign(initial)

    @property
    def statistics(self) -> Statistics:
        """The variables that each rank estimates from its own samples."""
        return Statistics(self.networks, self.ema)

    def other_state(self) -> dict[str, keras.Variable]:
        """The other state of layers, which must be the same on all ranks, by a description for messages."""
        return {
            f"network {name}, layer {layer.name}: {variable.path}": variable
            for name, network in self.networks.items()
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
        return Nets(self.networks, frozen=self.frozen, training=False, values=self.sampling_values())


def prepare_keras(precision: str, seed: int, part: str = "") -> None:
    """Set Keras' global state, so that the same networks are built on every host and at any time in a process.

    Args:
        precision: dtype policy of layers that name none.
        seed: seed of the run, for the generators of Python, NumPy and TensorFlow.
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
    """Build a recipe's networks, their optimizers and their averages.

    Args:
        recipe: recipe that makes the networks and the optimizers.
        ema_decay: decay of the averages; 0: none are kept; None: they have a half-life.

    Raises:
        Mistake: a network is not built, shares variables with another, holds a tf.Variable, or has no optimizer.
    """
    made = networks_of(recipe)
    for name, network in made.items():
        for layer, attribute in bare_variables(network):
            raise mistakes.Mistake(
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
        {name: float(optimizers[name].learning_rate) for name in networks if _has_constant_rate(optimizers[name])},
        {name: [_copy(variable) for variable in averaged_variables(networks[name])] for name in averaged},
        frozen=frozen,
    )


def _copy(variable: keras.Variable) -> keras.Variable:
    name = variable.path.replace("/", "_")
    return keras.Variable(variable.numpy(), trainable=False, dtype=variable.dtype, name=f"{name}_ema")


def _has_constant_rate(optimizer: keras.optimizers.Optimizer) -> bool:
    return not isinstance(optimizer.get_config().get("learning_rate"), dict)
