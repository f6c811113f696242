"""Opens arrays as --data names them: FILES, or FILES:NAME, with inputs, conditions and constants beside the samples."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from hvdgan.cli.config import Config
from hvdgan.cli.data_config import ArrayConfig
from hvdgan.cli.errors import UserError
from hvdgan.data import conditions
from hvdgan.data.axes import ArrangedStore
from hvdgan.data.pixels import ResizedStore
from hvdgan.data.samples import Samples, fingerprint_of, of_pictures
from hvdgan.data.store import Container, Store, sides, spread
from hvdgan.values import value_map
from hvdgan.values.missing import Missing
from hvdgan.values.missing import parse as parse_missing
from hvdgan.values.sample_values import Layout, SampleValues
from hvdgan.values.steps import FailedFunction
from hvdgan.values.value_map import ValueMap

_LABELS = "labels"
_INPUTS = "inputs"
_SLACK = 1e-3  # of the range, which earlier processing may leave
_LEAST_SPAN = 0.05
"""least difference of numbers whose range is taken for [0, 1] or [-1, 1]; smaller ones would nearly vanish"""


def samples_of(config: Config, container: Container, name: str, *, paired: bool, unmapped: bool = False) -> Samples:
    """Samples of the arrays in a file, or in several.

    Args:
        config: settings of the data.
        container: the files.
        name: name of the array with the samples; "" if --data gives none.
        paired: True if each sample must come with an input.
        unmapped: True if the maps of another run apply: arrays get the map `none`.
    """
    config = container.settings(config, paired=paired)
    images = container.find(name, f"--data {config.data}") if name else container.get(_chosen(container, config))
    images.refuse_other_types()
    _refuse_unclear(images, config.arrays.axes, f"--data {images.name}", "--axes")
    inputs = _inputs(container, config.arrays, images) if paired else None
    labels = _labels(container, config, images)
    if not container.holds_arrays and _are_pictures(config, images, inputs):
        return pictures_of(config, container, images, inputs, labels, paired)
    return arrays_of(without_maps(config) if unmapped else config, container, images, inputs, labels, paired)


def without_maps(config: Config) -> Config:
    """The settings with the map `none` for each part of arrays."""
    maps: dict[str, Any] = dict.fromkeys(("values", "input_values", "constant_values", "condition_values"), "none")
    return dataclasses.replace(config, arrays=dataclasses.replace(config.arrays, **maps))


def _refuse_unclear(stored: Store, axes: str | None, where: str, flag: str) -> None:
    """Refuse an array whose first dimension may not be that of the samples, unless its axes are given."""
    if stored.unclear and axes is None:
        raise UserError(
            f"{where}: {stored.unclear}; or, if each {stored.dims[0]} is a sample, name the axes of one with {flag}"
        )


def _labels(container: Container, config: Config, images: Store) -> np.ndarray | None:
    """Classes as int32 (N,): those of the files' names, or an array beside the samples."""
    labels = container.labels
    if labels is None and images.shape and _LABELS in container.names() and _LABELS not in config.arrays.conditions:
        stored = container.get(_LABELS)
        stored.refuse_others(images, f"--data {config.data}: labels")
        labels = stored.whole() if stored.shape else np.zeros(())
    if labels is None:
        return None
    if labels.shape[1:] == (1,):
        labels = labels[:, 0]
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu" or (labels != labels.astype(np.int32)).any():
        raise UserError(
            f"--data {config.data}: labels of shape {labels.shape} and type {labels.dtype}; expected one integer of "
            f"int32 for each of {images.shape[0]:,} samples; rename the array if it holds no classes, or make it a "
            f"condition with --conditions {_LABELS}"
        )
    return labels.astype(np.int32)


def _chosen(container: Container, config: Config) -> str:
    """The name of the samples where --data gives none."""
    settings = config.arrays
    beside = {_LABELS, *(settings.constants or "").split(","), *settings.conditions}
    if container.names() != [""]:
        beside |= {*(settings.inputs or _INPUTS).split(",")} | {settings.inputs or _INPUTS}
    others = [name for name in container.names() if name not in beside or not name]
    chosen = container.samples_among(others)
    if not chosen and container.names() != [""]:
        found = ", ".join(sorted(container.names())) or "(none)"
        raise UserError(
            f"--data {config.data}: found the arrays {found}; name the one with the samples, as in --data "
            f"{config.data}:{others[0] if others else 'NAME'}"
        )
    return chosen


