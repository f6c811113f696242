"""Arrays in .npy and .npz files, memory-mapped where possible."""

import contextlib
import logging
import struct
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.lib import format as npy_format

from hvdgan.cli.errors import RunError, UserError
from hvdgan.data.arrays.stored import Container, Stored, named_errors
from hvdgan.data.base.scan_cache import identity

LARGE_BYTES = 2**30
_SMALL = 2**12
"""bytes of a sample below which a loop over samples costs more than a second copy"""

_KINDS_OF_TEXT = ("units", "channels")

logger = logging.getLogger(__name__)


class NumpyArray(Stored):
    """An array in memory, or mapped to it.

    Args:
        name: name for messages.
        array: the array.
        units: unit of all numbers, or one for each channel.
        channels: names of the channels.
        file: path of the file to which the array is mapped; None: it is in memory.
    """

    def __init__(
        self,
        name: str,
        array: np.ndarray,
        *,
        units: Sequence[str] = (),
        channels: Sequence[str] = (),
        file: str | None = None,
    ) -> None:
        super().__init__(name, array.shape, array.dtype.newbyteorder("="), units=units, channels=channels)
        self._file, self._identity = file, None if file is None else identity(file)
        self.array = np.asarray(array)  # each sample of a memmap would be one, too, which takes a microsecond

    def read(self, indices: np.ndarray) -> np.ndarray:
        if self._file is not None:
            self._refuse_changed(self._file)
        samples = np.empty((len(indices), *self.shape[1:]), self.dtype)
        if samples[:1].nbytes < _SMALL:
            samples[:] = self.array[indices]
        else:
            for place, index in enumerate(indices.tolist()):  # one copy; indexing with an array would make two
                samples[place] = self.array[index]
        return samples

    def _refuse_changed(self, file: str) -> None:
        try:
            problem = "" if identity(file) == self._identity else "the file has changed since the run began"
        except OSError as error:
            problem = str(error.strerror)
        if problem:
            raise RunError(f"--data {self.name} cannot be read: {problem}; restore the file, then resume")


class NumpyFile(Container):
    """An .npy file with one array, or an .npz archive with arrays by name.

    In an archive, an array of text `x_units` holds the units of the channels of the array `x`, and `x_channels` their
    names, as hvdgan.sample writes them.

    An .npy file and an uncompressed .npz are memory-mapped; every rank holds a compressed array in memory.

    Args:
        data: path of the file.

    Raises:
        UserError: the file cannot be read.
    """

    def __init__(self, data: str) -> None:
        super().__init__(data)
        with _reasons(data):
            self._stamp = identity(data)
            self._members: dict[str, zipfile.ZipInfo] | None = None
            self._texts: dict[str, list[str]] = {}
            if zipfile.is_zipfile(data):
                with zipfile.ZipFile(data) as archive:
                    self._members = {each.filename.removesuffix(".npy"): each for each in archive.infolist()}
                    self._texts = _texts_among(archive, self._members)

    def names(self) -> list[str]:
        return [""] if self._members is None else [name for name in self._members if name not in self._texts]

    def get(self, name: str) -> NumpyArray:
        with _reasons(self.data):
            if self._members is None:
                return NumpyArray(self.data, npy_format.open_memmap(self.data, mode="r"), file=self.data)
            with zipfile.ZipFile(self.data) as archive:
                array = _open_member(self.data, archive, self._members[name])
            units, channels = (self._texts.get(f"{name}_{kind}", ()) for kind in _KINDS_OF_TEXT)
            file = self.data if isinstance(array, np.memmap) else None
            return NumpyArray(f"{self.data}:{name}", array, units=units, channels=channels, file=file)

    def stamp(self) -> list[Any]:
        return self._stamp


@contextlib.contextmanager
def _reasons(name: str) -> Iterator[None]:
    """Turn any error in the block into a UserError that names the file."""
    with named_errors(name, "as a NumPy array", "an array of numbers, written by np.save or np.savez"):
        try:
            yield
        except MemoryError as error:
            raise UserError(
                f"--data {name}: too large for memory: {error}; "
                "np.savez in place of np.savez_compressed, or an .npy file, is memory-mapped"
            ) from error


def _open_member(name: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """Map an array that is not compressed in the archive; read any other."""
    if member.compress_type != zipfile.ZIP_STORED:
        if member.file_size > LARGE_BYTES:
            logger.warning(
                "--data %s: compressed, so every rank holds its %.1f GB in memory; "
                "files of np.save and np.savez are memory-mapped",
                name,
                member.file_size / 1e9,
            )
        with archive.open(member) as file:
            return npy_format.read_array(file, allow_pickle=False)
    with archive.open(member) as file:
        shape, fortran_order, dtype = _read_header(file)
        header_bytes = file.tell()
    with open(name, "rb") as file:
        # Name and extra field of the local header may have other sizes than those in the directory.
        file.seek(member.header_offset + 26)
        name_bytes, extra_bytes = struct.unpack("<HH", file.read(4))
    offset = member.header_offset + 30 + name_bytes + extra_bytes + header_bytes
    if 0 in shape:
        return np.empty(shape, dtype)  # nothing to map
    return np.memmap(name, dtype, "r", offset, shape, "F" if fortran_order else "C")


def _texts_among(archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo]) -> dict[str, list[str]]:
    """The arrays of text that describe other arrays of an archive, by their names."""
    found = {}
    for name, member in members.items():
        described, _, kind = name.rpartition("_")
        if kind in _KINDS_OF_TEXT and described in members and _is_text(archive, member):
            with archive.open(member) as file:
                found[name] = np.atleast_1d(npy_format.read_array(file, allow_pickle=False)).tolist()
    return found


def _is_text(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bool:
    try:
        with archive.open(member) as file:
            return _read_header(file)[2].kind == "U"
    except ValueError:  # Python objects, which nobody may ask for
        return False


def _read_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, True for Fortran's order, and type; the file is then at the first value."""
    readers: dict[tuple[int, int], Callable[[Any], tuple[tuple[int, ...], bool, np.dtype]]] = {
        (1, 0): npy_format.read_array_header_1_0,
        (2, 0): npy_format.read_array_header_2_0,
    }
    version = npy_format.read_magic(file)
    if version not in readers:
        raise ValueError(f"version {version} of the .npy format")
    shape, fortran_order, dtype = readers[version](file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    return shape, fortran_order, dtype
