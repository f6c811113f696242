"""Arrays in .npy files, which are mapped to memory, in .npz archives, which are loaded, and in folders of .npy."""

import collections
import contextlib
import io
import os
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib import format as npy_format

from hvdgan.cli.errors import UserError, in_one_line
from hvdgan.cli.shared_errors import Peers, from_root
from hvdgan.data.bad_files import BadImage, content_of, printable
from hvdgan.data.store import Container, Store, identity, named_errors, refuse_changed, spread


class NumpyArray(Store):
    """An array in memory, or mapped to it."""

    def __init__(
        self,
        name: str,
        array: np.ndarray,
        *,
        units: Sequence[str] = (),
        channels: Sequence[str] = (),
        stamp: list[Any] | None = None,
    ) -> None:
        super().__init__(name, array.shape, array.dtype.newbyteorder("="), units=units, channels=channels)
        self._stamp = stamp
        self.array = np.asarray(array)  # each sample of a memmap would be one, too, which takes a microsecond

    def read(self, indices: np.ndarray) -> np.ndarray:
        if self._stamp is not None:
            refuse_changed(self._stamp, self.name)
        return self.array[indices].astype(self.dtype, copy=False)


class NumpyFile(Container):
    """An .npy file with one array, or an .npz archive with arrays by name.

    In an archive, an array of text `x_units` holds the units of the channels of the array `x`, and `x_channels` their
    names, as hvdgan.sample writes them. Every rank holds the arrays of an archive in memory.
    """

    def __init__(self, data: str) -> None:
        super().__init__(data)
        self.paths = [data]
        with _reasons(data):
            self._stamp = identity(data)
            self._is_archive = zipfile.is_zipfile(data)
            self._names = self._of_archive() if self._is_archive else [""]

    def names(self) -> list[str]:
        return self._names

    def get(self, name: str) -> NumpyArray:
        with _reasons(self.data):
            if not self._is_archive:
                return NumpyArray(self.data, npy_format.open_memmap(self.data, mode="r"), stamp=self._stamp)
            with np.load(self.data, allow_pickle=False) as archive:
                array = archive[name]
                if not isinstance(array, np.ndarray):
                    raise ValueError(f"{name} was not written by NumPy")
                units, channels = (self._texts.get(f"{name}_{kind}", ()) for kind in ("units", "channels"))
        return NumpyArray(f"{self.data}:{name}", array, units=units, channels=channels)

    def _of_archive(self) -> list[str]:
        """The names of the arrays, but for those of text that describe others, which are kept."""
        self._texts: dict[str, list[str]] = {}
        with np.load(self.data, allow_pickle=False) as archive:
            for name in archive.files:
                described, _, kind = name.rpartition("_")
                if kind in ("units", "channels") and described in archive.files:
                    with contextlib.suppress(ValueError):  # Python objects, which nobody may ask for
                        if (array := archive[name]).dtype.kind == "U":
                            self._texts[name] = np.atleast_1d(array).tolist()
            return [name for name in archive.files if name not in self._texts]


class NpyFolder(Container):
    """The .npy files of a folder, in the order of their paths, all of one shape and type.

    Rank 0 looks at 64 files: the shape and the type that most of them have are those of the data. A file that has
    others, or is damaged, is found when it is read.
    """

    has_names = True

    def __init__(self, data: str, files: Sequence[str], peers: Peers) -> None:
        super().__init__(data)
        self.folder, self.paths = data, files
        self.identity = os.fsencode("\0".join(files))
        shape, dtype = from_root(lambda: _most_common(data, files), peers, f"--data {data}: shape and type")
        self._stored = NpyFiles(data, files, shape, np.dtype(dtype))

    def names(self) -> list[str]:
        return [""]

    def get(self, name: str) -> "NpyFiles":
        return self._stored


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


def _reasons(name: str) -> contextlib.AbstractContextManager[None]:
    return named_errors(name, "as a NumPy array", "an array of numbers, written by np.save or np.savez")
