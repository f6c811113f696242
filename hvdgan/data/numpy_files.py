"""Arrays in .npy files, which are mapped to memory, in .npz archives, which are loaded, and in folders of .npy."""

import collections
import contextlib
import functools
import io
import os
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib import format as npy_format

from hvdgan.data.bad_files import BadImage, content_of, printable
from hvdgan.data.store import Container, Store, identity, named_errors, refuse_changed, spread
from hvdgan.errors import UserError, in_one_line
from hvdgan.errors.shared_errors import Peers, from_root

_reasons = functools.partial(
    named_errors, kind="as a NumPy array", expected="an array of numbers, written by np.save or np.savez"
)


class NumpyArray(Store):
    """An array in memory, or mapped to it; `stamp` is the identity of a mapped file."""

    def __init__(self, name: str, array: np.ndarray, *, stamp: list[Any] | None = None, **others: Any) -> None:
        super().__init__(name, array.shape, array.dtype.newbyteorder("="), **others)
        self._stamp = stamp
        self.array = np.asarray(array)  # each sample of a memmap would be one, too, which takes a microsecond

    def read(self, indices: np.ndarray) -> np.ndarray:
        if self._stamp is not None:
            refuse_changed(self._stamp, self.name)
        return self.array[indices].astype(self.dtype, copy=False)


def open_numpy(data: str) -> Container:
    """An .npy file with one array, or an .npz archive with arrays by name, which every rank holds in memory.

    In an archive, an array of text `x_units` holds the units of the channels of the array `x`, and `x_channels` their
    names, as hvdgan sample writes them.
    """
    with _reasons(data):
        if zipfile.is_zipfile(data):
            texts, names = _texts_and_names(data)
            container = Container(data, {name: functools.partial(_loaded, data, name, texts) for name in names})
        else:
            stored = NumpyArray(data, npy_format.open_memmap(data, mode="r"), stamp=identity(data))
            container = Container(data, {"": lambda: stored})
    container.paths = [data]
    return container


def _texts_and_names(data: str) -> tuple[dict[str, list[str]], list[str]]:
    """The texts of an archive that describe other arrays, and the names of all others."""
    texts: dict[str, list[str]] = {}
    with np.load(data, allow_pickle=False) as archive:
        for name in archive.files:
            described, _, kind = name.rpartition("_")
            if kind in ("units", "channels") and described in archive.files:
                with contextlib.suppress(ValueError):  # Python objects, which nobody may ask for
                    if (array := archive[name]).dtype.kind == "U":
                        texts[name] = np.atleast_1d(array).tolist()
        return texts, [name for name in archive.files if name not in texts]


def _loaded(data: str, name: str, texts: Mapping[str, Sequence[str]]) -> NumpyArray:
    with _reasons(data), np.load(data, allow_pickle=False) as archive:
        array = archive[name]
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{name} was not written by NumPy")
    units, channels = (texts.get(f"{name}_{kind}", ()) for kind in ("units", "channels"))
    return NumpyArray(f"{data}:{name}", array, units=units, channels=channels)


def open_npy_folder(data: str, files: Sequence[str], peers: Peers) -> Container:
    """The .npy files of a folder, in the order of their paths, all of one shape and type.

    Rank 0 looks at 64 files: the shape and the type that most of them have are those of the data. A file that has
    others, or is damaged, is found when it is read.
    """
    shape, dtype = from_root(lambda: _most_common(data, files), peers, f"--data {data}: shape and type")
    stored = NpyFiles(data, files, shape, np.dtype(dtype))
    container = Container(data, {"": lambda: stored})
    container.has_names, container.folder, container.paths = True, data, files
    container.identity = os.fsencode("\0".join(files))
    return container


class NpyFiles(Store):
    """One sample from each file."""

    def __init__(self, folder: str, files: Sequence[str], shape: Sequence[int], dtype: np.dtype) -> None:
        super().__init__(folder, (len(files), *shape), dtype)
        self._files = files

    def read(self, indices: np.ndarray) -> np.ndarray:
        out = np.empty((len(indices), *self.shape[1:]), self.dtype)
        for place, index in enumerate(indices.tolist()):
            sample = _sample(self.name, self._files[index])
            if sample.shape != self.shape[1:] or sample.dtype.newbyteorder("=") != self.dtype:
                raise BadImage(
                    self.named(index),
                    f"shape {sample.shape}, type {sample.dtype}; expected {self.shape[1:]} and {self.dtype}, as others",
                )
            out[place] = sample
        return out

    def named(self, index: int) -> str:
        return printable(self._files[index])

    def key(self, index: int) -> bytes:
        return os.fsencode(self._files[index])


def _sample(folder: str, file: str) -> np.ndarray:
    """The array of a file, read in one call, since each costs a round trip on a network file system."""
    content = content_of(folder, file)
    try:
        return npy_format.read_array(io.BytesIO(content), allow_pickle=False)
    except Exception as error:  # damaged headers raise many types
        raise BadImage(printable(file), f"no whole .npy file: {in_one_line(error)}") from error


def _most_common(folder: str, files: Sequence[str]) -> list[Any]:
    """The shape of most of 64 files, and their type, as JSON types."""
    kinds: collections.Counter[tuple[tuple[int, ...], str]] = collections.Counter()
    for index in spread(len(files)).tolist():
        try:
            sample = _sample(folder, files[index])
            kinds[sample.shape, sample.dtype.newbyteorder("=").str] += 1
        except BadImage as error:
            bad = error
    if not kinds:
        raise UserError(f"--data {folder}: none of the .npy files looked at can be used, such as {bad}")
    return list(kinds.most_common(1)[0][0])
