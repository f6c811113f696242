"""Opens the samples that `--data` names."""

import contextlib
import dataclasses
import functools
import glob
import os
from collections.abc import Callable, Iterator

import h5py
import numpy as np

from hvdgan.data import conditions, hdf5_files, xarray_files
from hvdgan.data.arrays import by_name, named_settings, samples_of
from hvdgan.data.bad_files import BadImage, printable
from hvdgan.data.builtin import is_builtin, open_builtin
from hvdgan.data.hdf5_files import Hdf5File
from hvdgan.data.joined_files import JoinedFiles
from hvdgan.data.numpy_files import open_npy_folder, open_numpy
from hvdgan.data.own_data import OwnData
from hvdgan.data.packed_files import PackedFiles, is_packed
from hvdgan.data.pictures import ARRAYS, JOINED, WAVES, classes_of, find, first_suffix, open_pictures
from hvdgan.data.samples import Samples
from hvdgan.data.sharing import pack, unpack
from hvdgan.data.store import Container, DataRequest, spread
from hvdgan.data.tfrecords import files_named, open_records
from hvdgan.data.waves import open_waves
from hvdgan.errors import UserError
from hvdgan.errors.shared_errors import ALONE, Peers, from_root
from hvdgan.settings.config import Config
from hvdgan.settings.own_code import names_own_data
from hvdgan.values.sample_values import Layout

_HIGHEST = 16
"""of 255: what numbers of 12 bits have that are stored in 16"""
EXPECTED = (
    "digits, synthetic, a folder or a .zip of images, a folder of .npy, .wav, .flac or packed files, arrays (.npy, "
    ".npz, .h5, .nc, .zarr; FILE:NAME for one of several, 'data/*.h5:NAME' for many files), TFRecord files (a path, "
    "or a pattern in quotes such as 'data/*.tfrecord'), keras:mnist and the like, or your own as my_module:source"
)
_OF_PATTERNS = (*hdf5_files.SUFFIXES, *xarray_files.SUFFIXES)
"""files of which a pattern can name several"""


def open_source(
    config: Config, *, paired: bool = False, peers: Peers = ALONE, unmapped: bool = False, **others: bool
) -> Samples:
    """Open what `--data` names; the arguments are those of DataRequest."""
    request = DataRequest(config=config, paired=paired, peers=peers, unmapped=unmapped, **others)
    source = _with_table(_opened(request), config, peers)
    if source.rate or (source.is_pictures and not unmapped):
        refuse_array_flags(source, config)
    if source.is_pictures and not unmapped:
        from_root(lambda: _refuse_dark(source), peers, f"--data {config.data}: its range")
    for flag, given in {"--arrays": ",".join(config.arrays.arrays), **named_settings(config.arrays)}.items():
        if given and not source.arrays:
            raise UserError(
                f"{flag} {given}: {config.data} holds no arrays beside its samples; expected .npz, HDF5, NetCDF, "
                "Zarr, packed files, or your own as my_module:source"
            )
    source = source.replace(remarks=[*source.remarks, *_about_classes(source)])
    if config.arrays.segment and source.rate is None and not unmapped:
        raise UserError(
            f"--segment {config.arrays.segment}: is for wave files; give --crop for a part of other samples"
        )
    if config.arrays.crop:
        return source.replace(layout=_cropped(source, config.arrays.crop))
    return source


def _opened(request: DataRequest) -> Samples:
    """Open data of the first kind that fits.

    These are the kinds of docs/data.md: first what is no path, then packed files, arrays in one file, a folder of .npy
    files, arrays in many files, pictures and TFRecords.
    """
    config, data, peers = request.config, request.config.data, request.peers
    if is_builtin(data):
        if from_root(lambda: os.path.isdir(data) and first_suffix(data) is not None, peers, f"--data {data}: a folder"):
            raise UserError(f"--data {data}: a folder {data} is here, too; write ./{data} for it, or rename it")
        return open_builtin(request)
    if names_own_data(data):
        return _arrays_of(OwnData(config, peers), "", request)
    if config.data_options:
        raise UserError(
            f"--data-options {','.join(config.data_options)}: is for data of your own (--data my_module:source); "
            "leave it out"
        )
    path, colon, array = data.rpartition(":")
    if not colon or os.path.exists(data):
        path, array = data, ""
    if path and is_packed(path):
        return _arrays_of(PackedFiles(path, peers), array or "images", request)
    if os.path.exists(path) and (opener := _opener_of(path, config)) is not None:
        return _arrays_of(opener(path), array, request)
    suffix = from_root(lambda: first_suffix(path), peers, f"--data {path}: its kind") if os.path.isdir(path) else None
    if suffix in ARRAYS:
        files = from_root(lambda: find(path, ARRAYS).files, peers, f"--data {path}: its files")
        container = open_npy_folder(path, files, peers)
        container.labels, container.class_names = classes_of(files)
        return _arrays_of(container, array, request)
    if suffix in WAVES:
        return open_waves(request)
    if files := _joined(path, suffix, peers):
        opener = _opener_of(files[0], config)
        assert opener is not None
        container = JoinedFiles(path, files, opener, peers) if len(files) > 1 else opener(files[0])
        return _arrays_of(container, array, request)
    if data and (os.path.isdir(data) or (data.lower().endswith(".zip") and os.path.isfile(data))):
        return open_pictures(request)
    if files := from_root(lambda: files_named(data), peers, f"--data {data}: its files"):
        return open_records(request, files)
    problem = "of no known kind" if os.path.exists(data) else "no such file or folder"
    if h5py.is_hdf5(data) or h5py.is_hdf5(path):
        problem = "HDF5 (.mat of MATLAB 7.3 is, with its axes reversed), which is read under a name that ends in .h5"
    raise UserError(f"--data {printable(data)}: {problem}; expected {EXPECTED}")


