"""Random access to a file that GZIP has compressed as a whole, from places at which decompression can begin.

Reference: RFC 1952; the places are those of zlib's example zran.c, which the library indexed_gzip is made from.
"""

import gzip
import io
import os
import struct
import threading
import zlib
from typing import Any

from hvdgan.cli.errors import UserError

MAGIC = b"\x1f\x8b\x08"
PLACES = 4096
"""places of all files together, at most; each takes 32 KiB of memory, for the bytes before it"""
_SPACING = 2**20
"""smallest distance of two places in decompressed bytes, of which half are decompressed for each read"""
_BLOCK = 2**20
_KEPT = 2**24
"""bytes of a stream that can be read again"""


class GzipFile:
    """A compressed file as if it were not, read by several threads one after the other.

    Args:
        path: path of the file.
        places: places at which decompression can begin, from `places_of`.

    Raises:
        UserError: the library is missing.
        OSError: the file cannot be read.
        ValueError: the file is not the one with these places.
    """

    def __init__(self, path: str, places: bytes) -> None:
        self._lock = threading.Lock()
        self._file = _library(path).IndexedGzipFile(fileobj=_Closed(path), readbuf_size=_BLOCK // 4)
        try:
            self._file.import_index(fileobj=io.BytesIO(places))
            self.size = self._file.raw.seek(0, os.SEEK_END)
        except OSError as error:
            raise _fault(error) from error

    def read(self, offset: int, count: int) -> bytes:
        """Some decompressed bytes.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is damaged, or ends before.
        """
        try:
            with self._lock:  # the buffer around `raw` would read more than is asked for
                content = self._file.raw.pread(count, offset)
        except OSError as error:
            raise _fault(error) from error
        if len(content) < count:
            raise ValueError(f"the file ends {count - len(content):,} bytes before the record does")
        return content


class GzipStream:
    """A compressed file from its begin to its end, where its checksum is verified, as if it were not compressed.

    Args:
        path: path of the file.
        places: places at which decompression can begin, for bytes long before those that were read last.

    Raises:
        UserError, OSError, ValueError: as for GzipFile.
    """

    def __init__(self, path: str, places: bytes) -> None:
        self._stream, self._file = gzip.GzipFile(path, "rb"), GzipFile(path, places)
        self._first, self._content = 0, bytearray()
        self.size = self._file.size

    def read(self, offset: int, count: int) -> bytes:
        """Some decompressed bytes.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is damaged, or ends before.
        """
        if offset < self._first:
            return self._file.read(offset, count)
        while self._first + len(self._content) < offset + count:
            block = _block_of(self._stream)
            if not block:
                raise ValueError("the file ends before the record does")
            self._content += block
            if len(self._content) > 2 * _KEPT and offset >= self._first + _KEPT:
                del self._content[:_KEPT]
                self._first += _KEPT
        return bytes(self._content[offset - self._first : offset - self._first + count])

    def finish(self) -> None:
        """Read to the end of the file, and close it.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is damaged.
        """
        with self._stream:
            while _block_of(self._stream):
                pass


def places_of(path: str, most: int) -> bytes:
    """Decompress a file once, and return places of it at which decompression can begin.

    Args:
        path: path of the file.
        most: number of places, about; they are 1 MiB of decompressed bytes apart or further.

    Raises:
        UserError: the library is missing.
        OSError: the file cannot be read.
        ValueError: it is damaged.
    """
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        file.seek(max(0, size - 4))
        # The decompressed length modulo 4 GiB; of a file of several members that of the last one.
        (length,) = struct.unpack("<I", file.read(4).rjust(4, b"\0"))
    library, places = _library(path), io.BytesIO()
    spacing = max(_SPACING, min(2**31, max(length, size) // most))
    found = library.IndexedGzipFile(fileobj=_Closed(path), spacing=spacing, readbuf_size=_BLOCK // 4)
    try:
        found.build_full_index()
        found.raw.seek(0, os.SEEK_END)
        found.export_index(fileobj=places)
    except (OSError, library.NotCoveredError) as error:
        # The library gives one error for all reasons, also for a file of nothing; Python's module names them.
        if _decompressed(path):
            raise _fault(error) from error
        return b""
    return places.getvalue()


class _Closed(io.RawIOBase):
    """A file that is open only while it is read from, as there may be more files than a process can open.

    The library can do the same, but ends the process by a segmentation fault if the file is gone.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path, self._place = path, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        begins = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: os.path.getsize(self._path)}
        self._place = begins[whence] + offset
        return self._place

    def read(self, size: int = -1) -> bytes:
        with open(self._path, "rb", buffering=0) as file:
            file.seek(self._place)
            content = file.read(size)
        self._place += len(content)
        return content


def _decompressed(path: str) -> int:
    """The number of decompressed bytes of a whole file."""
    with gzip.GzipFile(path, "rb") as stream:
        return sum(map(len, iter(lambda: _block_of(stream), b"")))


def _block_of(stream: gzip.GzipFile) -> bytes:
    try:
        return stream.read(_BLOCK)
    except (EOFError, zlib.error, OSError) as error:
        raise _fault(error) from error


def _library(path: str) -> Any:
    try:
        import indexed_gzip
    except ImportError as error:
        raise UserError(
            f"{path}: compressed as a whole; pip install 'hvdgan[gzip]' to read its records, or convert the files with "
            "python -m hvdgan.prepare, which takes the same --tfrecord flags, or unpack them with gunzip"
        ) from error
    return indexed_gzip


def _fault(error: Exception) -> Exception:
    """The error of the disk or the network behind an error of either library, or one that says that a file is damaged.

    indexed_gzip gives one error for all reasons, and Python's module names them.
    """
    causes = [cause for cause in (error, error.__cause__) if isinstance(cause, OSError) and cause.errno is not None]
    return causes[0] if causes else ValueError(f"damaged GZIP: {error}")
