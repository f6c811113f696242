"""Where the records of TFRecord files begin, and their labels: all ranks look for them, each in ranges of the files.

A range begins anywhere: its first record is looked for by the checksum that each length has. What looks like a record
may lie within another's image, so a range counts only if the one before it ends exactly where its first record begins;
the first range begins with the file. Otherwise one rank looks at the whole file.
"""

import dataclasses
import hashlib
import itertools
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from hvdgan.cli.errors import RunError, UserError
from hvdgan.data.formats.examples import features_of, single_bytes, single_integer
from hvdgan.data.formats.images import OF_ONE_FILE
from hvdgan.data.formats.records import CHECKSUM, FRAME, HEADER, length_of
from hvdgan.data.halves import sample_of
from hvdgan.data.kept import Kept, identity
from hvdgan.data.sharing import Peers, from_first, on_all, pack, share_out, unpack
from hvdgan.data.source import printable

_AHEAD = 4096
"""bytes read at a time while looking for a label"""
_BLOCK = 2**20
"""bytes read at a time while looking for a record"""
_SMALLEST = 2**24
"""bytes of a file that are worth a range of their own"""
_RANGES = 4
"""ranges for each rank: some files are read more slowly than others"""
_WORTH = 1000
"""records whose index is kept"""


@dataclasses.dataclass(frozen=True)
class Features:
    """Which features of a record are what.

    image: an encoded image, or raw bytes.
    label: one integer; None: there are no labels.
    input: the other image of a pair; None: a pair lies side by side in the image, which is twice as wide as high.
    shape: of raw bytes, (H, W, C) or (C, H, W); None: the image is encoded as PNG, JPEG, WebP, BMP or GIF.
    """

    image: str = "image"
    label: str | None = None
    input: str | None = None
    shape: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Index:
    """Of one file, or of a range of it.

    offsets: int64 (N,), where each record begins.
    labels: int32 (N,), or (0,) where there are none.
    checksums: uint32 (N,), of the records' contents, as they stand in the file.
    end: where the last record ends.
    """

    offsets: np.ndarray
    labels: np.ndarray
    checksums: np.ndarray
    end: int


