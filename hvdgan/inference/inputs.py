"""Supplies what samples start from: samples of data, or blank ones, and conditions given by the user."""

import dataclasses
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hvdgan.data import BadImage, Samples, conditions, open_source
from hvdgan.data.bad_files import content_of
from hvdgan.data.order import sample_indices
from hvdgan.data.pictures import find
from hvdgan.data.pixels import SUFFIXES, read_size
from hvdgan.data.samples import arrays_seen
from hvdgan.errors import RunError, UserError
from hvdgan.errors.shared_errors import ALONE, Peers, on_all
from hvdgan.inference.any_size import sized
from hvdgan.inference.trained import TrainedNetworks
from hvdgan.recipe import DataSpec
from hvdgan.recipe.sampling import Input
from hvdgan.settings.config import Config
from hvdgan.settings.own_code import names_own_data, refuse_foreign
from hvdgan.values.sample_values import Missing, SampleValues, named_arrays
from hvdgan.values.value_map import ValueMap


def blank_inputs(spec: DataSpec, conditions: np.ndarray | None = None) -> Iterator[Input]:
    """Yield blank samples without end, with every class and every row of conditions (N, k) in turn."""
    layout, numbers = spec.record_layout, np.uint8 if spec.is_pictures else np.float32
    blank = {"images": np.zeros(layout.shape, numbers)}
    if layout.input_shape is not None:
        blank["inputs"] = np.zeros(layout.input_shape, numbers)
    blank |= named_arrays({name: np.zeros(layout.whole(each), np.float32) for name, each in spec.array_shapes.items()})
    for number in itertools.count():
        one: Input = {**blank, "numbers": np.array(number, np.int64)}
        if spec.num_classes:
            one["labels"] = np.array(number % spec.num_classes, np.int32)
        if conditions is not None:
            one["conditions"] = conditions[number % len(conditions)]
        yield one


def data_inputs(trained: TrainedNetworks, data: str | None, seed: int, axes: str | None = None) -> Iterator[Input]:
    """Yield samples of --data, or of the run, without end in an order given by the seed; broken ones are skipped.

    A UserError says why the data cannot be opened, a RunError that no sample can be read.
    """
    source = open_data(trained, data, axes=axes).mapped(maps_of(trained.recipe.data))
    trained.recipe.data = dataclasses.replace(trained.recipe.data, constants=source.constants)
    return _in_order(source, seed)


def _in_order(source: Samples, seed: int) -> Iterator[Input]:
    failed = 0
    for place in itertools.count():
        index = int(sample_indices(seed, place, 1, len(source))[0])
        try:
            parts = source.fetch(index)
        except BadImage as error:
            failed += 1
            if failed >= len(source):
                raise RunError(f"--data {source.name}: none of the images can be read; the last: {error}") from error
            continue
        failed = 0
        facts = source.facts(np.array([index]))
        yield {**parts, **{name: values[0] for name, values in facts.items()}}


def open_data(trained: TrainedNetworks, data: str | None, peers: Peers = ALONE, axes: str | None = None) -> Samples:
    """Open the data of a run, or others like them: with its settings, classes, conditions and constants.

    Their numbers are not mapped yet.
    """
    config, spec, code = trained.config, trained.recipe.data, trained.manifest["code"]
    if data is None:
        if names_own_data(config.data):
            on_all(lambda: refuse_foreign(f"{trained.checkpoint}: --data", config.data, code), peers, "the data")
        try:
            return _opened(config, spec, peers)
        except UserError as error:
            raise UserError(f"{error}; if the data of the run have moved, name them or others with --data") from error
    config = _with_axes(config, axes)
    if data == config.data:
        return _opened(config, spec, peers)
    source = _opened(_for_others(config, data, spec, spec.record_layout.shape), spec, peers)
    if source.labels is not None and source.num_classes and spec.num_classes:
        names, known = tuple(source.class_names or ()), spec.class_names
        if source.num_classes != spec.num_classes or (names and known and names != known):
            other = ", ".join(sorted({*names} ^ {*known})[:5] if names and known else ()) or "their number or order"
            raise UserError(
                f"--data {source.name}: {source.num_classes} classes, and {spec.num_classes} in training, which differ "
                f"in {other}; give data of the same classes"
            )
    return source


