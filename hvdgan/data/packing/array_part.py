"""Packs a part of the samples of an array: their records, names and statistics, block by block."""

import dataclasses
import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from hvdgan.cli.config import Config
from hvdgan.data.arrays.mapped import not_finite
from hvdgan.data.arrays.source import ArraySource
from hvdgan.data.base.source import BadImage, printable
from hvdgan.data.formats.array_codec import Encoding, encoded
from hvdgan.data.formats.array_records import record_of
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


def records_of(part: SamplesPart, encoding: Encoding, half: dict[str, Any]) -> Iterator[bytes]:
    """The record of each sample, whose facts are added to `half`; no bytes for a sample that is left out.

    Args:
        part: the samples.
        encoding: raw or zlib.
        half: facts about the records: names, lengths, failures, missing and, at the end, statistics.

    Raises:
        RunError: the data have changed or the disk has failed.
    """
    source = opened_arrays(part.config, part.pairs)
    statistics = [nothing(each.shape[-1]) for each in source.parts]
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
            yield record
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


def portable(name: str, config: Config) -> str:
    """The name of a sample without the folder of the data, which differs between machines."""
    folder = os.path.dirname(config.data)
    return printable(name.removeprefix(folder + os.sep) if folder else name)