def _arrays_of(container: Container, name: str, request: DataRequest) -> Samples:
    """The samples of arrays, with a remark on chunks that their files lack."""
    samples, what = samples_of(request, container, name), f"--data {request.config.data}: its chunks"
    unwritten = from_root(lambda: [each.remark() for each in samples.stores.values()], request.peers, what)
    return samples.replace(remarks=[*samples.remarks, *filter(None, unwritten)])


def _opener_of(path: str, config: Config) -> Callable[[str], Container] | None:
    """What opens a file of this kind; None if it holds no arrays."""
    lower = path.lower().rstrip("/")
    if xarray_files.is_store(path) or (os.path.isfile(path) and lower.endswith(xarray_files.SUFFIXES)):
        settings = config.arrays
        axes = {"": settings.axes, settings.inputs or "inputs": settings.input_axes}
        axes |= dict.fromkeys(settings.arrays) | by_name(settings.axes_of, "--axes-of", settings.arrays)
        return functools.partial(xarray_files.open_file, axes=axes)
    if os.path.isdir(path):
        if lower.endswith(".zarr"):
            raise UserError(f"--data {path}: no Zarr store: it has no zarr.json, .zgroup or .zarray")
        return None
    if lower.endswith(hdf5_files.SUFFIXES):
        return Hdf5File
    return open_numpy if lower.endswith((".npy", ".npz")) else None


def _joined(path: str, suffix: str | None, peers: Peers) -> list[str]:
    """The files with arrays that a pattern names, or those of a folder whose first file has this suffix."""
    kind, is_there = next((each for each in JOINED if suffix in each), None), os.path.exists(path)
    if kind is None and (is_there or not path.lower().endswith(_OF_PATTERNS) or not glob.has_magic(path)):
        return []

    def listed() -> list[str]:
        if kind is None:
            return sorted(glob.glob(path, recursive=True))
        return [os.path.join(path, file) for file in find(path, kind).files]

    return from_root(listed, peers, f"--data {path}: its files")


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
    """Refuse flags of arrays for pictures and waves, on which they would have no effect."""
    settings = config.arrays
    for name in ("values", "axes", "inputs", "input_values", "input_axes", "constants", "constant_values", "missing"):
        if getattr(settings, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            holds = "waves, which are" if source.rate else "8-bit pictures, whose 0 to 255 becomes"
            raise UserError(
                f"{flag} {getattr(settings, name)}: is for arrays, and {source.name} holds {holds} [-1, 1]; leave the "
                "flag out"
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
                    pixels = source.fetch(index)[part]
                    low, high = min(low, int(pixels.min())), max(high, int(pixels.max()))
        if low < high <= _HIGHEST:
            raise UserError(
                f"--data {source.name}: {part} without a pixel above {high} of 255, which networks would hardly tell "
                f"apart; multiply them, or store them as an array, such as .npy, and give it with {flag} "
                f"range:{low},{high} (12 bits of 16: range:0,4095)"
            )


def _cropped(source: Samples, crop: tuple[int, ...]) -> Layout:
    """The layout with a crop that fits; one length is that of all axes."""
    space, named = source.layout.shape[:-1], f"--crop {','.join(map(str, crop))}"
    crop = crop * len(space) if len(crop) == 1 else crop
    layout = dataclasses.replace(source.layout, crop=crop)
    if len(crop) != len(space) or any(part > size for part, size in zip(crop, space, strict=False)):
        raise UserError(f"{named}: the samples have shape {layout.shape}; expected {len(space)} lengths up to {space}")
    fields = {"input": layout.input_shape} if layout.input_shape is not None else {}
    fields |= {f"array {name}": each.shape[1:] for name, each in source.arrays.items() if len(each.shape) > 2}
    for what, shape in fields.items():
        inputs = shape[:-1]
        if len(inputs) != len(space) or any(mine % its for mine, its in zip(space, inputs, strict=False)):
            raise UserError(f"{named}: a sample {space} is no multiple of its {what} {inputs}; leave the flag out")
        factors = layout.factors(shape)
        if any(part % factor for part, factor in zip(crop, factors, strict=True)):
            raise UserError(f"{named}: a sample is {factors} times its {what}; expected multiples of that")
    return layout
