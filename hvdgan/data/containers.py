"""Finds the files of arrays that --data names: a file, a folder, or several files by a pattern."""

import functools
import glob
import os
from collections.abc import Callable, Sequence
from typing import Any

from hvdgan.cli.config import Config
from hvdgan.cli.errors import RunError, UserError
from hvdgan.cli.shared_errors import Peers, from_root
from hvdgan.data import hdf5_files, xarray_files
from hvdgan.data.bad_files import Unreadable
from hvdgan.data.hdf5_files import Hdf5File
from hvdgan.data.joined_files import JoinedFiles
from hvdgan.data.npy_folder import NpyFolder
from hvdgan.data.numpy_files import NumpyFile
from hvdgan.data.own_data import OwnData, names_own
from hvdgan.data.packed_files import PackedFiles, is_packed
from hvdgan.data.pictures import ARRAYS, JOINED, classes_of, find, first_suffix, refuse_unlisted
from hvdgan.data.store import Container

_NUMPY = (".npy", ".npz")
_OF_PATTERNS = (*hdf5_files.SUFFIXES, *xarray_files.SUFFIXES)
"""files of which a pattern can name several"""


def open_container(config: Config, peers: Peers) -> tuple[Container, str] | None:
    """Open the files of arrays that `--data` names."""
    if not config.data:
        return None
    if names_own(config.data):
        return OwnData(config.data, config.data_options, peers), ""
    if config.data_options:
        raise UserError(
            f"--data-options {','.join(config.data_options)}: is for data of your own (--data my_module:source); "
            "leave it out"
        )
    path, name = _parts_of(config.data)
    if os.path.exists(path) and (opener := _opener_of(path, config)) is not None:
        return opener(path), name
    if os.path.isdir(path) and is_packed(path):
        return PackedFiles(path, peers), name or "images"
    if os.path.isdir(path):
        container = _of_folder(path, config, peers)
    elif not os.path.exists(path) and path.lower().endswith(_OF_PATTERNS) and glob.has_magic(path):
        container = _joined(path, lambda: sorted(glob.glob(path, recursive=True)), config, peers)
    elif path.lower().endswith(_NUMPY) and glob.has_magic(path):
        raise UserError(
            f"--data {path}: a pattern can name several files of HDF5, NetCDF or TFRecords; name one .npy or .npz "
            "file, or a folder of .npy files with one sample each"
        )
    else:
        container = None
    return None if container is None else (container, name)


def _parts_of(data: str) -> tuple[str, str]:
    """The file, and the name of an array in it or ""."""
    path, colon, name = data.rpartition(":")
    return (path, name) if colon and not os.path.exists(data) else (data, "")


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
    return NumpyFile if lower.endswith(_NUMPY) else None


def _of_folder(path: str, config: Config, peers: Peers) -> Container | None:
    """The arrays in a folder; None if it holds images, or nothing that is known."""
    suffix = from_root(lambda: first_suffix(path), peers, f"--data {path}: its kind")
    if suffix in ARRAYS:
        files = from_root(lambda: _listed(path, config, ARRAYS), peers, f"--data {path}: its files")
        container = NpyFolder(path, files, peers)
        container.labels, container.class_names = classes_of(container.files)
        return container
    if (kind := next((each for each in JOINED if suffix in each), None)) is not None:
        return _joined(path, lambda: [os.path.join(path, file) for file in _listed(path, config, kind)], config, peers)
    return None


def _listed(path: str, config: Config, suffixes: tuple[str, ...]) -> list[str]:
    """The files of arrays in a folder, sorted."""
    try:
        listing = find(path, suffixes)
    except Unreadable as error:
        raise RunError(f"--data {path}: {error}") from error
    except UserError as error:
        raise UserError(f"--data {error}") from error
    refuse_unlisted(f"--data {path}", listing.unlisted, config.max_bad_fraction)
    return listing.files


def _joined(data: str, found: Callable[[], Sequence[Any]], config: Config, peers: Peers) -> Container | None:
    files = from_root(lambda: list(found()), peers, f"--data {data}: its files")
    if not files:
        return None
    opener = _opener_of(files[0], config)
    assert opener is not None
    return JoinedFiles(data, files, opener, peers) if len(files) > 1 else opener(files[0])
