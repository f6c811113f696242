"""Wraps a network so that it takes and returns numbers in the units of the data."""

from typing import Any

import keras

from hvdgan.cli.errors import UserError
from hvdgan.recipe import DataSpec
from hvdgan.recipe.data_spec import KERAS
from hvdgan.values.sample_values import SampleValues
from hvdgan.values.value_map import ValueMap

_INPUTS = ("inputs", "conditions", "constants", "images")
"""names of a network's inputs whose numbers have a map"""


def physical(network: keras.Model, spec: DataSpec) -> tuple[keras.Model, list[str]]:
    """A network of standard Keras operations in the units of the data.

    An input named `inputs`, `conditions`, `constants` or `images` takes numbers of the data, and an output of a
    sample's shape returns them; all others stay as they are.

    Args:
        network: functional network, such as the generator.
        spec: facts about the data of the run.

    Returns:
        The network, and a description of each input and output that is now in the units of the data; the network
        itself and an empty list, if there is none.

    Raises:
        UserError: a map of the user's own cannot be expressed in Keras operations.
    """
    if spec.values is None or spec.is_pictures or not getattr(network, "inputs", None):
        return network, []
    wrapped: list[str] = []
    inputs = [keras.Input(batch_shape=each.shape, dtype=each.dtype, name=each.name) for each in network.inputs]
    given = [_mapped_input(each, spec.values, wrapped) for each in inputs]
    returned = network(given if len(given) > 1 else given[0])
    outputs = keras.tree.map_structure(lambda each: _mapped_output(each, spec, wrapped), returned)
    if not wrapped:
        return network, []
    return keras.Model(inputs, outputs, name=network.name), wrapped


def _mapped_input(tensor: Any, values: SampleValues, wrapped: list[str]) -> Any:
    value_map = values.parts()[tensor.name] if tensor.name in _INPUTS else None
    if value_map is None or value_map.is_identity or tensor.shape[-1] != len(value_map.channels):
        return tensor
    wrapped.append(f"{tensor.name} ({value_map})")
    return _applied(value_map, tensor, forward=True)


def _mapped_output(tensor: Any, spec: DataSpec, wrapped: list[str]) -> Any:
    assert spec.values is not None
    if tuple(tensor.shape[1:]) != spec.shape or spec.values.images.is_identity:
        return tensor
    wrapped.append(f"samples ({spec.values.images})")
    return _applied(spec.values.images, tensor, forward=False)


def _applied(value_map: ValueMap, tensor: Any, *, forward: bool) -> Any:
    try:
        return value_map.forward_of(tensor, KERAS) if forward else value_map.inverse_of(tensor, KERAS)
    except Exception as error:  # the user's own functions may raise anything on a tensor
        raise UserError(
            f"--units physical: the map {value_map} cannot be expressed in Keras operations "
            f"({' '.join(str(error).split())[:100]}); write its functions with keras.ops, or give --units network"
        ) from error
