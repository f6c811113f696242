"""Supplies the samples that drawing starts from: those of data, or blank ones."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from hvdgan.cli.config import Config
from hvdgan.cli.data_config import ArrayConfig
from hvdgan.cli.errors import RunError, UserError
from hvdgan.cli.shared_errors import ALONE, Peers, from_root
from hvdgan.data import BadImage, Samples, conditions, open_source
from hvdgan.data.kinds import spread
from hvdgan.data.order import sample_indices
from hvdgan.evaluation.sets import in_short
from hvdgan.inference.trained import TrainedNetworks
from hvdgan.recipe import DataSpec
from hvdgan.recipe.drawing import Input
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


def data_inputs(
    trained: TrainedNetworks, data: str | None, seed: int, say: Callable[[str], None] = lambda line: None
) -> Iterator[Input]:
    """Yield samples of a data source without end, in an order given by the seed; broken ones are skipped.

    Args:
        trained: run whose recipe starts from images.
        data: value of --data; None: the data that the run was trained on.
        seed: seed of the order.
        say: function that gets a line if the labels of other data are left out.

    Raises:
        UserError: the data cannot be opened.
        RunError: no image can be read.
    """
    found = open_data(trained.config, trained.recipe.data, data)
    if data is not None:
        found, about_labels = as_in_run(found, trained.recipe.data)
        if about_labels:
            say(about_labels)
    source = found.mapped(maps_of(trained.recipe.data))
    trained.recipe.data = dataclasses.replace(trained.recipe.data, constants=source.constants)
    return _in_order(source, seed)


def open_data(config: Config, spec: DataSpec, data: str | None, peers: Peers = ALONE) -> Samples:
    """Open the data of a run, or others of the same shape; their numbers are not mapped yet."""
    wanted, hint = _wanted(config, spec, data)
    try:
        return _opened(wanted, spec, [spec.parts], peers, are_others=wanted.data != config.data)
    except UserError as error:
        raise UserError(f"{error}{hint}") from error


def open_samples(config: Config, spec: DataSpec, images: str, peers: Peers = ALONE) -> tuple[Samples, DataSpec]:
    """Open samples that another program made: in the units of the data, without inputs, conditions and constants.

    They have the shape that the networks make. With --crop they may also have that of the data, and their centre is cut
    out, as that of the data is.
    """
    whole, values = Layout(spec.parts.shape, None, spec.parts.crop), SampleValues(maps_of(spec).images)
    spec = dataclasses.replace(
        spec, input_shape=None, constants_shape=None, conditions=(), values=values, layout=whole, constants=None
    )
    absent: dict[str, Any] = {"condition_table": None, "condition_values": None, "constants": None, "inputs": None}
    arrays = dataclasses.replace(config.arrays, conditions=(), **absent)
    wanted, are_others = dataclasses.replace(config, data=images, arrays=arrays), images != config.data
    layouts = [Layout(spec.shape), whole] if are_others and spec.shape != whole.shape else [whole]
    try:
        source = _opened(wanted, spec, layouts, peers, are_others=are_others)
    except UserError as error:
        raise UserError(str(error).replace("--data ", "--images ")) from error
    return source.mapped(values), dataclasses.replace(spec, num_classes=source.num_classes, layout=source.layout)


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


class _OtherData(UserError):
    """The data can be opened, and are not such as the run was trained on."""


def _opened(config: Config, spec: DataSpec, layouts: Sequence[Layout], peers: Peers, *, are_others: bool) -> Samples:
    """Open data with the first settings with which they are such as the run was trained on.

    Arrays need no maps, because those of the checkpoint apply.
    """
    pictures, errors = spec.is_pictures and config.arrays.values is None, list[UserError]()
    for settings, accepted in _candidates(config, spec, layouts, are_others=are_others):
        try:
            source = open_source(
                settings,
                paired=spec.input_shape is not None,
                peers=peers,
                unmapped=are_others or not pictures,
            )
            if source.is_pictures == pictures:
                source = source.replace(layout=_layout_among(source, accepted, layouts, peers))
                _check_parts(source, spec)
                return source
        except UserError as error:
            errors.append(error)
        else:
            found, trained = ("8-bit pictures", "arrays") if source.is_pictures else ("arrays", "8-bit pictures")
            raise UserError(f"--data {config.data}: {found}, and the run was trained on {trained}; give such data")
    raise next((error for error in errors if isinstance(error, _OtherData)), errors[0])


def _candidates(
    config: Config, spec: DataSpec, layouts: Sequence[Layout], *, are_others: bool
) -> Iterator[tuple[Config, Sequence[Layout]]]:
    """Yield settings with which data may be opened, and the layouts that their samples may then have.

    Pictures are brought to the size that is asked for, so that each layout needs settings of its own. Arrays keep their
    shape.
    """
    arrays = dataclasses.replace(config.arrays, crop=())
    axes = _axes(arrays, spec, are_others=are_others)
    groups: list[Sequence[Layout]] = [[layout] for layout in layouts] if spec.is_pictures else [layouts]
    for accepted in groups:
        wanted = config
        if spec.is_pictures:
            height, width, channels = accepted[0].shape
            size = height if height == width else (height, width)
            wanted = dataclasses.replace(config, image_size=size, channels=1 if channels == 1 else 3)
        elif are_others:  # their shape is compared
            wanted = dataclasses.replace(config, image_size=None, channels=None)
        for own, its in axes:
            yield dataclasses.replace(wanted, arrays=dataclasses.replace(arrays, axes=own, input_axes=its)), accepted


def _axes(arrays: ArrayConfig, spec: DataSpec, *, are_others: bool) -> Iterable[tuple[str | None, str | None]]:
    """The axes that samples and inputs may have, the most likely first.

    Other arrays than those of the run have the axes that --axes names, those that they have by themselves, or the
    channels last, as hvdgan.sample writes them. Those of the run itself have the channels last if no flag names their
    axes: an older version took them so where the shape is refused as unclear now.
    """
    given = arrays.axes, arrays.input_axes
    if spec.is_pictures and arrays.axes is None:
        return [given]
    first, second = (None if shape is None else "DHWC"[-len(shape) :] for shape in (spec.shape, spec.input_shape))
    if are_others:
        return dict.fromkeys([given, (None, None), (first, second)])
    own, its = (dict.fromkeys([flag, flag or last]) for flag, last in zip(given, (first, second), strict=True))
    return itertools.product(own, its)


def _layout_among(source: Samples, accepted: Sequence[Layout], layouts: Sequence[Layout], peers: Peers) -> Layout:
    """The layout that samples have; pictures that could have several have that of the size of their files."""
    shapes = source.layout.shape, source.layout.input_shape
    chosen = next((each for each in accepted if (each.shape, each.input_shape) == shapes), None)
    if chosen is None:
        expected = " or ".join(str(layout.shape) for layout in layouts)
        raise _OtherData(
            f"--data {source.name}: samples of shape {shapes[0]} with inputs {shapes[1]}; the run was trained on "
            f"{expected} with inputs {layouts[0].input_shape}"
        )
    if source.is_pictures and len(layouts) > 1:
        made, whole = (layout.shape[:2] for layout in layouts)
        sizes = _sizes_of_files(source, peers)
        wrong = sizes & {whole} if chosen is layouts[0] else sizes - {whole}
        if wrong:
            found = ", ".join(sorted(f"{width} x {height}" for height, width in sizes))
            raise _OtherData(
                f"--data {source.name}: pictures of {found} pixels; expected one size, {made[1]} x {made[0]} as the "
                f"networks make them, or {whole[1]} x {whole[0]}, of which --crop takes the centre"
            )
    return chosen


def _sizes_of_files(source: Samples, peers: Peers) -> set[tuple[int, ...]]:
    """Heights and widths of pictures as their files hold them, of at most 64; none if they are not known."""
    places = spread(len(source)).tolist()
    found = from_root(lambda: [source.own_size(each) for each in places], peers, f"--data {source.name}: sizes")
    return {tuple(size) for size in found if size is not None}


def _check_parts(source: Samples, spec: DataSpec) -> None:
    """Refuse channels of another order, and other conditions and constants, than the networks were trained on."""
    for part in ("images", "inputs"):
        before, now = (_channels(values, part) for values in (spec.values, source.values))
        if before and now and before != now:
            raise _OtherData(
                f"--data {source.name}: the channels of the {part} are {', '.join(now)}, and the run was trained on "
                f"{', '.join(before)}; name these, in this order"
            )
    given = () if source.values.conditions is None else source.values.conditions.channels
    if spec.conditions and given != spec.conditions:
        raise _OtherData(
            f"--data {source.name}: the conditions are {', '.join(given)}, and the run was trained with "
            f"{', '.join(spec.conditions)}; name these, in this order"
        )
    fields = 0 if source.constants is None else source.constants.shape[-1]
    fields += source.missing is not None and source.missing.mask is not None
    if spec.constants_shape is not None and fields != spec.constants_shape[-1]:
        raise _OtherData(
            f"--data {source.name}: {fields} constant fields, and the run was trained with {spec.constants_shape[-1]}; "
            "give these"
        )


def _channels(values: SampleValues | None, part: str) -> tuple[str, ...]:
    """The names of a part's channels; empty if they are mere numbers, which the data do not name."""
    value_map = None if values is None else values.parts()[part]
    return () if value_map is None or all(map(str.isdecimal, value_map.channels)) else value_map.channels


