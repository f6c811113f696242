"""Scans a TFRecord file, or a range of it, for its records: their begins, labels and checksums.

A range may begin anywhere in a file. Its first record is found by the checksum of a record's length. Bytes that look
like a record may also lie inside an image, so the caller accepts a range only if the previous one ends exactly where
the first record of this one begins.
"""

import dataclasses

import numpy as np

from hvdgan.cli.errors import RunError, UserError
from hvdgan.data.base.gzip_files import MAGIC, PLACES, GzipFile, GzipStream, places_of
from hvdgan.data.base.source import printable
from hvdgan.data.formats.images import OF_ONE_FILE
from hvdgan.data.formats.tf_example import features_of, numbers_in, single_bytes, single_integer
from hvdgan.data.formats.tfrecord import CHECKSUM, FRAME, HEADER, RecordFile, length_of

_AHEAD = 4096
"""bytes read at a time in search of a label"""
_BLOCK = 2**20
"""bytes read at a time in search of a record"""


@dataclasses.dataclass(frozen=True)
class Features:
    """The names of a record's features, and the shape of raw images.

    image: feature with an encoded image or with raw bytes.
    label: feature with one integer; None: there are no labels.
    input: feature with the input of a pair; None: a pair lies side by side in an image twice as wide as high.
    shape: shape of raw bytes, (H, W, C) or (C, H, W); None: the image is encoded as PNG, JPEG, WebP, BMP or GIF.
    dtype: type of the numbers of arrays, in lists or in raw bytes; None: pictures.
    conditions: features of one number each.
    """

    image: str = "image"
    label: str | None = None
    input: str | None = None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    conditions: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Index:
    """The index of a file, or of a range of it.

    offsets: begins of the records in bytes, int64 (N,).
    labels: labels of the records, int32 (N,), or (0,) if there are none.
    checksums: checksums of the payloads, as they stand in the file, uint32 (N,).
    end: end of the last record in bytes.
    conditions: numbers of the conditions of all records, one record after the other, float64 (N * k,).
    places: of a file that is compressed as a whole, the places at which decompression can begin; offsets and end
        count decompressed bytes.
    """

    offsets: np.ndarray
    labels: np.ndarray
    checksums: np.ndarray
    end: int
    conditions: np.ndarray
    places: bytes = b""


def opened_records(path: str, places: bytes) -> RecordFile | GzipFile:
    """A file of records, compressed as a whole if there are places at which decompression can begin.

    Raises:
        UserError: the library that decompresses is missing.
        OSError: the file cannot be read.
        ValueError: it is not the one with these places.
    """
    return GzipFile(path, places) if places else RecordFile(path)


def scan_range(name: str, file: str, features: Features, begin: int, past: int, share: float = 1.0) -> Index | None:
    """The index of the records that begin in a range of a file; None if it cannot be read as records from there.

    A file that is compressed as a whole cannot be divided into ranges.

    Args:
        name: value of `--data`.
        file: path of the file.
        features: names of the features that are needed.
        begin: first byte of the range.
        past: one past the last byte of the range.
        share: share of all places of decompression that the file may have, above 0 and at most 1.

    Raises:
        UserError: begin is 0, and the file is not a TFRecord file, lacks a feature, or is compressed as a whole and
            damaged; or it may not be read.
        RunError: the disk or the network has failed.
    """
    where = f"--data {name}: {printable(file)}"
    try:
        opened = RecordFile(file)
        if begin == 0 and _is_compressed(opened):
            return _walked_compressed(where, file, features, share) if past == opened.size else None
        start = _first_record(opened, begin, past) if begin else 0
        if start is None:
            return _index_of([], [], [], b"", begin)
        return _walked(where, opened, features, start, past)
    except OSError as error:
        raise unreadable(where, error) from error
    except (UserError, ValueError):
        if begin:
            return None  # the scan of the whole file raises an error that names the record
        raise


def _is_compressed(opened: RecordFile) -> bool:
    head = opened.read(0, min(HEADER, opened.size))
    try:
        length_of(head)  # the length of a record may begin with the same bytes
    except ValueError:
        return head.startswith(MAGIC)
    return False


def _walked_compressed(where: str, file: str, features: Features, share: float) -> Index:
    """The index of a file that is compressed as a whole."""
    try:
        places = places_of(file, max(1, int(share * PLACES)))
        if not places:
            return _index_of([], [], [], b"", 0)
        opened = GzipStream(file, places)
        index = _walked(where, opened, features, 0, opened.size)
        opened.finish()
    except ValueError as error:
        raise UserError(f"{where}: {error}; restore it, or leave it out") from error
    return dataclasses.replace(index, places=places)


def _index_of(offsets: list[int], labels: list[int], conditions: list[float], checksums: bytes, end: int) -> Index:
    return Index(
        np.array(offsets, np.int64),
        np.array(labels, np.int32),
        np.frombuffer(checksums, np.uint32),
        end,
        np.array(conditions, np.float64),
    )


