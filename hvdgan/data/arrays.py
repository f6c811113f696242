"""Opens arrays as --data names them: FILES, or FILES:NAME, with inputs, conditions and more beside the samples."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from hvdgan.data import conditions
from hvdgan.data.axes import ArrangedStore
from hvdgan.data.pixels import ResizedStore
from hvdgan.data.samples import Samples, fingerprint_of, of_pictures
from hvdgan.data.store import Container, DataRequest, Store, sides, spread
from hvdgan.data.unclear import Unclear, all_at_once
from hvdgan.errors import UserError
from hvdgan.settings.config import Config
from hvdgan.settings.data import ArrayConfig
from hvdgan.values import value_map
from hvdgan.values.sample_values import Layout, Missing, of_parts, parse_missing
from hvdgan.values.value_map import ValueMap

_LABELS = "labels"
_INPUTS = "inputs"
_SLACK = 1e-3  # of the range, which earlier processing may leave
_LEAST_SPAN = 0.05
"""least difference of numbers whose range is taken for [0, 1] or [-1, 1]; smaller ones would nearly vanish"""


def samples_of(request: DataRequest, container: Container, name: str) -> Samples:
    """Samples of the arrays in files: of the one called `name`, or if it is "" of the one that can be meant.

    The fingerprint covers shapes, types, labels, constants and 64 samples spread over the data, not every number.
    """

    def opened(config: Config, name: str) -> Samples:
        return _opened(dataclasses.replace(request, config=config), container, name)

    return all_at_once(opened, container.settings(request.config, paired=request.paired), name)


def _opened(request: DataRequest, container: Container, name: str) -> Samples:
    config = request.config
    images = container.find(name, f"--data {config.data}") if name else container.get(_chosen(container, config))
    images.refuse_other_types()
    inputs = _inputs(container, config.arrays, images) if request.paired else None
    beside, unused = _labels(container, config, images)
    beside |= {"folder": container.folder, "paths": container.paths}
    if not container.holds_arrays and _are_pictures(config, images, inputs):
        samples = _pictures(request, container, images, inputs, beside)
    else:
        samples = _arrays(request, container, images, inputs, beside)
    samples = with_conditions(samples.replace(remarks=[*samples.remarks, *unused]), config, container, images)
    return _with_arrays(samples, request, container, images)


def with_conditions(samples: Samples, config: Config, container: Container, stored: Store) -> Samples:
    """The samples with the arrays that --conditions names, unless they are columns of a table."""
    settings = config.arrays
    if not settings.conditions or settings.condition_table is not None:
        return samples
    numbers, names, units = conditions.of_container(container, settings.conditions, stored)
    return samples.described(numbers, conditions.map_of(settings.condition_values, names, units), *names)


def _labels(container: Container, config: Config, images: Store) -> tuple[dict[str, Any], list[str]]:
    """Classes as int32 (N,) or None, and their names; and a warning of labels that are neither texts nor integers."""
    labels, names, count = container.labels, container.class_names, next(iter(images.shape), 0)
    is_other = _LABELS in (*config.arrays.conditions, *config.arrays.arrays)
    if labels is not None or not count or is_other or _LABELS not in container.names():
        return {"labels": labels, "class_names": names}, []
    try:
        stored = container.get(_LABELS)
        stored.refuse_others(images, f"--data {config.data}: labels")
        labels = stored.whole()
        if labels.size == count in labels.shape:  # a row or a column
            labels = labels.reshape(count)
        if labels.dtype.kind == "U" and labels.shape == (count,):
            texts = labels.tolist()
            names = names if names and {*texts} <= {*names} else sorted({*texts})
            labels = np.array([*map({name: number for number, name in enumerate(names)}.get, texts)])
        with np.errstate(invalid="ignore"):
            is_class = labels.dtype.kind in "biuf" and labels.shape == (count,) and labels == labels.astype(np.int32)
        if not np.all(is_class):
            raise UserError(
                f"--data {config.data}: labels of shape {labels.shape} and type {labels.dtype}; expected one text or "
                f"integer of int32 for each of {count:,} samples, or --conditions {_LABELS}"
            )
        return {"labels": labels.astype(np.int32), "class_names": names}, []
    except UserError as error:
        return {"labels": None}, [f"warning: {error}; they are not used as classes"]


def _chosen(container: Container, config: Config) -> str:
    """The name of the samples where --data gives none."""
    settings, names = config.arrays, container.names()
    inputs = settings.inputs or _INPUTS
    beside = {_LABELS, inputs, *inputs.split(","), *(settings.constants or "").split(",")}
    beside |= {*map(container.full_name, (*settings.conditions, *settings.arrays))}
    others = [name for name in names if name not in beside or not name]
    chosen = container.samples_among(others)
    if not chosen and names != [""]:
        likely = container.likely(others) if others else "NAME"
        raise Unclear(
            f"--data {config.data}: found the arrays {', '.join(sorted(names)) or '(none)'}; name the one with the "
            f"samples: images in data of your own, else as in --data {config.data}:{likely}",
            "--data",
            likely,
        )
    return chosen


def _inputs(container: Container, settings: ArrayConfig, images: Store) -> Store | None:
    """The array of inputs, or None if the file has none of the usual name and no flag names one."""
    if settings.inputs is None and _INPUTS not in container.names():
        return None
    return _beside(container, settings.inputs or _INPUTS, "--inputs", images)


def _beside(container: Container, name: str, flag: str, images: Store) -> Store:
    """An array with an entry for each of the samples."""
    found = container.find(name, flag)
    found.refuse_other_types()
    found.refuse_others(images, flag)
    if found.shape[:1] != images.shape[:1]:
        count = found.shape[0] if found.shape else 0
        raise UserError(f"{flag}: {found.name} has {count:,} entries; expected {images.shape[0]:,}")
    return found


def _with_arrays(samples: Samples, request: DataRequest, container: Container, images: Store) -> Samples:
    """The samples with the arrays that --arrays names, which the fingerprint then covers with their names."""
    settings, stores, maps = request.config.arrays, dict[str, Store](), dict[str, ValueMap]()
    axes, given = (by_name(each, flag, settings.arrays) for flag, each in named_settings(settings).items())
    told, remarks, assumed = [samples.fingerprint.encode()], [*samples.remarks], [*samples.assumed_axes]
    for name in settings.arrays:
        stored = _beside(container, name, "--arrays", images)
        stores[name] = each = ArrangedStore(stored, axes.get(name), f"--axes-of {name}=", f"--arrays {stored.name}")
        some = each.readable(spread(each.shape[0], request.looked_at))
        declared = "none" if request.unmapped else given.get(name)
        maps[name] = _map_of_array(f"--values-of {name}=", declared, each, some)
        remarks += _outside(f"--values-of {name}", maps[name], some)
        told += [name.encode(), f"{each.shape} {each.dtype.str} {each.axes}".encode(), some.tobytes()]
        assumed += each.assumed
    if not stores:
        return samples
    values = dataclasses.replace(samples.values, arrays=maps)
    fingerprint = fingerprint_of(b"arrays", told)
    changes: dict[str, Any] = {"values": values, "remarks": remarks, "assumed_axes": assumed}
    return samples.replace(arrays=stores, fingerprint=fingerprint, **changes)


def named_settings(settings: ArrayConfig) -> dict[str, str | None]:
    """The settings of arrays by their names, by the flags."""
    return {"--axes-of": settings.axes_of, "--values-of": settings.values_of}


def by_name(text: str | None, flag: str, names: Sequence[str]) -> dict[str, str]:
    """Read NAME=TEXT;NAME=TEXT of arrays."""
    found = dict[str, str]()
    for part in filter(None, (text or "").split(";")):
        name, equals, value = map(str.strip, part.partition("="))
        if not equals or name not in names or name in found:
            known = f"expected NAME=TEXT, with each of {', '.join(names)} at most once"
            raise UserError(f"{flag} {part}: {known if names else 'name the arrays with --arrays'}")
        found[name] = value
    return found


def _likely_map(numbers: np.ndarray) -> str:
    """The map of numbers of unknown scale: of logarithms if a few are much larger than the others."""
    is_skewed = numbers.size > 0 and numbers.min() >= 0 and numbers.max() > 20 * np.median(numbers)
    return "log1p+standard" if is_skewed else "standard"


def _map_of_array(flag: str, given: str | None, stored: Store, sample: np.ndarray) -> ValueMap:
    """The map of an array's numbers: the declared one, or none for numbers within [-1, 1]."""
    if given is None and len(finite := sample[np.isfinite(sample)]) and np.abs(finite).max() > 1 + _SLACK:
        low, high, classes = float(finite.min()), float(finite.max()), int(finite.max()) + 1
        classes_are = f"{flag}onehot:{classes} for classes, " if stored.dtype.kind in "iu" else ""
        raise Unclear(
            f"--arrays {stored.name}: numbers from {low:g} to {high:g} in {len(sample)} samples looked at, outside of "
            f"[-1, 1]; declare their map, such as {classes_are}{flag}range:LOW,HIGH or {flag}none",
            flag,
            f"onehot:{classes}" if classes_are else _likely_map(finite),
        )
    channels = stored.channel_names
    return value_map.parse(given or "none", flag, channels, stored.units_of(len(channels)), widens=True)


