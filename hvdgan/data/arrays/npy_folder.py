"""A folder of .npy files with one sample each."""

import collections
import io
import os
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib import format as npy_format

from hvdgan.cli.errors import RunError, UserError
from hvdgan.cli.shared_errors import Peers
from hvdgan.data.arrays.stored import Container, Stored
from hvdgan.data.base.parallel_map import parallel_map
from hvdgan.data.base.scan_cache import identity_of_many
from hvdgan.data.base.sharing import share_out
from hvdgan.data.base.source import BadFile, in_words, printable

# Reading headers waits for the disk or the network file system, not for a core.
_SCAN_THREADS = 16
_SCAN_CHUNK = 256
_HEAD_BYTES = 4096
"""bytes that are read for a header; longer ones belong to structured types, which are refused"""
_READERS = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}


class NpyFolder(Container):
    """The .npy files of a folder, in the order of their paths, all of one shape and type.

    On opening, the ranks share the reading of all headers. The shape and the type that most files have are those of
    the data; files that have others, or are damaged, are left out and listed in `bad_files`.

    Args:
        data: value of `--data`, the path of the folder.
        files: paths of the files below it, sorted; at least one.
        max_bad_fraction: largest fraction of the files that may be bad, in [0, 1].
        peers: the ranks; each calls this.

    Raises:
        UserError: too many files are bad.
        RunError: the disk has failed, or a rank does not see a file that rank 0 has found.
    """

    batched = False
    has_names = True

    def __init__(self, data: str, files: Sequence[str], max_bad_fraction: float, peers: Peers) -> None:
        super().__init__(data)
        heads = _heads(data, files, peers)
        kinds = collections.Counter((tuple(head[0]), head[1]) for head in heads if len(head) > 2)
        if not kinds:
            raise UserError(f"--data {data}: none of {len(files):,} .npy files can be used: {_first(files, heads)}")
        (shape, dtype), _ = kinds.most_common(1)[0]
        self.bad_files = []
        self.files: list[str] = []
        """paths of the files that have an index"""
        good: list[list[int]] = []
        """facts of each of them, as NpyFiles has them, and the nanosecond of its last change"""
        for file, head in zip(files, heads, strict=True):
            if len(head) == 2:
                self.bad_files.append(BadFile(printable(file), head[1]))
            elif (tuple(head[0]), head[1]) != (shape, dtype):
                reason = f"shape {tuple(head[0])}, type {np.dtype(head[1])}"
                self.bad_files.append(BadFile(printable(file), reason))
            else:
                self.files.append(file)
                good.append(head[2:])
        if len(self.bad_files) > max_bad_fraction * len(files):
            raise UserError(
                f"--data {data}: {len(self.bad_files)} of {len(files)} .npy files are not arrays of shape {shape} and "
                f"type {np.dtype(dtype)} as the others: {in_words(self.bad_files)}; repair or remove them, or allow "
                f"them with --max-bad-fraction (now {max_bad_fraction:g})"
            )
        facts = np.array([each[:4] for each in good], np.int64)
        self._stamp = identity_of_many((each[0], each[4]) for each in good)
        self.identity = os.fsencode("\0".join(self.files)) + facts.tobytes()
        self._stored = NpyFiles(data, self.files, shape, np.dtype(dtype), facts)

    def names(self) -> list[str]:
        return [""]

    def get(self, name: str) -> "NpyFiles":
        return self._stored

    def stamp(self) -> list[Any]:
        return self._stamp


