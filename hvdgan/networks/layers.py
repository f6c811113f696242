"""Reaches the layers nested in a network: their state other than weights, their private lists, and their classes.

No other module walks the layers of a network or changes the class of a layer or an optimizer, except for that of
BatchNorm in hvdgan/distributed/batch_norm.py.
"""

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import keras
import tensorflow as tf

from hvdgan.errors import UserError, list_some

# All state of these layers is statistics; Keras does not mark their variables.
_WITH_STATISTICS = (keras.layers.BatchNormalization, keras.layers.SpectralNormalization)


def statistics_of(network: keras.Model) -> list[keras.Variable]:
    """The variables that each rank estimates from its own samples, such as BatchNorm's moving statistics.

    Other layers make one by keras.Variable(..., aggregation="mean", synchronization="on_read"), Keras' words for a
    variable of which each replica has its own value, and readers from outside the mean.
    """
    chosen = {id(variable) for layer, variable in _kept(network) if _is_statistic(layer, variable)}
    return [variable for variable in network.non_trainable_variables if id(variable) in chosen]


def own_means_of(network: keras.Model) -> list[tuple[keras.layers.Layer, keras.Variable]]:
    """Those of its statistics that layers mark as each rank's own mean over samples, with the layer."""
    return [(layer, variable) for layer, variable in _kept(network) if _is_mean(variable, on_read=True)]


def joint_means_of(network: keras.Model) -> list[keras.Variable]:
    """The variables that have the mean of all ranks at each assignment: add_weight(..., aggregation="mean")."""
    return [variable for _, variable in _kept(network) if _is_mean(variable, on_read=False)]


def other_state_of(network: keras.Model) -> list[tuple[keras.layers.Layer, keras.Variable]]:
    """The other state of layers, such as counters, with the layer; frozen weights do not count."""
    return [(layer, variable) for layer, variable in _kept(network) if not _is_statistic(layer, variable)]


def moved_in_calls(network: keras.Model) -> list[keras.Variable]:
    """The variables that a call may move: all that are not trained but seeds, and weights that Keras normalises."""
    kernels = [each.kernel for each in layers_of(network) if isinstance(each, keras.layers.SpectralNormalization)]
    weights = [variable for variable in kernels if any(variable is each for each in network.trainable_variables)]
    return [*(variable for variable in network.non_trainable_variables if not is_seed(variable)), *weights]


def is_frozen(network: keras.Model) -> bool:
    """Whether a network has nothing to train: its weights are frozen, or it has no variables at all.

    A network that only keeps state, made by add_weight(..., trainable=False), is not frozen: its update's calls move
    it.
    """
    if network.trainable_variables:
        return False
    state = {id(variable) for _, variable in _kept(network)}
    return not (network.trainable and state) or any(id(each) not in state for each in network.variables)


def freeze(networks: Mapping[str, keras.Model], patterns: Collection[str]) -> list[keras.Variable]:
    """Freeze the layers that NETWORK/PATTERN of --freeze name, with those in them; return their variables."""
    trained = [name for name, network in networks.items() if network.trainable_variables]
    held = list[keras.Variable]()
    for pattern in patterns:
        name, _, wanted = pattern.partition("/")
        layers = [each for each in layers_of(networks[name]) if each.variables] if name in networks else []
        chosen = [each for each in layers if fnmatchcase(each.name, wanted) or fnmatchcase(each.path, wanted)]
        if not chosen:
            names = list_some([each.name for each in layers] or [*networks], 10)
            raise UserError(f"--freeze {pattern}: names no layer with weights; expected NETWORK/LAYER, of {names}")
        for layer in chosen:
            layer.trainable = False
            held += layer.variables
    if lost := [name for name in trained if not networks[name].trainable_variables]:
        raise UserError(f"--freeze {','.join(patterns)}: leaves nothing of {lost[0]} to train; freeze fewer layers")
    return held


def is_seed(variable: keras.Variable) -> bool:
    """Whether the variable is the state of a keras.random.SeedGenerator."""
    return variable.path.endswith("seed_generator_state")


def is_float(variable: keras.Variable) -> bool:
    """Whether the variable holds floating-point numbers."""
    return keras.backend.is_float_dtype(variable.dtype)


