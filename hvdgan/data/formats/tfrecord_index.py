"""Builds the index of TFRecord files: begins, labels and checksums of their records.

All ranks share the work in ranges of the files. The ranges of a file are accepted only if each ends exactly where the
first record of the next one begins. Otherwise one rank scans the whole file, as it does if GZIP has compressed it.
"""

import hashlib
import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from hvdgan.cli.shared_errors import Peers, on_all
from hvdgan.data.base.scan_cache import ScanCache, identity
from hvdgan.data.base.sharing import from_first, pack, share_out, unpack
from hvdgan.data.base.source import printable
from hvdgan.data.formats.pairing import sample_of
from hvdgan.data.formats.tfrecord import CHECKSUM, HEADER, length_of
from hvdgan.data.formats.tfrecord_scan import Features, Index, opened_records, scan_range, unreadable

SMALLEST_RANGE = 2**24
"""smallest range in bytes"""
_RANGES = 4
"""ranges per rank, since some files are read more slowly than others"""


def index_files(name: str, files: Sequence[str], features: Features, peers: Peers, scans: ScanCache) -> list[Index]:
    """The index of each file, from the cache or by a scan.

    Args:
        name: value of `--data`.
        files: paths of the files.
        features: names of the features that are needed.
        peers: the ranks; each calls this.
        scans: cache of the index.

    Raises:
        UserError: a file is not a TFRecord file, is damaged, lacks a feature, or may not be read.
        RunError: the ranks do not see the same files, or the disk or the network has failed.
    """
    identities = on_all(lambda: _identities(name, files), peers, f"--data {name}: its files")
    sizes = [size for _, size, _ in identities]
    seen = [f"{file}\0{size}" for file, size in zip(files, sizes, strict=True)]
    share_out(seen, lambda some: [None] * len(some), peers, f"--data {name}")
    needed = [features.image, features.label, features.input]
    key = json.dumps([identities, *needed, *([features.conditions] if features.conditions else [])])
    found = from_first(lambda: _from_cache(scans, key, files), peers, f"--data {name}: the cached index")
    if found is not None:
        return [_unpacked(*each) for each in found]
    indices = _indexed(name, list(files), sizes, features, peers)
    count = sum(len(index.offsets) for index in indices)
    scans.put("tfrecords.index", key, lambda: json.dumps([_packed(index) for index in indices]).encode(), count)
    return indices


def _identities(name: str, files: Sequence[str]) -> list[list[Any]]:
    found = []
    for file in files:
        try:
            found.append(identity(file))
        except OSError as error:
            raise unreadable(f"--data {name}: {printable(file)}", error) from error
    return found


def _from_cache(scans: ScanCache, key: str, files: Sequence[str]) -> list[list[Any]] | None:
    """The packed indexes from the cache, if a sample of records of each file is unchanged."""
    content = scans.get("tfrecords.index", key)
    if content is None:
        return None
    found = json.loads(content)
    try:
        for file, each in zip(files, found, strict=True):
            index = _unpacked(*each)
            opened = opened_records(file, index.places)
            # Half a mebibyte is decompressed for each record of a compressed file.
            for place in sample_of(len(index.offsets))[: 1 if index.places else None]:
                offset = int(index.offsets[place])
                past = offset + HEADER + length_of(opened.read(offset, HEADER))
                if np.frombuffer(opened.read(past, CHECKSUM), np.uint32)[0] != index.checksums[place]:
                    return None
    except (OSError, ValueError):
        return None
    return found


def _packed(index: Index) -> list[Any]:
    places = np.frombuffer(index.places, np.uint8)
    arrays = [pack(each) for each in (index.offsets, index.labels, index.checksums, index.conditions, places)]
    return [*arrays[:3], index.end, *arrays[3:]]


def _unpacked(offsets: str, labels: str, checksums: str, end: int, conditions: str = "", places: str = "") -> Index:
    """An index of _packed(); earlier versions kept no conditions and no places."""
    return Index(
        unpack(offsets, np.int64),
        unpack(labels, np.int32),
        unpack(checksums, np.uint32),
        end,
        unpack(conditions, np.float64),
        unpack(places, np.uint8).tobytes(),
    )


def _indexed(name: str, files: list[str], sizes: list[int], features: Features, peers: Peers) -> list[Index]:
    ranges = _ranges(sizes, peers.size)
    items = [json.dumps([number, begin, past]) for number, begin, past in ranges]

    def look(some: Sequence[str]) -> list[Any]:
        found = []
        for number, begin, past in map(json.loads, some):
            share = sizes[number] / max(1, sum(sizes))
            index = scan_range(name, files[number], features, begin, past, share)
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
    """(number of the file, first byte, one past the last) of the ranges that the ranks share."""
    most = max(SMALLEST_RANGE, -(-sum(sizes) // (_RANGES * ranks))) if ranks > 1 else max([1, *sizes])
    found = []
    for number, size in enumerate(sizes):
        bounds = np.linspace(0, size, max(1, -(-size // most)) + 1).astype(np.int64).tolist()
        found += [(number, begin, past) for begin, past in itertools.pairwise(bounds)]
    return found


def _joined(parts: Sequence[tuple[int, int, Index | None]], size: int) -> Index | None:
    """The index of a file from those of its ranges; None if a range does not end where the next one begins."""
    if len(parts) == 1 and parts[0][2] is not None and parts[0][2].places:
        return parts[0][2]
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
        np.concatenate([index.conditions for index in found]),
    )


def digest_of(index: Index) -> str:
    """SHA-256 of the checksums of all records, in hex."""
    return hashlib.sha256(index.checksums.tobytes()).hexdigest()