def _inputs(container: Container, settings: ArrayConfig, images: Store) -> Store | None:
    """The array of inputs, or None if the file has none of the usual name and no flag names one."""
    if settings.inputs is None and _INPUTS not in container.names():
        return None
    inputs = container.find(settings.inputs or _INPUTS, "--inputs")
    inputs.refuse_other_types()
    _refuse_unclear(inputs, settings.input_axes, f"--inputs {inputs.name}", "--input-axes")
    inputs.refuse_others(images, "--inputs")
    return inputs


def _are_pictures(config: Config, images: Store, inputs: Store | None) -> bool:
    """Check that the arrays hold 8-bit pictures: uint8 of 1 or 3 channels, and nothing that arrays alone have."""
    flags = ("values", "axes", "input_values", "input_axes", "constants", "missing")
    if any(getattr(config.arrays, flag) for flag in flags):
        return False
    few = (1, 3) if config.channels is None else (1, 3, 4)  # the fourth is opacity
    shapes = [each.shape for each in (images, inputs) if each is not None and each.dtype == np.uint8]
    fit = [len(shape) == 3 or (len(shape) == 4 and shape[3] in few) for shape in shapes if 0 not in shape]
    return all(fit) and len(fit) == 1 + (inputs is not None)


def pictures_of(
    config: Config,
    container: Container,
    images: Store,
    inputs: Store | None,
    labels: np.ndarray | None,
    paired: bool,
) -> Samples:
    """8-bit pictures in arrays, and their inputs in another array or in the left half of each.

    The fingerprint covers shapes, types, labels and 64 pictures spread over the array: it distinguishes data sets, not
    single pixels.
    """
    name, stores = config.data, [images]
    if paired:
        (height, width), count = images.shape[1:3], images.shape[0]
        if (width != 2 * height) if inputs is None else (inputs.shape[0] != count):
            described = "" if inputs is None else f" of images and {inputs.shape} of inputs"
            raise UserError(
                f"--data {name}: shape {images.shape}{described}; pairs are two arrays of equal number, inputs and "
                "images, or one array whose width is twice its height, with an input in the left half and its image in "
                "the right"
            )
        stores = [inputs or images, images]
    channels = config.channels
    if len({each.shape[-1] if len(each.shape) == 4 else 1 for each in stores}) > 1:
        channels = channels or 3
    halves = (0, 1) if paired and inputs is None else (None, None)
    sizes = [config.image_size] * len(stores)
    if inputs is not None and inputs.shape[1:3] != images.shape[1:3]:
        if config.image_size is not None and sides(config.image_size) != images.shape[1:3]:
            raise UserError(
                f"--image-size: the images of {name} have {images.shape[1]} x {images.shape[2]} pixels and the inputs "
                f"{inputs.shape[1]} x {inputs.shape[2]}, which both keep; leave the flag out"
            )
        sizes = [None, None]
    resized = [
        ResizedStore(
            name, each, image_size=size, channels=channels, fit=config.fit, half=half, has_names=container.has_names
        )
        for each, size, half in zip(stores, sizes, halves, strict=False)
    ]
    told_by: list[bytes] = [b"pairs"] if paired else []
    for each in stores:
        told_by += [f"array {each.shape} {each.dtype.str}".encode(), each.readable(spread(each.shape[0])).tobytes()]
    samples = of_pictures(
        resized[-1],
        name=name,
        image_size=resized[-1].size,
        channels=resized[-1].shape[-1],
        told_by=[*told_by, b"" if labels is None else labels.tobytes(), container.identity],
        fit=config.fit,
        paired=paired,
        inputs=resized[0] if paired else None,
        input_size=resized[0].size,
        labels=labels,
        class_names=container.class_names,
        bad_files=container.bad_files,
        folder=container.folder,
        paths=container.paths,
    )
    return _with_conditions(samples, config, container, images)