def _are_pictures(config: Config, images: Store, inputs: Store | None) -> bool:
    """Check that the arrays hold 8-bit pictures: uint8 of 1 or 3 channels, and nothing that arrays alone have."""
    flags = ("values", "axes", "input_values", "input_axes", "constants", "missing")
    if any(getattr(config.arrays, flag) for flag in flags):
        return False
    few = (1, 3) if config.channels is None else (1, 3, 4)  # the fourth is opacity
    return all(
        each.dtype == np.uint8
        and 0 not in each.shape
        and (len(each.shape) == 3 or (len(each.shape) == 4 and each.shape[3] in few))
        for each in (images, inputs)
        if each is not None
    )


def _pictures(
    request: DataRequest, container: Container, images: Store, inputs: Store | None, beside: dict[str, Any]
) -> Samples:
    """8-bit pictures in arrays, and their inputs in another array or in the left half of each."""
    config, paired = request.config, request.paired
    name, stores, channels = config.data, [images], config.channels
    if paired:
        if inputs is None and images.shape[2] != 2 * images.shape[1]:
            raise UserError(
                f"--data {name}: shape {images.shape}; pairs are two arrays, inputs and images, or one array whose "
                "width is twice its height, with an input in the left half and its image in the right"
            )
        stores = [inputs or images, images]
    if len({each.shape[-1] if len(each.shape) == 4 else 1 for each in stores}) > 1:
        channels = channels or 3
    size = config.image_size
    if inputs is not None and inputs.shape[1:3] != images.shape[1:3]:
        if size is not None and sides(size) != images.shape[1:3]:
            raise UserError(
                f"--image-size: the images of {name} have {images.shape[1]} x {images.shape[2]} pixels and the inputs "
                f"{inputs.shape[1]} x {inputs.shape[2]}, which both keep; leave the flag out"
            )
        size = None
    halves = (0, 1) if paired and inputs is None else (None, None)
    how: dict[str, Any] = {"channels": channels, "fit": config.fit, "has_names": container.has_names}
    resized = [
        ResizedStore(name, each, image_size=size, half=half, **how) for each, half in zip(stores, halves, strict=False)
    ]
    looked_at = [each.readable(spread(each.shape[0], request.looked_at)) for each in stores]
    return of_pictures(
        request,
        resized[-1],
        told_by=_told_by(container, stores, looked_at, beside["labels"]),
        inputs=resized[0] if paired else None,
        **beside,
    )


