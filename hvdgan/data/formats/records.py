"""The TFRecord format: records one after another, each between checksums, found by offset and length.

Reference: https://www.tensorflow.org/tutorials/load_data/tfrecord; tensorflow/core/example/example.proto.
"""

import struct
from collections.abc import Mapping

import google_crc32c

_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
CHECKSUM = _CHECKSUM.size
HEADER = _LENGTH.size + CHECKSUM
FRAME = HEADER + CHECKSUM
"""bytes of a record beside those that it holds"""


def framed(payload: bytes) -> bytes:
    """A record of a file: length, checksum of the length, payload, checksum of the payload."""
    length = _LENGTH.pack(len(payload))
    return b"".join((length, _masked_crc(length), payload, _masked_crc(payload)))


def payload_of(record: bytes) -> bytes:
    """What a record holds.

    Raises:
        ValueError: it is not what was written; the text says in what.
    """
    if len(record) < FRAME or record[_LENGTH.size : HEADER] != _masked_crc(record[: _LENGTH.size]):
        raise ValueError("no record begins here")
    if _LENGTH.unpack_from(record)[0] != len(record) - FRAME:
        raise ValueError("its length is another")
    payload = record[HEADER:-CHECKSUM]
    if record[-CHECKSUM:] != _masked_crc(payload):
        raise ValueError("its checksum does not match")
    return payload


def length_of(header: bytes) -> int:
    """How many bytes a record holds, by its first HEADER bytes.

    Raises:
        ValueError: they are none of a record's.
    """
    if len(header) < HEADER or header[_LENGTH.size : HEADER] != _masked_crc(header[: _LENGTH.size]):
        raise ValueError("no record begins here")
    return _LENGTH.unpack_from(header)[0]


def example(features: Mapping[str, bytes | int]) -> bytes:
    """A serialized tf.train.Example of one value per feature; the same features give the same bytes."""
    entries = b"".join(
        _field(1, _field(1, name.encode()) + _field(2, _feature(features[name]))) for name in sorted(features)
    )
    return _field(1, entries)


def _feature(value: bytes | int) -> bytes:
    """A BytesList or an Int64List of one value."""
    if isinstance(value, bytes):
        return _field(1, _field(1, value))
    return _field(3, _field(1, _varint(value % 2**64)))


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited field of a protocol buffer."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def _masked_crc(data: bytes) -> bytes:
    """CRC-32C, rotated and shifted: a checksum of data that holds checksums would else be weak."""
    crc = google_crc32c.value(data)
    return _CHECKSUM.pack(((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32)
