"""Opens the samples that `--data` names."""

import contextlib
import dataclasses
import functools
import glob
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import h5py
import numpy as np

from hvdgan.data import conditions, hdf5_files, xarray_files
from hvdgan.data.arrays import samples_of
from hvdgan.data.bad_files import BadImage, printable
from hvdgan.data.builtin import is_builtin, open_builtin
from hvdgan.data.hdf5_files import Hdf5File
from hvdgan.data.joined_files import JoinedFiles
from hvdgan.data.numpy_files import open_npy_folder, open_numpy
from hvdgan.data.own_data import OwnData
from hvdgan.data.packed_files import PackedFiles, is_packed
from hvdgan.data.pictures import ARRAYS, JOINED, classes_of, find, first_suffix, open_pictures
from hvdgan.data.samples import Samples
from hvdgan.data.sharing import pack, unpack
from hvdgan.data.store import Container, spread
from hvdgan.data.tfrecords import files_named, open_records
from hvdgan.errors import UserError
from hvdgan.errors.shared_errors import ALONE, Peers, from_root
from hvdgan.settings.config import Config
from hvdgan.settings.own_code import names_own_data
from hvdgan.values.sample_values import Layout

_SIZE = 32
"""default height and width of pictures"""
_HIGHEST = 16
"""of 255: what numbers of 12 bits have that are stored in 16"""
EXPECTED = (
    "digits, synthetic, a folder or a .zip of images, a folder of .npy files or of packed files, arrays (.npy, .npz, "
    ".h5, .nc, .zarr; FILE:NAME for one of several, 'data/*.h5:NAME' for many files), TFRecord files (a path, or a "
    "pattern in quotes such as 'data/*.tfrecord'), keras:mnist and the like, or your own as my_module:source"
)
_OF_PATTERNS = (*hdf5_files.SUFFIXES, *xarray_files.SUFFIXES)
"""files of which a pattern can name several"""


def open_source(
    config: Config,
    *,
    paired: bool = False,
    peers: Peers = ALONE,
    unmapped: bool = False,
    in_order: bool = False,
) -> Samples:
    """Open what `--data` names.

    Args:
        config: settings of the data.
        paired: True if each sample must come with an input.
        peers: the ranks; each calls this, and they share the work.
        unmapped: True if the maps of another run apply: arrays need none then, and get `none`.
        in_order: True if one thread reads the samples in ascending order, as hvdgan.prepare does; TFRecord files may be
            compressed as a whole then.

    Raises:
        UserError: the data do not exist, hold no samples, are unclear, or too many are broken.
        RunError: the ranks do not see the same files.
    """
    source = _with_table(_opened(config, paired, peers, unmapped, in_order), config, peers)
    if source.is_pictures and not unmapped:
        refuse_array_flags(source, config)
        from_root(lambda: _refuse_dark(source), peers, f"--data {config.data}: its range")
    source = source.replace(remarks=[*source.remarks, *_about_classes(source)])
    if config.arrays.crop:
        return source.replace(layout=_cropped(source, config.arrays.crop))
    return source


def _opened(config: Config, paired: bool, peers: Peers, unmapped: bool, in_order: bool) -> Samples:
    data, size = config.data, config.image_size or _SIZE
    if is_builtin(data):
        if from_root(lambda: os.path.isdir(data) and first_suffix(data) is not None, peers, f"--data {data}: a folder"):
            raise UserError(f"--data {data}: a folder {data} is here, too; write ./{data} for it, or rename it")
        return open_builtin(config, size, peers, paired=paired)
    if data and (found := _container(config, peers)) is not None:
        samples = samples_of(config, *found, paired=paired, unmapped=unmapped)
        unwritten = from_root(lambda: [each.remark() for each in samples.stores], peers, f"--data {data}: its chunks")
        return samples.replace(remarks=[*samples.remarks, *filter(None, unwritten)])
    if data and (os.path.isdir(data) or (data.lower().endswith(".zip") and os.path.isfile(data))):
        return open_pictures(
            data,
            image_size=size,
            channels=config.channels or 3,
            fit=config.fit,
            max_bad_fraction=config.max_bad_fraction,
            paired=paired,
            peers=peers,
        )
    if files := from_root(lambda: files_named(data), peers, f"--data {data}: its files"):
        how: dict[str, Any] = {"paired": paired, "unmapped": unmapped, "in_order": in_order}
        return open_records(config, files, size=size, peers=peers, **how)
    problem = "of no known kind" if os.path.exists(data) else "no such file or folder"
    if h5py.is_hdf5(data) or h5py.is_hdf5(data.rpartition(":")[0]):
        problem = "HDF5 (.mat of MATLAB 7.3 is, with its axes reversed), which is read under a name that ends in .h5"
    raise UserError(f"--data {printable(data)}: {problem}; expected {EXPECTED}")


