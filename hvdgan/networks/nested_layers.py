"""Reaches the layers nested in a network, and changes their classes.

No other module walks the layers of a network, reads their private lists, or changes the class of a layer or an
optimizer, except for that of BatchNorm in hvdgan/distributed/batch_norm.py.
"""

from collections.abc import Iterable, Iterator, Mapping

import keras
import tensorflow as tf


def layers_of(network: keras.Model) -> list[keras.Layer]:
    """All layers nested in a network, at any depth, without the network itself."""
    # Not public, as is the list below; tests/training/test_rank_state.py has layers in layers.
    return list(network._flatten_layers(include_self=False, recursive=True))


def created_as_not_trainable(layer: keras.Layer) -> list[keras.Variable]:
    """The variables that a layer has created as not trainable, without those of its nested layers."""
    # The public list, layer.non_trainable_variables, also has those of nested layers and the weights of frozen ones.
    return list(layer._non_trainable_variables)


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


def _items(value: object) -> Iterator[object]:
    """The value itself, or what lists, tuples, sets and dicts hold at any depth."""
    if isinstance(value, list | tuple | set | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _items(each)
    else:
        yield value