def _first_record(opened: RecordFile, begin: int, past: int) -> int | None:
    """Begin of the first bytes that look like a record and are followed by another one or by the end of the file."""
    while begin < past:
        block = opened.read(begin, min(_BLOCK + HEADER, opened.size - begin))
        place = -1
        # The upper half of a length is zero, since no record has 4 GB.
        while (place := block.find(b"\0\0\0\0", place + 1)) >= 0:
            start = begin + place - 4
            if place >= 4 and start < past and _looks_like_one(opened, start):
                return start
        begin += _BLOCK
    return None


def _looks_like_one(opened: RecordFile, start: int) -> bool:
    try:
        after = start + length_of(opened.read(start, HEADER)) + FRAME
        if after < opened.size:
            length_of(opened.read(after, HEADER))
    except ValueError:
        return False
    return after <= opened.size


def _walked(where: str, opened: RecordFile | GzipStream, features: Features, position: int, past: int) -> Index:
    """The index of the records from a position on that begin before the end of a range."""
    offsets: list[int] = []
    labels: list[int] = []
    conditions: list[float] = []
    checksums = bytearray()
    try:
        header = opened.read(position, min(HEADER, opened.size - position))
        while position < past:
            length = length_of(header)
            if position + length + FRAME > opened.size:
                raise ValueError("the file ends before the record does")
            begin = position + HEADER
            if features.label is not None or features.conditions or position == 0:
                read = _Ahead(opened, begin, begin + length)
                spans = {feature: (first, last) for feature, first, last in features_of(read, length)}
                labels += _looked_up(where, len(offsets), spans, read, features)
                conditions += [
                    _condition(f"{where}, record {len(offsets)}", spans, read, name) for name in features.conditions
                ]
            offsets.append(position)
            position += length + FRAME
            # The checksum of a record and the header of the next one are read together.
            border = opened.read(position - CHECKSUM, min(CHECKSUM + HEADER, opened.size - position + CHECKSUM))
            checksums += border[:CHECKSUM]
            header = border[CHECKSUM:]
    except ValueError as error:
        raise UserError(f"{where}, record {len(offsets)}: {error}; expected a whole file of TFRecords") from error
    return _index_of(offsets, labels, conditions, bytes(checksums), position)


class _Ahead:
    """Reads a part of a file, a few kilobytes at a time."""

    def __init__(self, opened: RecordFile | GzipStream, begin: int, end: int) -> None:
        self._opened, self._begin, self._end = opened, begin, end
        self._first, self._content = 0, b""

    def __call__(self, offset: int, count: int) -> bytes:
        within = offset - self._first
        if within < 0 or within + count > len(self._content):
            room = self._end - self._begin - offset
            self._content = self._opened.read(self._begin + offset, min(max(count, _AHEAD), room))
            self._first, within = offset, 0
        return self._content[within : within + count]


def _looked_up(
    where: str, place: int, spans: dict[str, tuple[int, int]], read: _Ahead, features: Features
) -> list[int]:
    """The label in a list, which is empty if there are no labels; raises an error if a needed feature is missing."""
    for flag, wanted in (("image", features.image), ("label", features.label), ("input", features.input)):
        if wanted is not None and wanted not in spans:
            found = ", ".join(sorted(printable(name) for name in spans)) or "none"
            raise UserError(f"--tfrecord-{flag} {wanted}: {where}, record {place} has the features {found}")
    for wanted in (features.image, features.input):
        if features.dtype is None and wanted is not None and place == 0 and single_bytes(read, *spans[wanted]) is None:
            raise UserError(f"{where}, record {place}: feature {wanted} is not one value of bytes; expected an image")
    if features.label is None:
        return []
    label = single_integer(read, *spans[features.label])
    limits = np.iinfo(np.int32)
    if label is None or not limits.min <= label <= limits.max:
        raise UserError(f"--tfrecord-label {features.label}: {where}, record {place}: not one integer of 32 bits")
    return [label]


def _condition(where: str, spans: dict[str, tuple[int, int]], read: _Ahead, name: str) -> float:
    """The number of a feature that describes a record."""
    if name not in spans:
        found = ", ".join(sorted(printable(other) for other in spans)) or "none"
        raise UserError(f"--conditions {name}: {where} has the features {found}")
    first, past = spans[name]
    # A longer feature is no single number, and need not be read.
    values = numbers_in(read(first, past - first), 0, past - first) if past - first < _AHEAD else None
    if values is None or len(values) != 1 or not np.isfinite(values[0]):
        raise UserError(f"--conditions {name}: {where}: not one finite number")
    return float(values[0])


def unreadable(where: str, error: OSError) -> RunError:
    return (UserError if error.errno in OF_ONE_FILE else RunError)(f"{where}: {error.strerror}")
