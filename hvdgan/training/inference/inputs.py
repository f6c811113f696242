"""Supplies the samples that drawing starts from: those of a data source, or blank ones."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from hvdgan.cli.config import Config
from hvdgan.cli.errors import RunError, UserError
from hvdgan.cli.shared_errors import ALONE, Peers
from hvdgan.data import BadImage, Source, open_source
from hvdgan.data.arrays import conditions
from hvdgan.data.arrays.mapped import mapped
from hvdgan.data.base.scan_cache import NO_SCANS, ScanCache
from hvdgan.data.order import sample_indices
from hvdgan.recipe import DataSpec
from hvdgan.training.inference.trained import Trained
from hvdgan.training.sampling.drawing import Input
from hvdgan.values.sample_values import Layout, SampleValues


def blank_inputs(spec: DataSpec, conditions: np.ndarray | None = None) -> Iterator[Input]:
    """Yield blank samples without end, with every class and every row of conditions in turn.

    Args:
        spec: facts about the data.
        conditions: numbers as networks see them, float32 (N, k); None: there are none.
    """
    blank = np.zeros(spec.parts.record, np.uint8 if spec.is_pictures else np.float32)
    for number in itertools.count():
        one: Input = {"images": blank, "numbers": np.int64(number)}
        if spec.num_classes:
            one["labels"] = np.int32(number % spec.num_classes)
        if conditions is not None:
            one["conditions"] = conditions[number % len(conditions)]
        yield one


def data_inputs(trained: Trained, data: str | None, seed: int) -> Iterator[Input]:
    """Yield samples of a data source without end, in an order given by the seed; broken ones are skipped.

    Args:
        trained: run whose recipe starts from images.
        data: value of --data; None: the data that the run was trained on.
        seed: seed of the order.

    Raises:
        UserError: the data cannot be opened.
        RunError: no image can be read.
    """
    source = mapped(open_data(trained.config, trained.recipe.data, data), maps_of(trained.recipe.data))
    trained.recipe.data = dataclasses.replace(trained.recipe.data, constants=source.constants)
    return _in_order(source, seed)


def open_data(
    config: Config, spec: DataSpec, data: str | None, peers: Peers = ALONE, scans: ScanCache = NO_SCANS
) -> Source:
    """Open the data of a run, or others of the same shape; their numbers are not mapped yet.

    Args:
        config: settings of the run.
        spec: facts about the data of the run.
        data: value of --data; None: the data that the run was trained on.
        peers: the ranks; each calls this.
        scans: cache of what was found out about the data.

    Raises:
        UserError: the data cannot be opened, or have another shape, other channels, or no conditions.
    """
    wanted, hint = _wanted(config, spec, data)
    if spec.is_pictures:
        height, width, channels = spec.parts.shape
        size = height if height == width else (height, width)
        wanted = dataclasses.replace(wanted, image_size=size, channels=1 if channels == 1 else 3)
    try:
        return _fitting(open_source(wanted, paired=spec.input_shape is not None, peers=peers, scans=scans), spec)
    except UserError as error:
        raise UserError(f"{error}{hint}") from error


def open_samples(config: Config, spec: DataSpec, images: str, peers: Peers = ALONE) -> tuple[Source, DataSpec]:
    """Open samples that another program made: in the units of the data, without inputs, conditions and constants.

    Their axes are those of --axes, like those of the data, or have the channels last, as hvdgan.sample writes them.

    Args:
        config: settings of the run.
        spec: facts about the data of the run.
        images: value of --images, as --data names data.
        peers: the ranks; each calls this.

    Returns:
        The samples as networks see them, and the facts about them.

    Raises:
        UserError: they cannot be opened, or have another shape than the samples of the run.
    """
    layout, values = Layout(spec.parts.shape, None, spec.parts.crop), SampleValues(maps_of(spec).images)
    spec = dataclasses.replace(
        spec, input_shape=None, constants_shape=None, conditions=(), values=values, layout=layout, constants=None
    )
    absent: dict[str, Any] = {"condition_table": None, "condition_values": None, "constants": None, "inputs": None}
    arrays = dataclasses.replace(config.arrays, conditions=(), **absent)
    try:
        source = open_data(dataclasses.replace(config, arrays=arrays), spec, images, peers)
    except UserError as error:
        if arrays.axes is None:
            raise
        arrays = dataclasses.replace(arrays, axes=f"{arrays.axes.upper().replace('C', '')}C")
        try:
            source = open_data(dataclasses.replace(config, arrays=arrays), spec, images, peers)
        except UserError:
            raise error from None
    return mapped(source, values), dataclasses.replace(spec, num_classes=source.num_classes)


def each_repeated(inputs: Iterator[Input], members: int) -> Iterator[Input]:
    """Yield each input `members` times in a row, so that sample n starts from input n // members."""
    return itertools.chain.from_iterable(itertools.repeat(one, members) for one in inputs)


def _wanted(config: Config, spec: DataSpec, data: str | None) -> tuple[Config, str]:
    """The settings with which data are opened, and a hint for an error.

    The rows of a table in order belong to the samples of the run alone, so other data must hold the conditions.
    """
    if not data:
        return config, "; if the images of the run have moved, name them or others with --data"
    wanted, table = dataclasses.replace(config, data=data), config.arrays.condition_table
    if data == config.data or table is None or not conditions.is_in_order(table):
        return wanted, ""
    arrays = dataclasses.replace(config.arrays, condition_table=None, conditions=spec.conditions)
    return dataclasses.replace(wanted, arrays=arrays), (
        f"; the rows of --condition-table {table} are in the order of {config.data}, so other data must hold "
        f"{', '.join(spec.conditions)}, or the table a column `file` with their paths"
    )


def _fitting(source: Source, spec: DataSpec) -> Source:
    """The source, if its samples have the shapes, and the channels in the order, that the networks were trained on."""
    if (source.layout.shape, source.layout.input_shape) != (spec.parts.shape, spec.parts.input_shape):
        raise UserError(
            f"--data {source.name}: samples of shape {source.layout.shape} with inputs {source.layout.input_shape}; "
            f"the run was trained on {spec.parts.shape} with inputs {spec.parts.input_shape}"
        )
    for part in ("images", "inputs"):
        before, now = (_channels(values, part) for values in (spec.values, source.values))
        if before and now and before != now:
            raise UserError(
                f"--data {source.name}: the channels of the {part} are {', '.join(now)}, and the run was trained on "
                f"{', '.join(before)}; name these, in this order"
            )
    return source


def _channels(values: SampleValues | None, part: str) -> tuple[str, ...]:
    """The names of a part's channels; empty if they are mere numbers, which the data do not name."""
    value_map = None if values is None else values.parts()[part]
    return () if value_map is None or all(map(str.isdecimal, value_map.channels)) else value_map.channels


def maps_of(spec: DataSpec) -> SampleValues:
    """The maps of the run, which apply to other data, too."""
    if spec.values is None:
        raise RunError("the checkpoint does not name the maps of its numbers; resume the run for a step")
    return spec.values


def _in_order(source: Source, seed: int) -> Iterator[Input]:
    failed = 0
    for place in itertools.count():
        index = int(sample_indices(seed, place, 1, len(source))[0])
        try:
            image = source.fetch(index)
        except BadImage as error:
            failed += 1
            if failed >= len(source):
                raise RunError(f"--data {source.name}: none of the images can be read; the last: {error}") from error
            continue
        failed = 0
        facts = source.facts(np.array([index]))
        yield {"images": image, **{name: values[0] for name, values in facts.items()}}
