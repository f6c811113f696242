"""Reads single features of a serialized tf.train.Example, and writes Examples, without TensorFlow.

A feature is found without reading the others: reading the labels of a data set does not read its images.

Reference: https://protobuf.dev/programming-guides/encoding; tensorflow/core/example/example.proto.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

Read = Callable[[int, int], bytes]
"""function of an offset and a count that returns the bytes there"""

_VARINT_BYTES = 10
_FIXED_BYTES = {1: 8, 5: 4}
_DELIMITED, _VARINT = 2, 0
_FLOAT_TAG, _INTEGER_TAG = 0x0D, 0x08
"""bytes before each value of a list that is not packed"""


def features_of(read: Read, end: int) -> Iterator[tuple[str, int, int]]:
    """The features of a serialized tf.train.Example: names, and begin and end of each tf.train.Feature.

    Args:
        read: function that returns bytes of the Example.
        end: size of the Example in bytes.

    Raises:
        ValueError: it is not a tf.train.Example.
    """
    for first, past in _delimited(read, 0, end, 1):  # Example.features
        for entry, entry_end in _delimited(read, first, past, 1):  # Features.feature, a map
            names = list(_delimited(read, entry, entry_end, 1))
            values = list(_delimited(read, entry, entry_end, 2))
            if names and values:
                start, stop = names[-1]
                yield read(start, stop - start).decode(errors="replace"), *values[-1]


def single_bytes(read: Read, first: int, past: int) -> tuple[int, int] | None:
    """Begin and end of the value of a Feature of bytes; None if it is of another kind or has not exactly one value."""
    values = [value for some in _delimited(read, first, past, 1) for value in _delimited(read, *some, 1)]
    return values[0] if len(values) == 1 else None


def single_integer(read: Read, first: int, past: int) -> int | None:
    """The value of a Feature of integers; None if it is of another kind or has not exactly one value."""
    found = []
    for start, stop in _delimited(read, first, past, 3):  # Feature.int64_list
        for number, kind, value, end in _fields(read, start, stop):
            if number == 1 and kind == _VARINT:
                found.append(value)
            elif number == 1 and kind == _DELIMITED:  # packed
                place = value
                while place < end:
                    integer, place = _varint(read, place, end)
                    found.append(integer)
    if len(found) != 1:
        return None
    return found[0] - 2**64 if found[0] >= 2**63 else found[0]


def numbers_in(content: bytes, first: int, past: int) -> np.ndarray | None:
    """The values of a Feature of floats, float32 (n,), or of integers, int64 (n,); None if it holds bytes.

    Args:
        content: the Example.
        first, past: begin and end of the Feature.

    Raises:
        ValueError: it is damaged.
    """

    def read(offset: int, count: int) -> bytes:
        return content[offset : offset + count]

    found = [(number, start, stop) for number, kind, start, stop in _fields(read, first, past) if kind == _DELIMITED]
    if not found or found[-1][0] not in (2, 3):
        return None
    of_kind = float_list if found[-1][0] == 2 else int64_list
    return np.concatenate([of_kind(content[start:stop]) for number, start, stop in found if number == found[-1][0]])


def float_list(content: bytes) -> np.ndarray:
    """The values of a serialized tf.train.FloatList, packed or not, float32 (n,).

    Raises:
        ValueError: it is damaged.
    """
    each = np.dtype([("tag", "u1"), ("value", "<f4")])
    if content[:1] == bytes([_FLOAT_TAG]) and len(content) % each.itemsize == 0:
        values = np.frombuffer(content, each)
        if (values["tag"] == _FLOAT_TAG).all():
            return values["value"].astype(np.float32)
    parts = [np.frombuffer(part, "<f4") for part in _packed(content)]
    return np.concatenate([np.empty(0, np.float32), *parts]).astype(np.float32, copy=False)


def int64_list(content: bytes) -> np.ndarray:
    """The values of a serialized tf.train.Int64List, packed or not, int64 (n,).

    Raises:
        ValueError: it is damaged.
    """
    if content[:1] == bytes([_INTEGER_TAG]):
        both = _varints(content)
        if len(both) % 2 or (both[::2] != _INTEGER_TAG).any():
            raise ValueError("a list of integers is damaged")
        return both[1::2].view(np.int64)
    return np.concatenate([np.empty(0, np.int64), *(_varints(part).view(np.int64) for part in _packed(content))])


def _packed(content: bytes) -> list[bytes]:
    """The packed values of a list."""

    def read(offset: int, count: int) -> bytes:
        return content[offset : offset + count]

    return [content[start:stop] for start, stop in _delimited(read, 0, len(content), 1)]


def _varints(content: bytes) -> np.ndarray:
    """All varints that follow each other, uint64 (n,), at once: a loop would take a microsecond for each."""
    groups = np.frombuffer(content, np.uint8)
    last = np.flatnonzero(groups < 0x80)
    if len(groups) and (not len(last) or last[-1] != len(groups) - 1):
        raise ValueError("a list of integers ends within a number")
    firsts = np.concatenate([[0], last[:-1] + 1]).astype(np.int64)[: len(last)]
    lengths = last - firsts + 1
    if len(last) and lengths.max() > _VARINT_BYTES:
        raise ValueError("a list of integers is damaged")
    within = np.arange(len(groups)) - np.repeat(firsts, lengths)
    parts = (groups & 0x7F).astype(np.uint64) << (7 * within).astype(np.uint64)
    return np.add.reduceat(parts, firsts) if len(last) else np.empty(0, np.uint64)


def _delimited(read: Read, first: int, past: int, wanted: int) -> Iterator[tuple[int, int]]:
    """Begin and end of the length-delimited fields with this number."""
    for number, kind, start, stop in _fields(read, first, past):
        if number == wanted and kind == _DELIMITED:
            yield start, stop


def _fields(read: Read, first: int, past: int) -> Iterator[tuple[int, int, int, int]]:
    """(number, wire type, start, end) of each field of a message; for a varint, start is its value."""
    place = first
    while place < past:
        tag, place = _varint(read, place, past)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, place = _varint(read, place, past)
            yield number, kind, value, place
            continue
        if kind == _DELIMITED:
            length, place = _varint(read, place, past)
        elif kind in _FIXED_BYTES:
            length = _FIXED_BYTES[kind]
        else:
            raise ValueError(f"unknown wire type {kind} at byte {place}")
        if place + length > past:
            raise ValueError(f"the field at byte {place} runs past the end of its message")
        yield number, kind, place, place + length
        place += length


def _varint(read: Read, place: int, past: int) -> tuple[int, int]:
    """A varint, and the place of the byte behind it."""
    number = 0
    for count, byte in enumerate(read(place, min(_VARINT_BYTES, past - place))):
        number |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return number, place + count + 1
    raise ValueError(f"invalid varint at byte {place}")


def example(features: Mapping[str, bytes | int]) -> bytes:
    """A serialized tf.train.Example with one value per feature; equal features give equal bytes."""
    entries = b"".join(
        _field(1, _field(1, name.encode()) + _field(2, _feature(features[name]))) for name in sorted(features)
    )
    return _field(1, entries)


def _feature(value: bytes | int) -> bytes:
    """A BytesList or an Int64List of one value."""
    if isinstance(value, bytes):
        return _field(1, _field(1, value))
    return _field(3, _field(1, _encoded_varint(value % 2**64)))


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited field of a protocol buffer."""
    return _encoded_varint(number << 3 | 2) + _encoded_varint(len(content)) + content


def _encoded_varint(number: int) -> bytes:
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)