def open_samples(
    config: Config, spec: DataSpec, images: str, peers: Peers = ALONE, axes: str | None = None
) -> tuple[Samples, DataSpec]:
    """Open samples that another program made, of the shape that networks make, in the units of the data.

    They have the arrays of the data if their file does.
    """
    values = SampleValues(maps_of(spec).images, arrays=maps_of(spec).arrays)
    absent: dict[str, Any] = {"condition_table": None, "condition_values": None, "constants": None, "inputs": None}
    config = _with_axes(config, axes)
    arrays = dataclasses.replace(config.arrays, crop=(), conditions=(), **absent)
    made = dataclasses.replace(
        spec, input_shape=None, constants_shape=None, conditions=(), values=values, layout=None, constants=None
    )
    try:
        source = _opened(_for_others(dataclasses.replace(config, arrays=arrays), images, spec, spec.shape), made, peers)
    except UserError as error:
        if spec.array_shapes:
            lacks = dataclasses.replace(config.arrays, arrays=(), values_of=None, axes_of=None)
            images_alone = dataclasses.replace(maps_of(spec), arrays={})
            others = dataclasses.replace(spec, array_shapes={}, values=images_alone)
            return open_samples(dataclasses.replace(config, arrays=lacks), others, images, peers)
        raise UserError(str(error).replace("--data ", "--images ")) from error
    return source.mapped(values), dataclasses.replace(made, num_classes=source.num_classes)


def maps_of(spec: DataSpec) -> SampleValues:
    """The maps of the run, which apply to other data, too."""
    if spec.values is None:
        raise RunError("the manifest of the checkpoint has no maps of the numbers (data.spec.values); name another one")
    return spec.values


def _with_axes(config: Config, axes: str | None) -> Config:
    return config if axes is None else dataclasses.replace(config, arrays=dataclasses.replace(config.arrays, axes=axes))


def _for_others(config: Config, data: str, spec: DataSpec, shape: Sequence[int]) -> Config:
    """The settings of a run with other data: pictures are brought to a size, and the shape of arrays is compared.

    The order of a table's rows would be that of the run's own data.
    """
    changes: dict[str, Any] = {"arrays": dataclasses.replace(config.arrays, condition_order="names")}
    changes["data_options"] = config.data_options if names_own_data(data) else ()
    others = dataclasses.replace(config, data=data, image_size=None, channels=None, **changes)
    if not spec.is_pictures:
        return others
    return dataclasses.replace(others, image_size=(shape[0], shape[1]), channels=1 if shape[2] == 1 else 3)


def open_fields(
    trained: TrainedNetworks, data: str | None, axes: str | None = None, *, with_truth: bool = False
) -> Samples:
    """Open whole fields of any size, like those whose parts a run was trained on, with its maps.

    If the recipe takes pairs, the inputs alone suffice, unless they are wanted `with_truth`.
    """
    spec, config, path = trained.recipe.data, _with_axes(trained.config, axes), data or trained.config.data
    if names_own_data(path) and data is None:
        refuse_foreign(f"{trained.checkpoint}: --data", path, trained.manifest["code"])
    arrays = dataclasses.replace(config.arrays, crop=(), condition_order="names")
    options = config.data_options if names_own_data(path) else ()
    config = dataclasses.replace(config, arrays=arrays, data=path, data_options=options, image_size=None, fit=None)
    found = find(path, SUFFIXES).files if spec.is_pictures and os.path.isdir(path) else []
    if found:  # others of the folder are refused if they have another size
        width, height = read_size(found[0], content_of(path, found[0]))
        config = dataclasses.replace(config, image_size=(height, width), channels=1 if spec.channels == 1 else 3)
    try:
        source = _opened(config, spec, ALONE, any_size=True)
    except UserError as error:
        if with_truth or spec.input_shape is None or spec.is_pictures or not os.path.exists(path):
            raise
        arrays = dataclasses.replace(arrays, axes=arrays.input_axes)
        config = dataclasses.replace(config, data=f"{path}:{arrays.inputs or 'inputs'}", arrays=arrays)
        try:
            source = _opened(config, spec, ALONE, any_size=True)
        except UserError as of_inputs:
            raise UserError(f"{error}; or, with the inputs alone: {of_inputs}") from error
    return source.mapped(maps_of(spec))


