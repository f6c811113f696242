"""Reaches the layers nested in a network, and changes their classes.

No other module walks the layers of a network, reads their private lists, or changes the class of a layer or an
optimizer, except for that of BatchNorm in hvdgan/distributed/batch_norm.py.
"""

from collections.abc import Iterable, Iterator, Mapping

import keras
import tensorflow as tf

from hvdgan.launching.launched import warn_once


def layers_of(network: keras.Model) -> list[keras.Layer]:
    """All layers nested in a network, at any depth, without the network itself."""
    # Not public; tests/networks/test_newer_versions.py trains without it to the same weights.
    flatten = getattr(network, "_flatten_layers", None)
    if flatten is not None:
        return list(flatten(include_self=False, recursive=True))
    warn_once(f"Keras {keras.__version__} has no list of nested layers; they are looked for in the layers' attributes")
    found: dict[int, keras.Layer] = {}
    _collect(network, found)
    return [layer for layer in found.values() if layer is not network]


def created_as_not_trainable(layer: keras.Layer) -> list[keras.Variable]:
    """The variables that a layer has created as not trainable, without those of its nested layers."""
    # Not public; tests/networks/test_newer_versions.py trains without it to the same weights. The public list,
    # layer.non_trainable_variables, also has the variables of nested layers and the weights of frozen ones.
    own = getattr(layer, "_non_trainable_variables", None)
    if own is not None:
        return list(own)
    warn_once(
        f"Keras {keras.__version__} has no list of the variables that a layer creates; frozen weights count as "
        "its state"
    )
    nested = {id(variable) for inner in layers_of(layer) for variable in inner.variables}
    return [variable for variable in layer.non_trainable_variables if id(variable) not in nested]


def bare_variables(network: keras.Model) -> Iterator[tuple[keras.Layer, str]]:
    """Each layer that holds a tf.Variable, which Keras 3 neither trains nor saves, with the attribute's name."""
    for layer in (network, *layers_of(network)):
        for name, value in vars(layer).items():
            # TensorFlow lists what an object holds under names with this prefix, again.
            if not name.startswith("_self_") and any(isinstance(each, tf.Variable) for each in _items(value)):
                yield layer, name


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
    each.__class__ = subclass


def _collect(layer: keras.Layer, found: dict[int, keras.Layer]) -> None:
    found[id(layer)] = layer
    for inner in _items(list(vars(layer).values())):
        if isinstance(inner, keras.Layer) and id(inner) not in found:
            _collect(inner, found)


def _items(value: object) -> Iterator[object]:
    """The value itself, or what lists, tuples, sets and dicts hold at any depth."""
    if isinstance(value, list | tuple | set | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _items(each)
    else:
        yield value