class NpyFiles(Stored):
    """One sample from each file.

    Args:
        folder: path of the folder.
        files: paths below it.
        shape: shape of a sample.
        dtype: type of its numbers, in this machine's byte order.
        facts: size in bytes, CRC-32 of the header, 1 for Fortran's order, and 1 for the other byte order, (N, 4).
    """

    def __init__(
        self, folder: str, files: Sequence[str], shape: Sequence[int], dtype: np.dtype, facts: np.ndarray
    ) -> None:
        super().__init__(folder, (len(files), *shape), dtype)
        self._files, self._facts = files, facts
        self._sample_bytes = int(np.prod(shape)) * dtype.itemsize

    def read(self, indices: np.ndarray) -> np.ndarray:
        out = np.empty((len(indices), *self.shape[1:]), self.dtype)
        for place, index in enumerate(indices.tolist()):
            out[place] = self._one(index)
        return out

    def named(self, index: int) -> str:
        return printable(self._files[index])

    def key(self, index: int) -> bytes:
        return os.fsencode(self._files[index])

    def _one(self, index: int) -> np.ndarray:
        """One sample, read in one call, since each costs a round trip on a network file system."""
        size, head, is_fortran, is_swapped = self._facts[index].tolist()
        try:
            with open(os.path.join(self.name, self._files[index]), "rb", buffering=0) as file:
                content = np.empty(size + 1, np.uint8).data
                done = 0
                while count := file.readinto(content[done:]):
                    done += count
            header = size - self._sample_bytes
            problem = "" if done == size and zlib.crc32(content[:header]) == head else "another size or header"
        except OSError as error:
            problem = error.strerror or str(error)
        if problem:
            raise RunError(
                f"--data {self.name}: {self.named(index)} has changed since the run began: {problem}; restore the "
                "file, then resume"
            )
        dtype = self.dtype.newbyteorder() if is_swapped else self.dtype
        flat = np.frombuffer(content, dtype, offset=header, count=self._sample_bytes // dtype.itemsize)
        return flat.reshape(self.shape[1:], order="F" if is_fortran else "C")


def _heads(folder: str, files: Sequence[str], peers: Peers) -> list[list[Any]]:
    """Of each file: shape, type, facts as NpyFiles has them, and its time; or None and why it cannot be used."""

    def look(file: str) -> list[Any]:
        path = os.path.join(folder, file)
        try:
            with open(path, "rb", buffering=0) as opened:
                return _head(opened.read(_HEAD_BYTES), os.fstat(opened.fileno()))
        except FileNotFoundError as error:
            if peers.rank and not os.path.lexists(path):
                raise RunError(
                    f"--data {folder}: rank {peers.rank} on {os.uname().nodename} does not see {printable(file)}, "
                    "which rank 0 has found; start every rank on the same files"
                ) from error
            return [None, str(error.strerror)]
        except PermissionError as error:
            return [None, str(error.strerror)]
        except OSError as error:
            raise RunError(
                f"--data {folder}: {printable(file)}: {error.strerror}: the disk or the network has failed; repair it, "
                "then give the same command again"
            ) from error

    def look_at_all(some: Sequence[str]) -> list[Any]:
        return list(parallel_map(look, some, _SCAN_THREADS, together=_SCAN_CHUNK))

    return share_out(files, look_at_all, peers, f"--data {folder}")


def _head(content: bytes, status: os.stat_result) -> list[Any]:
    opened, size = io.BytesIO(content), status.st_size
    try:
        version = npy_format.read_magic(opened)
        if version not in _READERS:
            return [None, f"version {version} of the .npy format"]
        shape, is_fortran, dtype = _READERS[version](opened)
    except Exception as error:  # damaged headers raise many types
        return [None, f"no .npy file: {' '.join(str(error).split())}"]
    if dtype.hasobject:
        return [None, "it holds Python objects (pickle), which are not read"]
    if 0 in shape:
        return [None, f"shape {shape}: it holds no numbers"]
    header = opened.tell()
    expected = header + int(np.prod(shape)) * dtype.itemsize
    if size != expected:
        return [None, f"{size:,} bytes; expected {expected:,}"]
    native = dtype.newbyteorder("=")
    facts = [size, zlib.crc32(content[:header]), int(is_fortran), int(native != dtype)]
    return [list(shape), native.str, *facts, status.st_mtime_ns]


def _first(files: Sequence[str], heads: Sequence[list[Any]]) -> str:
    return in_words([(printable(file), head[1]) for file, head in zip(files, heads, strict=True)])