class Opened:
    """An open file; it is closed with its last reader, never under a thread that reads from it."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._descriptor).st_size

    def read(self, offset: int, count: int) -> bytes:
        content = os.pread(self._descriptor, count, offset)
        if len(content) < count:
            raise ValueError(f"the file ends {count - len(content):,} bytes before the record does")
        return content

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


def index_files(name: str, files: Sequence[str], features: Features, peers: Peers, kept: Kept) -> list[Index]:
    """The index of each file, from what was kept or by looking.

    Args:
        name: what `--data` says.
        files: their paths.
        features: which of a record are needed.
        peers: the ranks; every one calls this.
        kept: where the index is, and is to be, kept.

    Raises:
        UserError: a file is no TFRecord file, compressed as a whole, has other features, or may not be read.
        RunError: the ranks do not see the same files, or the disk or the network has failed.
    """
    identities = on_all(lambda: _identities(name, files), peers, f"--data {name}: its files")
    sizes = [size for _, size, _ in identities]
    seen = [f"{file}\0{size}" for file, size in zip(files, sizes, strict=True)]
    share_out(seen, lambda some: [None] * len(some), peers, f"--data {name}")
    key = json.dumps([identities, features.image, features.label, features.input])
    found = from_first(lambda: _from_kept(kept, key, files), peers, f"--data {name}: the kept index")
    if found is not None:
        return [_unpacked(*each) for each in found]
    indices = _indexed(name, list(files), sizes, features, peers)
    if peers.rank == 0 and sum(len(index.offsets) for index in indices) >= _WORTH:
        kept.put("tfrecords.index", key, json.dumps([_packed(index) for index in indices]).encode())
    return indices


def _identities(name: str, files: Sequence[str]) -> list[list[Any]]:
    found = []
    for file in files:
        try:
            found.append(identity(file))
        except OSError as error:
            raise _unreadable(f"--data {name}: {printable(file)}", error) from error
    return found


def _unreadable(where: str, error: OSError) -> RunError:
    return (UserError if error.errno in OF_ONE_FILE else RunError)(f"{where}: {error.strerror}")


def _from_kept(kept: Kept, key: str, files: Sequence[str]) -> list[list[Any]] | None:
    """What was kept, if some records of each file are still what they were."""
    content = kept.get("tfrecords.index", key)
    if content is None:
        return None
    found = json.loads(content)
    try:
        for file, each in zip(files, found, strict=True):
            index, opened = _unpacked(*each), Opened(file)
            for place in sample_of(len(index.offsets)):
                offset = int(index.offsets[place])
                past = offset + HEADER + length_of(opened.read(offset, HEADER))
                if np.frombuffer(opened.read(past, CHECKSUM), np.uint32)[0] != index.checksums[place]:
                    return None
    except (OSError, ValueError):
        return None
    return found


def _packed(index: Index) -> list[Any]:
    return [pack(index.offsets), pack(index.labels), pack(index.checksums), index.end]


def _unpacked(offsets: str, labels: str, checksums: str, end: int) -> Index:
    return Index(unpack(offsets, np.int64), unpack(labels, np.int32), unpack(checksums, np.uint32), end)


def _indexed(name: str, files: list[str], sizes: list[int], features: Features, peers: Peers) -> list[Index]:
    ranges = _ranges(sizes, peers.size)
    items = [json.dumps([number, begin, past]) for number, begin, past in ranges]

    def look(some: Sequence[str]) -> list[Any]:
        found = []
        for number, begin, past in map(json.loads, some):
            index = _range(name, files[number], features, begin, past)
            found.append(index and _packed(index))
        return found

    found = [each and _unpacked(*each) for each in share_out(items, look, peers, f"--data {name}")]
    joined: list[Index | None] = []
    for number, size in enumerate(sizes):
        own = [(begin, past, index) for (of, begin, past), index in zip(ranges, found, strict=True) if of == number]
        joined.append(_joined(own, size))
    again = [number for number, index in enumerate(joined) if index is None]
    items = [json.dumps([number, 0, sizes[number]]) for number in again]
    whole = share_out(items, look, peers, f"--data {name}") if again else []
    for number, each in zip(again, whole, strict=True):
        joined[number] = _unpacked(*each)
    return [index for index in joined if index is not None]


def _ranges(sizes: Sequence[int], ranks: int) -> list[tuple[int, int, int]]:
    """(number of the file, first byte, past the last) of the ranges that the ranks share."""
    most = max(_SMALLEST, -(-sum(sizes) // (_RANGES * ranks))) if ranks > 1 else max([1, *sizes])
    found = []
    for number, size in enumerate(sizes):
        bounds = np.linspace(0, size, max(1, -(-size // most)) + 1).astype(np.int64).tolist()
        found += [(number, begin, past) for begin, past in itertools.pairwise(bounds)]
    return found


def _joined(parts: Sequence[tuple[int, int, Index | None]], size: int) -> Index | None:
    """The index of a file from those of its ranges; None where one does not end where the next begins."""
    end = 0
    for _, past, index in parts:
        if index is None:
            return None
        if len(index.offsets):
            if index.offsets[0] != end:
                return None
            end = index.end
        elif end < past:
            return None
    if end != size:
        return None
    found = [index for *_, index in parts if index is not None]
    return Index(
        np.concatenate([index.offsets for index in found]),
        np.concatenate([index.labels for index in found]),
        np.concatenate([index.checksums for index in found]),
        end,
    )


def _range(name: str, file: str, features: Features, begin: int, past: int) -> Index | None:
    """The records that begin in a range of a file; None where something is wrong and the range is not the first."""
    where = f"--data {name}: {printable(file)}"
    try:
        opened = Opened(file)
        start = _first_record(opened, begin, past) if begin else 0
        if start is None:
            return _index_of([], [], b"", begin)
        return _walked(where, opened, features, start, past)
    except OSError as error:
        raise _unreadable(where, error) from error
    except (UserError, ValueError):
        if begin:
            return None  # one that begins with the file names the record
        raise


def _index_of(offsets: list[int], labels: list[int], checksums: bytes, end: int) -> Index:
    return Index(np.array(offsets, np.int64), np.array(labels, np.int32), np.frombuffer(checksums, np.uint32), end)


def _first_record(opened: Opened, begin: int, past: int) -> int | None:
    """Where something begins that looks like a record, and is followed by another or by the end of the file."""
    while begin < past:
        block = opened.read(begin, min(_BLOCK + HEADER, opened.size - begin))
        place = -1
        # The upper half of a length is zero: no record has 4 GB.
        while (place := block.find(b"\0\0\0\0", place + 1)) >= 0:
            start = begin + place - 4
            if place >= 4 and start < past and _looks_like_one(opened, start):
                return start
        begin += _BLOCK
    return None


def _looks_like_one(opened: Opened, start: int) -> bool:
    try:
        after = start + length_of(opened.read(start, HEADER)) + FRAME
        if after < opened.size:
            length_of(opened.read(after, HEADER))
    except ValueError:
        return False
    return after <= opened.size


def _walked(where: str, opened: Opened, features: Features, position: int, past: int) -> Index:
    """The records from one on that begin before the end of a range."""
    offsets: list[int] = []
    labels: list[int] = []
    checksums = bytearray()
    try:
        header = opened.read(position, min(HEADER, opened.size - position))
        while position < past:
            if position == 0 and header[:2] == b"\x1f\x8b":
                raise UserError(
                    f"{where}: compressed as a whole, so that no record can be read alone; unpack it (gunzip)"
                )
            length = length_of(header)
            if position + length + FRAME > opened.size:
                raise ValueError("the file ends before the record does")
            begin = position + HEADER
            if features.label is not None or position == 0:
                read = _Ahead(opened, begin, begin + length)
                spans = {feature: (first, last) for feature, first, last in features_of(read, length)}
                labels += _looked_up(where, len(offsets), spans, read, features)
            offsets.append(position)
            position += length + FRAME
            # A record's checksum and the header of the next lie together: one read.
            border = opened.read(position - CHECKSUM, min(CHECKSUM + HEADER, opened.size - position + CHECKSUM))
            checksums += border[:CHECKSUM]
            header = border[CHECKSUM:]
    except ValueError as error:
        raise UserError(f"{where}, record {len(offsets)}: {error}; expected a whole file of TFRecords") from error
    return _index_of(offsets, labels, bytes(checksums), position)


class _Ahead:
    """Reads a few kilobytes at a time of a part of a file."""

    def __init__(self, opened: Opened, begin: int, end: int) -> None:
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
    """The label, as a list of one or none; the features that an image needs must be there."""
    for flag, wanted in (("image", features.image), ("label", features.label), ("input", features.input)):
        if wanted is not None and wanted not in spans:
            found = ", ".join(sorted(printable(name) for name in spans)) or "none"
            raise UserError(f"--tfrecord-{flag} {wanted}: {where}, record {place} has the features {found}")
    for wanted in (features.image, features.input):
        if wanted is not None and place == 0 and single_bytes(read, *spans[wanted]) is None:
            raise UserError(f"{where}, record {place}: feature {wanted} is not one value of bytes; expected an image")
    if features.label is None:
        return []
    label = single_integer(read, *spans[features.label])
    limits = np.iinfo(np.int32)
    if label is None or not limits.min <= label <= limits.max:
        raise UserError(f"--tfrecord-label {features.label}: {where}, record {place}: not one integer of 32 bits")
    return [label]


def digest_of(index: Index) -> str:
    """SHA-256 of all checksums, in hex."""
    return hashlib.sha256(index.checksums.tobytes()).hexdigest()
