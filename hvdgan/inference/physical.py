"""The units of the data in an export: a network that takes and returns them, and the maps as JSON in its files."""

import json
import zipfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import keras

from hvdgan.cli.errors import UserError
from hvdgan.recipe import DataSpec
from hvdgan.recipe.data_spec import KERAS
from hvdgan.values.sample_values import SampleValues
from hvdgan.values.value_map import ValueMap

_INPUTS = ("inputs", "conditions", "constants", "images")
"""names of a network's inputs whose numbers have a map"""


def physical(network: keras.Model, spec: DataSpec, samples: Collection[int]) -> tuple[keras.Model, list[str]]:
    """A network of standard Keras operations in the units of the data.

    An input named `inputs`, `conditions`, `constants` or `images` takes numbers of the data, and outputs that are the
    samples return them; all others stay as they are.

    Args:
        network: functional network, such as the generator.
        spec: facts about the data of the run.
        samples: numbers of the outputs that are the samples.

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
    flat = keras.tree.flatten(returned)
    flat = [_mapped_output(each, spec, wrapped) if place in samples else each for place, each in enumerate(flat)]
    outputs = keras.tree.pack_sequence_as(returned, flat)
    if not wrapped:
        return network, []
    return keras.Model(inputs, outputs, name=network.name), wrapped


def _mapped_input(tensor: Any, values: SampleValues, wrapped: list[str]) -> Any:
    value_map = values.parts()[tensor.name] if tensor.name in _INPUTS else None
    if value_map is None or value_map.is_identity or tensor.shape[-1] != len(value_map.channels):
        return tensor
    wrapped.append(f"{tensor.name} ({value_map})")
    return applied(value_map, tensor, forward=True)


def _mapped_output(tensor: Any, spec: DataSpec, wrapped: list[str]) -> Any:
    assert spec.values is not None
    if spec.values.images.is_identity:
        return tensor
    wrapped.append(f"samples ({spec.values.images})")
    return applied(spec.values.images, tensor, forward=False)


def applied(value_map: ValueMap, tensor: Any, *, forward: bool) -> Any:
    """Apply a map, or undo it, by Keras operations."""
    try:
        return value_map.forward_of(tensor, KERAS) if forward else value_map.inverse_of(tensor, KERAS)
    except Exception as error:  # the user's own functions may raise anything on a tensor
        raise UserError(
            f"--units physical: the map {value_map} cannot be expressed in Keras operations "
            f"({' '.join(str(error).split())[:100]}); write its functions with keras.ops, or give --units network"
        ) from error


NAME = "value_maps.json"


def described(values: SampleValues) -> dict[str, Any]:
    """The maps by the names of the parts: as text, and as steps with the numbers, channels and units."""
    parts = values.parts().items()
    return {name: None if each is None else {"map": str(each), **each.to_json()} for name, each in parts}


def list_maps(path: Path, values: SampleValues | None, applied: Sequence[str]) -> None:
    """Add the maps to a .keras file, a zip in which Keras ignores other members, or to the folder of a SavedModel.

    Args:
        path: exported file or folder.
        values: maps of the run; None: nothing is known, and nothing is written.
        applied: description of each input and output of the network that is in the units of the data.
    """
    if values is None:
        return
    text = json.dumps({"applied": list(applied), "value_maps": described(values)}, indent=1) + "\n"
    if path.is_dir():
        # assets.extra is the place in a SavedModel for files that TensorFlow neither writes nor loads.
        extra = path / "assets.extra" / NAME
        extra.parent.mkdir()
        extra.write_text(text, encoding="utf-8")
        return
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(zipfile.ZipInfo(NAME), text)  # with the same date in every file