def _arrays(
    request: DataRequest, container: Container, stored: Store, stored_inputs: Store | None, beside: dict[str, Any]
) -> Samples:
    """Arrays of any shape and type, as they are stored, each with an input of its own if there are inputs."""
    config, settings, count = request.config, request.config.arrays, stored.shape[0] if stored.shape else 0
    if request.unmapped:
        settings = dataclasses.replace(settings, values="none", input_values="none", constant_values="none")
    images = ArrangedStore(stored, settings.axes, "--axes", f"--data {stored.name}")
    refuse_picture_flags(config, images.shape[1:])
    parts, inputs = {"images": images}, None
    if stored_inputs is not None:
        inputs = ArrangedStore(stored_inputs, settings.input_axes, "--input-axes", f"--inputs {stored_inputs.name}")
        parts = {"inputs": inputs, **parts}
    elif request.paired:
        raise UserError(
            f"--data {config.data}: the recipe takes pairs, and there is no array `inputs` beside the samples; name "
            "the array with --inputs"
        )
    looked_at = {part: each.readable(spread(count, request.looked_at)) for part, each in parts.items()}
    given = {"inputs": ("--input-values", settings.input_values), "images": ("--values", settings.values)}
    maps = {part: _map_of(*given[part], each, looked_at[part], each.channel_names) for part, each in parts.items()}
    declared = {part: flag for part, (flag, given_map) in given.items() if part in maps and given_map}
    remarks = [line for part, flag in declared.items() for line in _outside(flag, maps[part], looked_at[part])]
    constants = None
    if settings.constants is not None:
        constants, maps["constants"] = _constants(container, settings, images, any_size=request.any_size)
    return Samples(
        name=config.data,
        images=images,
        inputs=inputs,
        values=of_parts(maps),
        layout=Layout(images.shape[1:], None if inputs is None else inputs.shape[1:]),
        fingerprint=fingerprint_of(
            b"array", _told_by(container, [*parts.values()], [*looked_at.values()], beside["labels"], constants)
        ),
        constants=constants,
        remarks=remarks,
        missing=None if settings.missing is None else _missing(settings.missing, looked_at["images"]),
        assumed_axes=[words for each in [*parts.values()][::-1] for words in each.assumed],
        **beside,
    )