def _opened(config: Config, spec: DataSpec, peers: Peers, *, any_size: bool = False) -> Samples:
    """Open data as the settings of a run say, whose maps apply, and refuse those on which it was not trained."""
    # The maps of the run apply, and those that its settings name would call functions.
    config = dataclasses.replace(config, arrays=dataclasses.replace(config.arrays, condition_values=None))
    source = open_source(config, paired=spec.input_shape is not None, peers=peers, unmapped=True, any_size=any_size)
    if source.is_pictures != (spec.is_pictures and config.arrays.values is None):
        found, trained = ("8-bit pictures", "arrays") if source.is_pictures else ("arrays", "8-bit pictures")
        raise UserError(f"--data {config.data}: {found}, and the run was trained on {trained}; give such data")
    are_inputs = any_size and source.inputs is not None and source.inputs.name == source.images.name
    if any_size:
        small, seen = source.layout.input_shape or source.layout.shape, spec.input_shape or spec.shape
        space = [mine * whole // its for mine, whole, its in zip(small, spec.shape[:-1], seen, strict=False)]
        of_training, spec = (spec.missing.mask if spec.missing else None), sized(spec, space)
        missing = source.missing and Missing(source.missing.fill, None if are_inputs else source.missing.mask)
        if missing and missing.mask is None and of_training is not None:  # the mask is one of the constants
            is_same = of_training.shape == spec.shape
            missing = Missing(missing.fill, of_training if is_same else np.zeros(spec.shape, bool))
        source = source.replace(layout=spec.record_layout if are_inputs else source.layout, missing=missing)
    shapes, expected = ((each.shape, each.input_shape) for each in (source.layout, spec.record_layout))
    facts: list[tuple[str, Any, Any]] = [("shapes of a sample and its input", shapes, expected)]
    for part in ("inputs",) if are_inputs else ("images", "inputs"):
        now, before = (_channels(values.parts()[part]) for values in (source.values, maps_of(spec)))
        if now and before:  # data that do not name them have those of the run
            facts.append((f"channels of the {part}", now, before))
    facts.append(("shapes of the arrays", arrays_seen(source, maps_of(spec)), dict(spec.array_shapes)))
    if spec.conditions:
        facts.append(("conditions", getattr(source.values.conditions, "channels", ()), spec.conditions))
    if spec.constants_shape is not None:
        fields = 0 if source.constants is None else source.constants.shape[-1]
        fields += source.missing is not None and source.missing.mask is not None
        facts.append(("number of constant fields", fields, spec.constants_shape[-1]))
    for what, found, expected in facts:
        if found != expected:
            hint = "the same, or the axes of these data with --axes" if what.startswith("shapes") else "the same"
            raise UserError(f"--data {source.name}: {what}: {found}, and {expected} in training; give {hint}")
    return source.replace(layout=spec.record_layout)


def _channels(value_map: ValueMap | None) -> tuple[str, ...]:
    """The names of a part's channels; empty if they are mere numbers, which the data do not name."""
    return () if value_map is None or all(map(str.isdecimal, value_map.channels)) else value_map.channels


def given_conditions(text: str | None, path: Path | None, spec: DataSpec) -> np.ndarray | None:
    """The conditions of samples as networks see them, float32 (N, k), whose rows the samples take in turn, or None.

    They are given in the units of the data: as --condition energy=50,theta=1.57 or as --conditions, a CSV table whose
    header names them all or an .npy array (N, k).
    """
    if text is None and path is None:
        return None
    flag, names, value_map = f"--condition {text}", list(spec.conditions), maps_of(spec).conditions
    if not names or value_map is None:
        raise UserError(f"{flag if path is None else f'--conditions {path}'}: the run has no conditions; leave it out")
    if text is not None:
        if path is not None:
            raise UserError("--condition: one condition for all samples; leave it out beside --conditions")
        pairs = [tuple(map(str.strip, part.partition("=")[::2])) for part in text.split(",")]
        if sorted(name for name, _ in pairs) != sorted(names):
            raise UserError(f"{flag}: expected {','.join(f'{name}=NUMBER' for name in names)}")
        numbers = conditions.columns_of(flag, [name for name, _ in pairs], [[number for _, number in pairs]], names)
    else:
        assert path is not None
        flag = f"--conditions {path}"
        numbers = _of_file(path, flag, names)
    with np.errstate(all="ignore"):
        seen = value_map.forward(numbers)
    if words := value_map.lost_in_words(numbers, seen, lambda row: "" if path is None else f" of row {row[0] + 1}"):
        raise UserError(f"{flag}: {words}; expected numbers that the map of the run makes finite")
    if words := value_map.outside_in_words(seen):
        print(f"hvdgan: warning: {flag}: {words}", file=sys.stderr, flush=True)
    return seen


def _of_file(path: Path, flag: str, names: Sequence[str]) -> np.ndarray:
    if path.suffix.lower() != ".npy":
        return conditions.columns_of(flag, *conditions.read_table(path, flag), names)
    try:
        numbers = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UserError(f"{flag}: cannot be read: {error}; expected an array of numbers") from error
    if numbers.ndim != 2 or numbers.shape[1] != len(names) or not len(numbers) or numbers.dtype.kind not in "fiu":
        raise UserError(f"{flag}: shape {numbers.shape}; expected (N, {len(names)}) numbers for {', '.join(names)}")
    return numbers.astype(np.float64)