def arrays_of(
    config: Config,
    container: Container,
    stored: Store,
    stored_inputs: Store | None,
    labels: np.ndarray | None,
    paired: bool,
) -> Samples:
    """Arrays of any shape and type, as they are stored, each with an input of its own if there are inputs.

    The fingerprint covers shapes, types, labels, constants and 64 samples spread over the data: it distinguishes data
    sets, not single numbers.
    """
    settings, count = config.arrays, stored.shape[0] if stored.shape else 0
    images = ArrangedStore(stored, settings.axes, "--axes", f"--data {stored.name}")
    refuse_picture_flags(config, images.shape[1:])
    inputs = _arranged_inputs(config, stored_inputs, count) if paired else None
    stores = [images] if inputs is None else [inputs, images]
    looked_at = [each.readable(spread(count)) for each in stores]
    maps, remarks, beside = dict[str, ValueMap](), list[str](), [("images", "--values", settings.values)]
    if inputs is not None:
        beside.insert(0, ("inputs", "--input-values", settings.input_values))
    for (part, flag, given), each, some in zip(beside, stores, looked_at, strict=True):
        maps[part] = _map_of(given, each, some, flag, each.channel_names)
        remarks += _outside(maps[part], some, flag) if given else []
    constants = None
    if settings.constants is not None:
        constants, maps["constants"] = _constants(container, settings, images)
    told_by: list[bytes] = [container.identity]
    for each, some in zip(stores, looked_at, strict=True):
        told_by += [f"{each.shape} {each.dtype.str} {each.axes}".encode(), np.ascontiguousarray(some).tobytes()]
    told_by += [b"" if each is None else each.tobytes() for each in (labels, constants)]
    samples = Samples(
        name=config.data,
        images=images,
        inputs=inputs,
        values=SampleValues(**maps),
        layout=Layout(images.shape[1:], None if inputs is None else inputs.shape[1:]),
        fingerprint=fingerprint_of(b"array", told_by),
        labels=labels,
        class_names=container.class_names,
        constants=constants,
        missing=None if settings.missing is None else _missing(settings.missing, looked_at[-1]),
        bad_files=container.bad_files,
        remarks=remarks,
        assumed_axes=[words for each in stores[::-1] for words in each.assumed],
        folder=container.folder,
        paths=container.paths,
    )
    return _with_conditions(samples, config, container, stored)


def _with_conditions(samples: Samples, config: Config, container: Container, stored: Store) -> Samples:
    """The samples with the arrays that --conditions names, unless they are columns of a table."""
    settings = config.arrays
    if not settings.conditions or settings.condition_table is not None:
        return samples
    numbers, names, units = conditions.of_container(container, settings.conditions, stored)
    return samples.described(numbers, conditions.map_of(settings.condition_values, names, units), *names)


def _map_of(given: str | None, stored: Store, sample: np.ndarray, flag: str, channels: Sequence[str]) -> ValueMap:
    """The map of an array's numbers: the declared one, or that of floats within [0, 1] or [-1, 1]."""
    units = stored.units_of(len(channels))
    if given is not None:
        return value_map.parse(given, flag, channels, units)
    example = f"such as {flag} standard, {flag} range:LOW,HIGH or {flag} none"
    if stored.dtype.kind != "f":
        raise UserError(
            f"--data {stored.name}: integers of type {stored.dtype} without a map to the numbers that networks see; "
            f"declare one, {example}"
        )
    finite = sample[np.isfinite(sample)]
    if not finite.size:
        raise UserError(f"--data {stored.name}: none of {len(sample)} samples looked at has a finite number")
    low, high = float(finite.min()), float(finite.max())
    if low >= -1 - _SLACK and high <= 1 + _SLACK and (close := _too_close(sample, channels)):
        raise UserError(
            f"--data {stored.name}: {close} in {len(sample)} samples looked at, which networks would hardly tell apart "
            f"without a map; declare one, {example}"
        )
    for bottom, found in ((0.0, "range:0,1"), (-1.0, "none")):
        if low >= bottom - _SLACK and high <= 1 + _SLACK:
            return value_map.parse(found, flag, channels, units)
    raise UserError(
        f"--data {stored.name}: numbers from {low:g} to {high:g} in {len(sample)} samples looked at, outside of [0, 1] "
        f"and [-1, 1]; declare their map, {example}"
    )