def _told_by(
    container: Container, stores: Sequence[Store], looked_at: Sequence[np.ndarray], *others: np.ndarray | None
) -> list[bytes]:
    """What tells these samples from others."""
    parts = [container.identity, *(b"" if each is None else each.tobytes() for each in others)]
    for each, some in zip(stores, looked_at, strict=True):
        parts += [f"{each.shape} {each.dtype.str} {each.axes}".encode(), some.tobytes()]
    return parts


def _map_of(flag: str, given: str | None, stored: Store, sample: np.ndarray, channels: Sequence[str]) -> ValueMap:
    """The map of an array's numbers: the declared one, or that of floats within [0, 1] or [-1, 1]."""
    units = stored.units_of(len(channels))
    if given is not None:
        return value_map.parse(given, flag, channels, units)
    where, example = f"--data {stored.name}", f"such as {flag} standard, {flag} range:LOW,HIGH or {flag} none"
    if stored.dtype.kind != "f":
        raise Unclear(
            f"{where}: integers of type {stored.dtype} without a map to the numbers that networks see; declare one, "
            f"{example}",
            flag,
            _likely_map(sample),
        )
    finite = sample[np.isfinite(sample)]
    if not finite.size:
        raise UserError(f"{where}: none of {len(sample)} samples looked at has a finite number")
    low, high = float(finite.min()), float(finite.max())
    if low < -1 - _SLACK or high > 1 + _SLACK:
        raise Unclear(
            f"{where}: numbers from {low:g} to {high:g} in {len(sample)} samples looked at, outside of [0, 1] and "
            f"[-1, 1]; declare their map, {example}",
            flag,
            _likely_map(finite),
        )
    if close := _too_close(sample, channels):
        raise UserError(
            f"{where}: {close} in {len(sample)} samples looked at, which networks would hardly tell apart without a "
            f"map; declare one, {example}"
        )
    return value_map.parse("range:0,1" if low >= -_SLACK else "none", flag, channels, units)