def _container(config: Config, peers: Peers) -> tuple[Container, str] | None:
    """The arrays that `--data` names, and the name of the one with the samples; None if it names no arrays."""
    if names_own_data(config.data):
        return OwnData(config, peers), ""
    if config.data_options:
        raise UserError(
            f"--data-options {','.join(config.data_options)}: is for data of your own (--data my_module:source); "
            "leave it out"
        )
    path, colon, name = config.data.rpartition(":")
    if not colon or os.path.exists(config.data):
        path, name = config.data, ""
    lower, is_there = path.lower(), os.path.exists(path)
    if is_there and (opener := _opener_of(path, config)) is not None:
        return opener(path), name
    if is_packed(path):
        return PackedFiles(path, peers), name or "images"
    if os.path.isdir(path):
        container = _of_folder(path, config, peers)
    elif not is_there and lower.endswith(_OF_PATTERNS) and glob.has_magic(path):
        container = _joined(path, lambda: sorted(glob.glob(path, recursive=True)), config, peers)
    else:
        return None
    return None if container is None else (container, name)


def _opener_of(path: str, config: Config) -> Callable[[str], Container] | None:
    """What opens a file of this kind; None if it holds no arrays."""
    lower = path.lower().rstrip("/")
    if xarray_files.is_store(path) or (os.path.isfile(path) and lower.endswith(xarray_files.SUFFIXES)):
        settings = config.arrays
        axes = {"": settings.axes, settings.inputs or "inputs": settings.input_axes}
        return functools.partial(xarray_files.open_file, axes=axes)
    if os.path.isdir(path):
        if lower.endswith(".zarr"):
            raise UserError(f"--data {path}: no Zarr store: it has no zarr.json, .zgroup or .zarray")
        return None
    if lower.endswith(hdf5_files.SUFFIXES):
        return Hdf5File
    return open_numpy if lower.endswith((".npy", ".npz")) else None


def _of_folder(path: str, config: Config, peers: Peers) -> Container | None:
    """The arrays in a folder; None if it holds images, or nothing that is known."""
    suffix = from_root(lambda: first_suffix(path), peers, f"--data {path}: its kind")
    if suffix in ARRAYS:
        files = from_root(lambda: find(path, ARRAYS).files, peers, f"--data {path}: its files")
        container = open_npy_folder(path, files, peers)
        container.labels, container.class_names = classes_of(files)
        return container
    if (kind := next((each for each in JOINED if suffix in each), None)) is not None:
        return _joined(path, lambda: [os.path.join(path, file) for file in find(path, kind).files], config, peers)
    return None


def _joined(data: str, found: Callable[[], Sequence[Any]], config: Config, peers: Peers) -> Container | None:
    files = from_root(lambda: list(found()), peers, f"--data {data}: its files")
    if not files:
        return None
    opener = _opener_of(files[0], config)
    assert opener is not None
    return JoinedFiles(data, files, opener, peers) if len(files) > 1 else opener(files[0])


