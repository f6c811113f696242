"""What the manifest says about packed arrays, and the files with what lies beside the samples."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hvdgan.cli.config import Config
from hvdgan.data.arrays import conditions
from hvdgan.data.arrays.source import ArraySource
from hvdgan.data.base.source import Source
from hvdgan.data.formats.array_codec import stored_type
from hvdgan.data.formats.manifest import CONDITIONS, CONSTANTS
from hvdgan.data.packing.channel_statistics import of_json, together
from hvdgan.data.packing.shard_writer import write_whole


def facts_of(source: ArraySource, names: Sequence[str], shards: dict[str, Any]) -> dict[str, Any]:
    """Shapes, types, names, units and statistics.

    Args:
        source: the arrays.
        names: names of the conditions.
        shards: facts about each shard, in their order.
    """
    images, inputs = source.values.images, source.values.inputs
    own = source.parts[-1]
    its = source.parts[0] if len(source.parts) == 2 else None
    found = [[of_json(each) for each in facts["statistics"]] for facts in shards.values()]
    statistics = [together(each).described() for each in zip(*found, strict=True)]
    conditions_map, constants = source.values.conditions, source.values.constants
    return {
        "shape": list(own.shape),
        "dtype": stored_type(own.stored.dtype).str,
        "channel_names": list(images.channels),
        "units": list(images.units),
        "statistics": statistics[-1],
        "input_shape": None if its is None else list(its.shape),
        "input_dtype": None if its is None else stored_type(its.stored.dtype).str,
        "input_channel_names": [] if inputs is None else list(inputs.channels),
        "input_units": [] if inputs is None else list(inputs.units),
        "input_statistics": None if its is None else statistics[0],
        "condition_names": list(names),
        "condition_units": [] if conditions_map is None else list(conditions_map.units),
        "constant_names": [] if constants is None else list(constants.channels),
        "constant_units": [] if constants is None else list(constants.units),
    }


def conditions_of(source: Source, config: Config) -> tuple[np.ndarray | None, list[str]]:
    """Conditions beside the samples or of --condition-table, float64 (N, k), and their names.

    Raises:
        UserError: the table does not fit the samples.
    """
    table = config.arrays.condition_table
    if table is not None:
        return conditions.of_table(table, config.arrays.conditions, source)
    own = source.values.conditions
    return source.conditions, [] if own is None else list(own.channels)


def write_beside(folder: Path, source: ArraySource, numbers: np.ndarray | None, kept: np.ndarray) -> list[str]:
    """Write the conditions of the packed samples and the constants; return the names of the files.

    Args:
        folder: DST.
        source: the arrays.
        numbers: conditions of all samples (N, k), or None.
        kept: numbers of the packed samples.
    """
    beside: dict[str, np.ndarray] = {}
    if numbers is not None:
        beside[CONDITIONS] = numbers[kept].astype(np.dtype("<f8"))
    if source.constants is not None:
        beside[CONSTANTS] = source.constants.astype(stored_type(source.constants.dtype))
    for name, array in beside.items():
        write_array(folder / name, array)
    return list(beside)


def write_array(path: Path, array: np.ndarray) -> None:
    """Write an .npy file."""
    file = io.BytesIO()
    np.save(file, np.ascontiguousarray(array))
    write_whole(path, file.getvalue())