def _outside(flag: str, value_map: ValueMap, sample: np.ndarray) -> list[str]:
    """A remark if numbers lie outside of the range that a flag has declared."""
    if value_map.lacks_statistics:
        return []
    with np.errstate(all="ignore"):  # numbers that cannot be mapped are named when they are read
        words = value_map.outside_in_words(value_map.forward(sample))
    return [f"{flag}: in {len(sample)} samples looked at, {words}"] * bool(words)


def _too_close(sample: np.ndarray, channels: Sequence[str]) -> str:
    """The numbers of all channels, or of the first one, that nearly vanish in [0, 1], in words; "" if there are none.

    A channel of equal numbers, such as an empty one, counts for none: a map would not tell them apart either. Nor does
    one number of vectors: a border pixel of a flattened picture may hardly differ.
    """
    parts = {"": sample}
    if sample.ndim > 2:
        parts |= {f"channel {name}: ": sample[..., place] for place, name in enumerate(channels)}
    for name, part in parts.items():
        finite = part[np.isfinite(part)]
        if finite.size and 0 < finite.max() - finite.min() < _LEAST_SPAN:
            return f"{name}numbers from {finite.min():g} to {finite.max():g}"
    return ""


def _missing(text: str, looked_at: np.ndarray) -> Missing:
    """The number in place of missing ones, and the places that have none in any sample looked at."""
    fill = parse_missing(text)
    if looked_at.dtype.kind != "f":
        return Missing(fill)
    mask = np.isnan(looked_at).all(axis=0)
    return Missing(fill, mask if mask.any() else None)


def refuse_picture_flags(config: Config, shape: Sequence[int]) -> None:
    """Refuse --image-size, --channels and --fit where they would change an array."""
    size = config.image_size
    if size is not None and sides(size) != tuple(shape[:-1]):
        flag = "--image-size"
    elif config.channels not in (None, shape[-1]):
        flag = f"--channels {config.channels}"
    elif config.fit is not None:
        flag = f"--fit {config.fit}"
    else:
        return
    raise UserError(
        f"{flag}: is for 8-bit pictures; the samples of {config.data} are arrays of shape {tuple(shape)}, which they "
        "keep; leave the flag out, or give --crop to see a part of each"
    )


def _constants(
    container: Container, settings: ArrayConfig, images: ArrangedStore, *, any_size: bool
) -> tuple[np.ndarray, ValueMap]:
    """The fields that all samples share, (*space, K), and their map."""
    assert settings.constants is not None
    space, where = images.shape[1:-1], f"--constants {settings.constants}"
    stored = container.find_constant(settings.constants, "--constants")
    stored.refuse_other_types()
    if any_size:
        space = stored.shape[: len(space)]
    if space not in (stored.shape, stored.shape[:-1]):
        raise UserError(
            f"{where}: shape {stored.shape}; expected {space}, that of a sample in space, with or without an axis of "
            "fields after it"
        )
    dims = stored.dims[: len(images.space)]
    if dims and images.space and "" not in (*dims, *images.space) and dims != images.space and not any_size:
        raise UserError(
            f"{where}: the dimensions are {', '.join(dims)}, and those of a sample in space "
            f"{', '.join(images.space)}; expected the same ones in the same order; transpose or rename them"
        )
    fields = stored.whole().reshape(*space, -1)
    if not np.isfinite(fields).all():
        raise UserError(f"{where}: some numbers are not finite; fill them in")
    count = fields.shape[-1]
    names = stored.channels if len(stored.channels) == count else [f"{settings.constants}_{n}" for n in range(count)]
    return fields, _map_of("--constant-values", settings.constant_values, stored, fields[None], names)