def _with_table(source: Samples, config: Config, peers: Peers) -> Samples:
    """The source with the conditions of --condition-table, if there is one; rank 0 reads it, and the samples' names."""
    settings = config.arrays
    if settings.condition_table is None:
        if settings.conditions and source.conditions is None:
            raise UserError(f"--conditions {','.join(settings.conditions)}: name their file with --condition-table")
        if settings.condition_values is not None and source.conditions is None:
            raise UserError("--condition-values: there are no conditions; name them with --conditions")
        return source
    table, chosen = settings.condition_table, settings.conditions

    def read() -> tuple[str, list[str], str]:
        numbers, names, unused = conditions.of_table(table, chosen, settings.condition_order, source)
        return pack(numbers), names, unused

    numbers, names, unused = from_root(read, peers, f"--condition-table {table}")
    value_map = conditions.map_of(settings.condition_values, names)
    together = unpack(numbers, np.float64).reshape(-1, len(names))
    return source.described(together, value_map, *names).replace(remarks=[*source.remarks, *filter(None, [unused])])


def refuse_array_flags(source: Samples, config: Config) -> None:
    """Refuse flags of arrays for pictures, on which they would have no effect."""
    settings = config.arrays
    for name in ("values", "axes", "inputs", "input_values", "input_axes", "constants", "constant_values", "missing"):
        if getattr(settings, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise UserError(
                f"{flag} {getattr(settings, name)}: is for arrays, and {source.name} holds 8-bit pictures, whose 0 to "
                "255 becomes [-1, 1]; leave the flag out"
            )


def _about_classes(source: Samples) -> Iterator[str]:
    """Which classes have no sample, or which label is none, in at most one line."""
    present = np.unique(np.zeros(0, np.int32) if source.labels is None else source.labels)
    where, others = f"warning: --data {source.name}", source.num_classes - len(present) - 1
    if present.size and present[0] < 0:
        yield f"{where}: a label is {present[0]}, so the data have no classes; labels count from 0"
    elif others >= 0:
        first = int(np.argmin(np.append(present, -1) == np.arange(len(present) + 1)))
        more = f", nor have {others:,} others" * (others > 0)
        yield f"{where}: class {first} has no sample{more}; labels count from 0"


def _refuse_dark(source: Samples) -> None:
    """Refuse pictures of which 64 use little of 0 to 255: masks of 0 and 1, numbers of classes, 12 bits of 16."""
    for part, flag in [("inputs", "--input-values")] * source.paired + [("images", "--values")]:
        low, high = 255, 0
        for index in spread(len(source)).tolist():
            if high <= _HIGHEST:
                with contextlib.suppress(BadImage):
                    pixels = source.layout.split(source.fetch_batch(np.array([index])))[part == "images"]
                    low, high = min(low, int(pixels.min())), max(high, int(pixels.max()))
        if low < high <= _HIGHEST:
            raise UserError(
                f"--data {source.name}: {part} without a pixel above {high} of 255, which networks would hardly tell "
                f"apart; multiply them, or store them as an array, such as .npy, and give it with {flag} "
                f"range:{low},{high} (12 bits of 16: range:0,4095)"
            )


def _cropped(source: Samples, crop: tuple[int, ...]) -> Layout:
    """The layout with a crop that fits."""
    layout = dataclasses.replace(source.layout, crop=crop)
    space, named = layout.shape[:-1], f"--crop {','.join(map(str, crop))}"
    if len(crop) != len(space) or any(part > size for part, size in zip(crop, space, strict=False)):
        raise UserError(f"{named}: the samples have shape {layout.shape}; expected {len(space)} lengths up to {space}")
    inputs = (layout.input_shape or layout.shape)[:-1]
    if len(inputs) != len(space) or any(mine % its for mine, its in zip(space, inputs, strict=False)):
        raise UserError(f"{named}: a sample {space} is no multiple of its input {inputs}; leave the flag out")
    if any(part % factor for part, factor in zip(crop, layout.factors, strict=True)):
        raise UserError(f"{named}: a sample is {layout.factors} times its input; expected multiples of that")
    return layout