def _too_close(sample: np.ndarray, channels: Sequence[str]) -> str:
    """The numbers of all channels, or of the first one, that nearly vanish in [0, 1], in words; "" if there are none.

    A channel of equal numbers, such as an empty one, counts for none: a map would not tell them apart either. Nor does
    one number of vectors: a border pixel of a flattened picture may hardly differ.
    """
    finite, others = np.isfinite(sample), tuple(range(sample.ndim - 1))
    lows = np.where(finite, sample, np.inf).min(axis=others)
    highs = np.where(finite, sample, -np.inf).max(axis=others)
    spans = [("", lows.min(), highs.max())]
    if sample.ndim > 2:
        spans += [(f"channel {each[0]}: ", *each[1:]) for each in zip(channels, lows, highs, strict=True)]
    close = [(name, low, high) for name, low, high in spans if 0 < high - low < _LEAST_SPAN]
    return "" if not close else "{}numbers from {:g} to {:g}".format(*close[0])


def _outside(made: ValueMap, sample: np.ndarray, flag: str) -> list[str]:
    """A line on the numbers looked at that lie outside of a declared range; none if there are none."""
    try:
        words = "" if made.lacks_statistics else made.outside_in_words(sample)
    except FailedFunction:  # met again, and named, when the samples are read
        words = ""
    return [f"{flag}: in {len(sample)} samples looked at, {words}"] if words else []


def _missing(text: str, looked_at: np.ndarray) -> Missing:
    """The number in place of missing ones, and the places that have none in any sample looked at."""
    fill = parse_missing(text)
    if looked_at.dtype.kind != "f":
        return Missing(fill)
    mask = np.isnan(looked_at).all(axis=0)
    return Missing(fill, mask if mask.any() else None)


def refuse_picture_flags(config: Config, shape: Sequence[int]) -> None:
    """Refuse --image-size, --channels and --fit where they would change an array."""
    if config.image_size is not None and sides(config.image_size) != tuple(shape[:-1]):
        raise UserError(
            f"--image-size: resizes 8-bit pictures; the samples of {config.data} are arrays of shape {tuple(shape)}, "
            "which they keep; leave the flag out, or give --crop to see a part of each"
        )
    if config.channels is not None and config.channels != shape[-1]:
        raise UserError(f"--channels {config.channels}: the samples of {config.data} have {shape[-1]}; leave it out")
    if config.fit is not None:
        raise UserError(
            f"--fit {config.fit}: resizes 8-bit pictures; {config.data} holds arrays, which keep their shape"
        )


def _arranged_inputs(config: Config, stored: Store | None, count: int) -> ArrangedStore:
    if stored is None:
        raise UserError(
            f"--data {config.data}: the recipe takes pairs, and there is no array `inputs` beside the samples; name "
            "the array with --inputs"
        )
    if stored.shape[:1] != (count,):
        raise UserError(f"--inputs: {stored.name} has {stored.shape[0]:,} entries, and there are {count:,} samples")
    return ArrangedStore(stored, config.arrays.input_axes, "--input-axes", f"--inputs {stored.name}")


def _constants(container: Container, settings: ArrayConfig, images: ArrangedStore) -> tuple[np.ndarray, ValueMap]:
    """The fields that all samples share, (*space, K), and their map."""
    assert settings.constants is not None
    shape = images.shape[1:]
    stored = container.find_constant(settings.constants, "--constants")
    stored.refuse_other_types()
    fields = stored.whole()
    if fields.shape == tuple(shape[:-1]):
        fields = fields[..., None]
    if fields.shape[:-1] != tuple(shape[:-1]):
        raise UserError(
            f"--constants {settings.constants}: shape {stored.shape}; expected {tuple(shape[:-1])}, that of a sample "
            "in space, with or without an axis of fields after it"
        )
    dims = stored.dims[: len(images.space)]
    if dims and images.space and "" not in (*dims, *images.space) and dims != images.space:
        raise UserError(
            f"--constants {settings.constants}: the dimensions are {', '.join(dims)}, and those of a sample in space "
            f"{', '.join(images.space)}; expected the same ones in the same order; transpose or rename them"
        )
    if not np.isfinite(fields).all():
        raise UserError(f"--constants {settings.constants}: some numbers are not finite; fill them in")
    count = fields.shape[-1]
    names = stored.channels if len(stored.channels) == count else [f"{settings.constants}_{n}" for n in range(count)]
    return fields, _map_of(settings.constant_values, stored, fields[None], "--constant-values", names)
