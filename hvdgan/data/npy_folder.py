"""A folder of .npy files with one sample each."""

import collections
import io
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib import format as npy_format

from hvdgan.cli.errors import UserError, in_one_line
from hvdgan.cli.shared_errors import Peers, from_root
from hvdgan.data.bad_files import BadImage, printable
from hvdgan.data.kinds import spread
from hvdgan.data.pictures import content_of
from hvdgan.data.store import Container, Store, identity_of_many

_HEADERS = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}


class NpyFolder(Container):
    """The .npy files of a folder, in the order of their paths, all of one shape and type.

    Rank 0 looks at 64 files: the shape and the type that most of them have are those of the data. A file that has
    others, or is damaged, is found when it is read.
    """

    has_names = True

    def __init__(self, data: str, files: Sequence[str], peers: Peers) -> None:
        super().__init__(data)
        self.files = list(files)
        self.identity = os.fsencode("\0".join(files))
        shape, dtype = from_root(lambda: _most_common(data, files), peers, f"--data {data}: shape and type")
        self._stored = NpyFiles(data, files, shape, np.dtype(dtype))

    def names(self) -> list[str]:
        return [""]

    def get(self, name: str) -> "NpyFiles":
        return self._stored

    def stamp(self) -> list[Any]:
        found = (os.stat(os.path.join(self.data, file)) for file in self.files)
        return identity_of_many((status.st_size, status.st_mtime_ns) for status in found)


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
    opened = io.BytesIO(content)
    try:
        shape, is_fortran, dtype = _HEADERS[npy_format.read_magic(opened)](opened)
        if dtype.hasobject:
            raise ValueError("it holds Python objects (pickle), which are not read")
        return np.frombuffer(content, dtype, offset=opened.tell()).reshape(shape, order="F" if is_fortran else "C")
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