def maps_of(spec: DataSpec) -> SampleValues:
    """The maps of the run, which apply to other data, too."""
    if spec.values is None:
        raise RunError("the checkpoint does not name the maps of its numbers; resume the run for a step")
    return spec.values


def _in_order(source: Samples, seed: int) -> Iterator[Input]:
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


def as_in_run(source: Samples, spec: DataSpec, flag: str = "--data") -> tuple[Samples, str]:
    """Give the samples of other data the labels that they would have in the data of a run.

    Classes are paired by name, or by number where there are no names: data in folders number only those that they have.
    """
    if source.labels is None or not (source.num_classes and spec.num_classes):
        return source, ""
    names, line = source.class_names or [], ""
    if names and spec.class_names:
        known = {name: number for number, name in enumerate(spec.class_names[: spec.num_classes])}
        numbers = [known.get(name, -1) for name in names]
    elif bool(names) == bool(spec.class_names):
        numbers = list(range(spec.num_classes))
    elif source.num_classes == spec.num_classes:
        numbers, line = list(range(spec.num_classes)), _about_numbers(source, spec, flag)
    else:
        numbers = []
    numbers += [-1] * (source.num_classes - len(numbers))
    labels = np.array(numbers, np.int32)[source.labels]
    if labels.min() < 0:
        return _relabelled(source, None, spec), _about(source, spec, flag)
    if source.num_classes == spec.num_classes and np.array_equal(labels, source.labels):
        return source, line
    return _relabelled(source, labels, spec), line


def _relabelled(source: Samples, labels: np.ndarray | None, spec: DataSpec) -> Samples:
    """The samples with the labels of a run, or without labels."""
    if labels is None:
        return source.replace(labels=None, classes=0, class_names=None)
    return source.replace(labels=labels, classes=spec.num_classes, class_names=spec.class_names or source.class_names)


def _about(source: Samples, spec: DataSpec, flag: str) -> str:
    names, own = source.class_names, spec.class_names
    if names and own:
        found, expected = in_short(names), in_short(own)
    else:
        found, expected = f"0 to {source.num_classes - 1}", f"0 to {spec.num_classes - 1}"
    return (
        f"{flag} {source.name}: no labels are taken, because its classes are {found}, and those of the run {expected}; "
        "give data with all classes of the run, under the same names, to compare within classes"
    )


def _about_numbers(source: Samples, spec: DataSpec, flag: str) -> str:
    unnamed = "the data do" if spec.class_names else "the checkpoint does"
    return (
        f"{flag} {source.name}: classes are paired by number, because {unnamed} not name them: "
        f"{in_short(source.class_names or spec.class_names)} are 0 to {spec.num_classes - 1}"
    )
