"""Packs a part of the samples of an array: their records, names and statistics, block by block."""

import dataclasses
import hashlib
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hvdgan.cli.config import Config
from hvdgan.cli.errors import UserError
from hvdgan.data.arrays.mapped import not_finite
from hvdgan.data.arrays.source import ArraySource
from hvdgan.data.base.source import BadImage, printable
from hvdgan.data.formats.array_codec import Encoding, encoded, stored_type
from hvdgan.data.formats.array_records import arrays_in, record_of
from hvdgan.data.formats.tfrecord import payload_of
from hvdgan.data.packing.channel_statistics import nothing, statistics_of, together
from hvdgan.data.packing.parts import opened_source

_BLOCK_BYTES = 8 * 2**20
"""numbers that are read at once: many chunks of a file, and little memory"""


@dataclasses.dataclass(frozen=True)
class SamplesPart:
    """Some of the samples, in a form that can be sent to another process.

    config: settings of the data.
    pairs: True if each sample comes with an input.
    first, past: numbers of the first sample and of the one after the last.
    """

    config: Config
    pairs: bool
    first: int
    past: int

    def __len__(self) -> int:
        return self.past - self.first


def opened_arrays(config: Config, pairs: bool) -> ArraySource:
    """The arrays that SRC names, as they are stored."""
    source = opened_source(config, pairs)
    assert isinstance(source, ArraySource)
    return source


def refuse_smaller(source: ArraySource, name: str, min_size: int) -> None:
    """Refuse --min-size if it leaves no sample; all samples have one shape, so it leaves all or none.

    Args:
        source: the samples.
        name: SRC, for the error message.
        min_size: minimum length of the shortest side.

    Raises:
        UserError: the shortest axis in space is shorter, or there is none.
    """
    shape = source.layout.shape
    if len(shape) == 1:
        raise UserError(f"--min-size {min_size}: the samples of {name} are vectors, without sides; leave it out")
    if min(shape[:-1]) < min_size:
        raise UserError(
            f"--min-size {min_size}: no sample is left: all samples of {name} have shape {shape}, whose "
            f"shortest side is {min(shape[:-1])}; leave it out"
        )


def records_of(part: SamplesPart, encoding: Encoding, half: dict[str, Any], *, dedup: bool) -> Iterator[bytes]:
    """The record of each sample, whose facts are added to `half`; no bytes for a sample that is left out.

    Args:
        part: the samples.
        encoding: raw or zlib.
        half: facts about the records: names, lengths, failures, missing and, at the end, statistics.
        dedup: True to add what finding and removing duplicates takes: digests, numbers, kinds and encoding.

    Raises:
        RunError: the data have changed or the disk has failed.
    """
    source = opened_arrays(part.config, part.pairs)
    statistics = [nothing(each.shape[-1]) for each in source.parts]
    if dedup:
        kinds = [[list(each.shape), stored_type(each.stored.dtype).str] for each in source.parts]
        half |= {"digests": [], "numbers": [], "kinds": kinds, "encoding": encoding}
    for indices in blocks(source, part.first, part.past):
        arrays, reasons = read_block(source, indices)
        kept = [place for place in range(len(indices)) if place not in reasons]
        of_block = [statistics_of(array[kept]) for array in arrays]
        statistics = [together(both) for both in zip(statistics, of_block, strict=True)]
        for place, index in enumerate(indices.tolist()):
            if place in reasons:
                half["failures"].append([portable(source.named(index), part.config), reasons[place]])
                half["missing"].append(index)
                yield b""
                continue
            record = record_of([encoded(array[place], encoding) for array in arrays])
            half["names"].append(os.fsdecode(source.key(index)))
            half["lengths"].append(len(record))
            if dedup:
                half["digests"].append(_digest([array[place] for array in arrays]))
                half["numbers"].append(index)
            yield record
    half["statistics"] = [each.to_json() for each in statistics]


def without_duplicates(path: Path, lengths: Sequence[int], half: dict[str, Any], dropped: Iterable[int]) -> None:
    """Correct the facts about the records of a shard after duplicates were removed.

    Args:
        path: the records that are left.
        lengths: their lengths.
        half: facts about the records; missing and statistics are corrected.
        dropped: places of the removed ones among the former records.
    """
    half["missing"] = sorted([*half["missing"], *(half["numbers"][place] for place in dropped)])
    kinds = [(tuple(shape), np.dtype(dtype)) for shape, dtype in half["kinds"]]
    statistics = [nothing(shape[-1]) for shape, _ in kinds]
    with path.open("rb") as records:
        for length in lengths:
            arrays = arrays_in(payload_of(records.read(length)), kinds, half["encoding"])
            both = zip(statistics, map(statistics_of, arrays), strict=True)
            statistics = [together(each) for each in both]
    half["statistics"] = [each.to_json() for each in statistics]


def blocks(source: ArraySource, first: int, past: int) -> Iterator[np.ndarray]:
    """The numbers of the samples from first to past, in blocks of at most 8 MiB, or of one sample."""
    each = sum(math.prod(part.shape) * part.stored.dtype.itemsize for part in source.parts)
    count = max(1, _BLOCK_BYTES // each)
    for begin in range(first, past, count):
        yield np.arange(begin, min(begin + count, past))


def read_block(source: ArraySource, indices: np.ndarray) -> tuple[list[np.ndarray], dict[int, str]]:
    """The inputs (B, ...), if there are some, and the samples (B, ...), with the reason for each that is broken.

    Returns:
        The arrays, and the reasons by the place within the block.
    """
    reasons: dict[int, str] = {}
    try:
        arrays = [part.read(indices) for part in source.parts]
    except BadImage:
        arrays = [np.zeros((len(indices), *part.shape), part.stored.dtype) for part in source.parts]
        for place in range(len(indices)):
            try:
                for array, part in zip(arrays, source.parts, strict=True):
                    array[place] = part.read(indices[place : place + 1])[0]
            except BadImage as bad:
                reasons[place] = bad.bad_file.reason
    for array in arrays:
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            for place in np.flatnonzero(~np.isfinite(array).reshape(len(array), -1).all(axis=1)).tolist():
                reasons.setdefault(place, not_finite(array[place]))
    return arrays, reasons


def _digest(arrays: Sequence[np.ndarray]) -> str:
    """A digest of the numbers of an input, if there is one, and its sample; -0 and 0 are different numbers."""
    return hashlib.sha256(b"".join(encoded(array, "raw") for array in arrays)).hexdigest()[:32]


def portable(name: str, config: Config) -> str:
    """The name of a sample without the folder of the data, which differs between machines."""
    folder = os.path.dirname(config.data)
    return printable(name.removeprefix(folder + os.sep) if folder else name)
