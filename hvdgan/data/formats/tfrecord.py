"""Reads and writes the records of TFRecord files: each has a length, a payload and two checksums.

Reference: https://www.tensorflow.org/tutorials/load_data/tfrecord; tensorflow/core/example/example.proto.
"""

import os
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import google_crc32c

_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
CHECKSUM = _CHECKSUM.size
HEADER = _LENGTH.size + CHECKSUM
FRAME = HEADER + CHECKSUM
"""bytes that a record has in addition to its payload"""
OPEN_FILES = 256
"""files that a source keeps open, at most"""


def framed(payload: bytes) -> bytes:
    """A record of a file: length, checksum of the length, payload, checksum of the payload."""
    length = _LENGTH.pack(len(payload))
    return b"".join((length, _masked_crc(length), payload, _masked_crc(payload)))


def payload_of(record: bytes) -> bytes:
    """The payload of a record.

    Raises:
        ValueError: the record is damaged; the text says how.
    """
    if len(record) < FRAME or record[_LENGTH.size : HEADER] != _masked_crc(record[: _LENGTH.size]):
        raise ValueError("no record begins here")
    if _LENGTH.unpack_from(record)[0] != len(record) - FRAME:
        raise ValueError("its length differs")
    payload = record[HEADER:-CHECKSUM]
    if record[-CHECKSUM:] != _masked_crc(payload):
        raise ValueError("its checksum does not match")
    return payload


def length_of(header: bytes) -> int:
    """The size of a record's payload in bytes, from the record's first HEADER bytes.

    Raises:
        ValueError: no record begins with these bytes.
    """
    if len(header) < HEADER or header[_LENGTH.size : HEADER] != _masked_crc(header[: _LENGTH.size]):
        raise ValueError("no record begins here")
    return _LENGTH.unpack_from(header)[0]


def checksum_of(parts: Iterable[Any]) -> bytes:
    """The checksum, as it stands in a file, of a payload in several parts, each bytes or a uint8 array."""
    crc = 0
    for part in parts:
        crc = google_crc32c.extend(crc, part)
    return _masked(crc)


def _masked_crc(data: bytes) -> bytes:
    return _masked(google_crc32c.value(data))


def _masked(crc: int) -> bytes:
    """CRC-32C, rotated and shifted as the format demands, since a CRC of data that contain CRCs would be weak."""
    return _CHECKSUM.pack(((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32)


class RecordFile:
    """A file open for reading; it is closed with its last reference, so never while a thread reads from it."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._descriptor).st_size

    def read(self, offset: int, count: int) -> bytes:
        content = os.pread(self._descriptor, count, offset)
        if len(content) < count:
            raise ValueError(f"the file ends {count - len(content):,} bytes before the record does")
        return content

    def read_into(self, offset: int, buffers: Sequence[Any]) -> None:
        """Read into buffers of bytes, one after the other."""
        missing = sum(map(len, buffers)) - os.preadv(self._descriptor, buffers, offset)
        if missing:
            raise ValueError(f"the file ends {missing:,} bytes before the record does")

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)