def _kept(network: keras.Model) -> Iterator[tuple[keras.layers.Layer, keras.Variable]]:
    """Each variable that was created as not trainable, with its layer."""
    for layer in (network, *layers_of(network)):
        # The public list also has the variables of nested layers, and the weights of frozen ones.
        yield from ((layer, variable) for variable in layer._non_trainable_variables)


def _is_statistic(layer: keras.layers.Layer, variable: keras.Variable) -> bool:
    return _is_mean(variable, on_read=True) or (is_float(variable) and isinstance(layer, _WITH_STATISTICS))


def _is_mean(variable: keras.Variable, *, on_read: bool) -> bool:
    """Whether a variable is marked as a mean over replicas; an integer or a boolean has none."""
    is_marked = is_float(variable) and variable.aggregation == "mean"
    return is_marked and on_read == (variable.synchronization == "on_read")


def layers_of(network: keras.Model) -> list[keras.Layer]:
    """All layers nested in a network, at any depth, without the network itself."""
    # Not public, as is the list above; tests/training/test_rank_state.py has layers in layers.
    return list(network._flatten_layers(include_self=False, recursive=True))


def bare_variables(network: keras.Model) -> Iterator[tuple[keras.Layer, str]]:
    """Each layer that holds a tf.Variable, which Keras 3 neither trains nor saves, with the attribute's name."""
    for layer in (network, *layers_of(network)):
        for name, value in vars(layer).items():
            # TensorFlow lists what an object holds under names with this prefix, again.
            if not name.startswith("_self_") and any(isinstance(each, tf.Variable) for each in _items(value)):
                yield layer, name


@contextlib.contextmanager
def without_batch_statistics(networks: Iterable[keras.Model]) -> Iterator[None]:
    """Let BatchNorm compute in inference mode in the block, whatever mode a call asks for."""
    found = (each for network in networks for each in layers_of(network))
    norms = {id(each): each for each in found if isinstance(each, keras.layers.BatchNormalization)}.values()
    for norm in norms:  # not by assignment: Keras would look for variables in the method
        norm.__dict__["call"] = lambda x, training=None, mask=None, call=norm.call: call(x, training=False, mask=mask)
    try:
        yield
    finally:
        for norm in norms:
            del norm.__dict__["call"]


@contextlib.contextmanager
def in_float32(networks: Iterable[keras.Model]) -> Iterator[None]:
    """Let layers compute in float32 in the block, whose weights are float32 in mixed precision too."""
    found = {id(each): each for network in networks for each in (network, *layers_of(network))}.values()
    policies = [(layer, layer.dtype_policy) for layer in found if layer.compute_dtype in ("bfloat16", "float16")]
    for layer, _ in policies:
        layer.dtype_policy = layer.variable_dtype
    try:
        yield
    finally:
        for layer, policy in policies:
            layer.dtype_policy = policy


def change_classes(
    networks: Iterable[keras.Model], classes: Mapping[type[keras.Layer], type[keras.Layer]]
) -> list[keras.Layer]:
    """Turn built layers into those of a subclass, which adds no variables; return the layers that were changed."""
    changed = []
    for layer in (layer for network in networks for layer in layers_of(network)):
        if subclass := classes.get(type(layer)):
            change_class(layer, subclass)
            changed.append(layer)
    return changed


def change_class(each: keras.Layer | keras.optimizers.Optimizer, subclass: type) -> None:
    """Turn a built layer or optimizer into one of a subclass that adds no variables."""
    subclass.__name__ = type(each).__name__  # by which Keras names what it saves
    each.__class__ = subclass


def names_in_files(network: keras.Model) -> dict[str, keras.Variable]:
    """The network's variables by the names that they have in its .keras and .weights.h5 files."""
    from keras.src.saving.saving_lib import H5IOStore, _save_state  # not public; tests/training/test_initial_weights.py

    groups = dict[str, dict[str, keras.Variable]]()

    class Names(H5IOStore):
        __init__, __bool__ = object.__init__, lambda self: True

        def make(self, path: str, metadata: Any = None) -> dict[str, keras.Variable]:
            return groups.setdefault(f"{path}/vars".lstrip("/"), {})

    _save_state(network, Names(), None, "", set())
    return {f"{group}/{key}": each for group, some in groups.items() for key, each in some.items()}


def _items(value: object) -> Iterator[object]:
    """The value itself, or what lists, tuples, sets and dicts hold at any depth."""
    if isinstance(value, list | tuple | set | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _items(each)
    else:
        yield value
