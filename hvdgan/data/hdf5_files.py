"""Arrays in HDF5 files, read by h5py."""

import contextlib
import functools
import importlib
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hvdgan.data.store import Container, Store, aligned, failed, gaps, identity, named_errors, refuse_changed, selection
from hvdgan.data.valid_numbers import plain_numbers
from hvdgan.errors import UserError

SUFFIXES = (".h5", ".hdf5", ".hdf", ".he5")
_CHUNK_CACHE = 16 * 2**20
_DAMAGED = (OSError, ValueError, RuntimeError, KeyError)
"""what h5py raises of a damaged file"""
_reasons = functools.partial(named_errors, kind="as HDF5", expected="a whole file, written by h5py or the like")


class Hdf5File(Container):
    """An HDF5 file, with its data sets by their paths, such as `group/ECAL`.

    A data set's unit is its attribute `units` or `unit`; its attribute `channels`, a list of texts, names the channels.
    A file that is written to during the run ends it.
    """

    def __init__(self, data: str, cache: int = _CHUNK_CACHE) -> None:
        super().__init__(data)
        self.paths = [data]
        with _reasons(data):
            self._stamp = identity(data)
            self._file = hdf5_file(data, rdcc_nbytes=cache)
            self._names: list[str] = []
            self._file.visititems(self._note)

    def _note(self, name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            self._names.append(name)

    def names(self) -> list[str]:
        return self._names

    def has(self, name: str) -> bool:
        return isinstance(self._file.get(name), h5py.Dataset)  # also one that a link leads to

    def get(self, name: str) -> "Hdf5Array":
        with _reasons(self.data):
            dataset, where = self._file[name], f"{self.data}:{name}"
            if dataset.shape is None:
                raise UserError(f"--data {where}: it is empty; expected at least one sample")
            _refuse_unknown_filters(f"--data {where}", dataset)
            sources = _sources(f"--data {where}", dataset) if dataset.is_virtual else []
            self.paths = [self.data, *sources]
            return Hdf5Array(where, dataset, [self._stamp, *map(identity, sources)])


class Hdf5Array(Store):
    """A data set of an HDF5 file."""

    def __init__(self, name: str, dataset: Any, stamps: Sequence[list[Any]]) -> None:
        self._dataset, self._stamps = dataset, stamps
        attributes = dict(dataset.attrs)
        self._valid = plain_numbers(name, attributes, dataset.dtype)
        super().__init__(
            name,
            dataset.shape,
            dataset.dtype.newbyteorder("="),
            units=_texts(attributes.get("units", attributes.get("unit"))),
            channels=_texts(attributes.get("channels")),
            prepared=dataset.chunks is None or dataset.chunks[0] == 1,
        )

    def read(self, indices: np.ndarray) -> np.ndarray:
        out = aligned((len(indices), *self.shape[1:]), self.dtype)
        self.read_to(out, np.arange(len(indices)), indices)
        return out

    def read_to(self, out: np.ndarray, places: np.ndarray, indices: np.ndarray) -> None:
        for stamp in self._stamps:
            refuse_changed(stamp, self.named(int(indices[0])) if len(indices) else self.name)
        if len(indices) > 1 and isinstance(run := selection(indices), slice) and (np.diff(places) == 1).all():
            try:
                out[places[0] : places[-1] + 1] = self._dataset[run]
            except _DAMAGED:
                for each in range(len(indices)):  # to name the sample
                    self.read_to(out, places[each : each + 1], indices[each : each + 1])
        else:
            for place, index in zip(places.tolist(), indices.tolist(), strict=True):
                try:
                    out[place] = self._dataset[index]
                except _DAMAGED as error:
                    raise failed(self.named(index), error) from error
        if self._valid.declares:
            out[places] = self._valid.checked(out[places], lambda place: self.named(int(indices[place])))

    def remark(self) -> str:
        dataset = self._dataset
        if "MATLAB_class" in dataset.attrs:
            return f"{self.name}: MATLAB has its axes in reverse order, as {self.shape[::-1]}"
        if self._valid.declares or not dataset.size:
            return ""
        if dataset.is_virtual:
            held = sum(each.vspace.get_select_npoints() for each in dataset.virtual_sources())
            return gaps(self.name, held, dataset.size, dataset.fillvalue, "numbers")
        chunks = math.prod(-(-n // part) for n, part in zip(self.shape, dataset.chunks or self.shape, strict=True))
        stored = dataset.id.get_num_chunks() if dataset.chunks else min(1, dataset.id.get_storage_size())
        return gaps(self.name, stored, chunks, dataset.fillvalue)


def hdf5_file(path: str | Path, mode: str = "r", **options: Any) -> h5py.File:
    """An HDF5 file, with a lock where there are locks."""
    return despite_locks(functools.partial(h5py.File, path, mode, **options))


def despite_locks(opener: Callable[..., Any]) -> Any:
    """A file that is opened without a lock where the file system of a cluster has none, or another process holds it.

    Not always without: the library refuses to open a file that a recipe has opened with other settings of locks.
    HDF5_USE_FILE_LOCKING decides alone if it is set.
    """
    try:
        return opener(locking=None)
    except OSError as error:
        if "lock" not in str(error):
            raise
        return opener(locking=False)


def _sources(where: str, dataset: Any) -> list[str]:
    """The files of which a virtual data set consists, where HDF5 finds them; a lost one is refused."""
    found, name = list[str](), dataset.file.filename
    beside = [os.path.dirname(path) for path in (os.path.abspath(name), os.path.realpath(name))]
    folders = [*os.environ.get("HDF5_VDS_PREFIX", "").replace("${ORIGIN}", beside[0]).split(":"), *beside]
    for file, inner in sorted({each[1:3] for each in dataset.virtual_sources() if "%b" not in each[1]}):
        tried = (os.path.join(folder, each) for each in (file, os.path.basename(file)) for folder in folders)
        for path in [name] if file == "." else tried:
            with contextlib.suppress(*_DAMAGED), hdf5_file(path) as source:
                found += [path, *(_sources(where, source[inner]) if source[inner].is_virtual else [])]
                break
        else:
            raise UserError(f"{where}: its source {file}:{inner} is missing or cannot be read; restore it")
    return found


def _refuse_unknown_filters(where: str, dataset: Any) -> None:
    """Refuse a data set that is compressed by a filter which neither HDF5_PLUGIN_PATH nor hdf5plugin has."""
    plist = dataset.id.get_create_plist()
    for code, _, _, name in map(plist.get_filter, range(plist.get_nfilters())):
        if not h5py.h5z.filter_avail(code):
            with contextlib.suppress(ImportError):
                importlib.import_module("hdf5plugin")  # which registers its filters
        if not h5py.h5z.filter_avail(code):
            known = name.decode(errors="replace").partition(";")[0] or "without a name"
            raise UserError(
                f"{where}: needs the HDF5 filter {known} ({code}); pip install hdf5plugin, or name the folder of the "
                "filter's plugin in HDF5_PLUGIN_PATH"
            )


def _texts(attribute: Any) -> Sequence[str]:
    """A text, or several, of an attribute; empty if it is missing or holds no texts."""
    found = np.atleast_1d(np.asarray(attribute, object)).tolist()
    texts = [each.decode(errors="replace") if isinstance(each, bytes) else each for each in found]
    return texts if all(isinstance(each, str) for each in texts) else ()
