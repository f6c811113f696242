"""Chooses what is computed again in the backward pass: parts of functional networks, and the blocks of StyleGAN2."""

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from hvdgan.networks.nested_layers import change_class, layers_of
from hvdgan.networks.recomputation.calls import called, variables_of
from hvdgan.networks.recomputation.cuts import Part, parts_of
from hvdgan.networks.stylegan2 import StyledConv, ToImage

_BLOCKS = (StyledConv, ToImage)
"""layers with many inner results; nothing in them depends on whether they train"""


class Recomputed:
    """A network or a layer that computes its inner results again in the backward pass."""


def recompute(networks: Iterable[keras.Model]) -> None:
    """Let networks compute their activations again in the backward pass, in training mode.

    A functional or sequential network is cut into parts. Of StyleGAN2's generator each block is a part. Any other
    network, or one that cannot be cut, is left as it is.

    Args:
        networks: built networks; their variables and names stay as they are.
    """
    for network in networks:
        if parts := parts_of(network):
            change_class(network, _in_parts(network, parts))
            continue
        for layer in layers_of(network):
            if type(layer) in _BLOCKS:
                change_class(layer, _as_a_whole(layer))


def is_recomputed(network: keras.Model) -> bool:
    """Whether recompute() has changed a network."""
    return any(isinstance(each, Recomputed) for each in (network, *layers_of(network)))


def _in_parts(network: keras.Model, parts: list[Part]) -> type[keras.Model]:
    """A subclass of a network's class that computes one part after another."""
    kind = type(network)
    variables = [variables_of(part.model) for part in parts]
    sequential = isinstance(network, keras.Sequential)
    structures = (network.inputs[0], network.outputs[0]) if sequential else (network.input, network.output)

    class InParts(Recomputed, kind):  # type: ignore[misc, valid-type]
        def call(self, inputs: Any, training: bool | None = None, mask: Any = None, **keywords: Any) -> Any:
            flat = keras.tree.flatten(inputs)
            # For a list of inputs Keras gives a list of masks, all of them None.
            masked = any(each is not None for each in keras.tree.flatten(mask))
            if not training or masked or keywords or not _fits(inputs, flat, structures[0]):
                return super().call(inputs, training=training, mask=mask, **keywords)
            values = {id(symbol): value for symbol, value in zip(self.inputs, flat, strict=True)}
            for part, own in zip(parts, variables, strict=True):
                given = [values[id(symbol)] for symbol in part.inputs]
                results = called(_call_of(part), own, given)
                values |= {id(symbol): value for symbol, value in zip(part.outputs, results, strict=True)}
            results = [values[id(symbol)] for symbol in self.outputs]
            return results[0] if len(results) == 1 else keras.tree.pack_sequence_as(structures[1], results)

    return _named(InParts, kind)


def _call_of(part: Part) -> Any:
    def call(*inputs: tf.Tensor) -> list[tf.Tensor]:
        return keras.tree.flatten(part.model(list(inputs), training=True))

    return call


def _fits(inputs: Any, flat: list[Any], structure: Any) -> bool:
    """Whether inputs are tensors of the ranks and in the structure that the network was made with."""
    symbols = keras.tree.flatten(structure)
    return (
        len(flat) == len(symbols)
        and isinstance(inputs, dict) == isinstance(structure, dict)
        and all(map(tf.is_tensor, flat))
        and all(len(mine.shape) == len(symbol.shape) for mine, symbol in zip(flat, symbols, strict=True))
    )


def _as_a_whole(layer: keras.Layer) -> type[keras.Layer]:
    """A subclass of a layer's class that computes the layer again as a whole."""
    kind, variables = type(layer), variables_of(layer)

    class AsAWhole(Recomputed, kind):  # type: ignore[misc, valid-type]
        def __call__(self, *inputs: Any) -> Any:
            return called(super().__call__, variables, inputs)

    return _named(AsAWhole, kind)


def _named(kind: type, like: type) -> type:
    kind.__name__, kind.__qualname__ = f"Recomputed{like.__name__}", f"Recomputed{like.__qualname__}"
    return kind
