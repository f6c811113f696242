"""What the manifest says about packed arrays, and the files with what lies beside the samples or pictures."""

import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hvdgan.cli.config import Config
from hvdgan.cli.errors import UserError
from hvdgan.data.arrays import conditions
from hvdgan.data.arrays.source import ArraySource
from hvdgan.data.base.source import Source
from hvdgan.data.formats.array_codec import stored_type
from hvdgan.data.formats.manifest import CONDITIONS, CONSTANTS
from hvdgan.data.packing.channel_statistics import of_json, together
from hvdgan.data.packing.shard_writer import write_whole


class Conditions(NamedTuple):
    """Numbers that describe each picture, float64 (N, k), with the names and units of the columns."""

    numbers: np.ndarray
    names: list[str]
    units: list[str]


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
        return conditions.of_table(table, config.arrays.conditions, source)[:2]
    own = source.values.conditions
    return source.conditions, [] if own is None else list(own.channels)


def conditions_of_pictures(
    config: Config, source: Source | None, names: Sequence[str], *, lacks: bool
) -> Conditions | None:
    """Conditions of pictures: of --condition-table, or of the arrays or records in which they lie; or None.

    Args:
        config: settings of the data.
        source: the pictures in arrays or records; None: files of a folder or an archive.
        names: names of these files.
        lacks: True if broken files are not among these.

    Raises:
        UserError: they are nowhere, or do not fit the pictures.
    """
    settings = config.arrays
    if source is not None:
        numbers, known = conditions_of(source, config)
        own = source.values.conditions
        units = [] if own is None or settings.condition_table is not None else list(own.units)
        return None if numbers is None else Conditions(numbers, known, units)
    if settings.condition_table is not None:
        numbers, known, _ = conditions.of_rows(
            settings.condition_table, settings.conditions, len(names), lambda number: names[number], lacks=lacks
        )
        return Conditions(numbers, known, [])
    if settings.conditions:
        raise UserError(f"--conditions {','.join(settings.conditions)}: name their file with --condition-table")
    return None


def without_conditions(config: Config) -> Config:
    """The settings of the pictures alone."""
    arrays = dataclasses.replace(config.arrays, conditions=(), condition_table=None)
    return dataclasses.replace(config, arrays=arrays)


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
