"""Chooses the encoding of arrays by a sample of their records, and measures what compression costs."""

import dataclasses
import time
from typing import Any

import numpy as np

from hvdgan.data.arrays.kinds import spread
from hvdgan.data.arrays.source import ArraySource
from hvdgan.data.formats.array_codec import Encoding, decode_into, encoded, stored_type
from hvdgan.data.packing.array_part import read_block

_WORTH = 0.9
"""fraction of the bytes that may be left for compression to pay"""


@dataclasses.dataclass(frozen=True)
class Measured:
    """What a sample of records takes in both encodings.

    records: number of the records.
    raw_bytes, zlib_bytes: sizes of their numbers in bytes.
    decode_seconds: time to decompress them, on one core of this machine.
    """

    records: int
    raw_bytes: int
    zlib_bytes: int
    decode_seconds: float

    @property
    def encoding(self) -> Encoding:
        """zlib where it saves at least a tenth, else raw."""
        return "zlib" if self.zlib_bytes <= _WORTH * self.raw_bytes else "raw"

    def facts(self) -> dict[str, Any]:
        """What is the same on every machine."""
        return {"records": self.records, "raw_bytes": self.raw_bytes, "zlib_bytes": self.zlib_bytes}

    def __str__(self) -> str:
        saved = 1 - self.zlib_bytes / self.raw_bytes
        speed = self.raw_bytes / 1e6 / self.decode_seconds
        return (
            f"encoding {self.encoding}: of {self.records} records looked at, zlib makes {self.raw_bytes / 1e6:,.2f} MB "
            f"{self.zlib_bytes / 1e6:,.2f} MB ({saved:.0%} less), and decodes {speed:,.0f} MB/s per core of this "
            "machine; --encoding raw or zlib chooses otherwise"
        )


def measured(source: ArraySource) -> Measured | None:
    """What a sample of at most 64 records takes in both encodings; None if none of them can be read."""
    records = raw_bytes = zlib_bytes = 0
    seconds = 0.0
    for index in spread(len(source)).tolist():
        arrays, broken = read_block(source, np.array([index]))
        if broken:
            continue
        records += 1
        for (numbers,) in arrays:
            content = encoded(numbers, "zlib")
            raw_bytes, zlib_bytes = raw_bytes + numbers.nbytes, zlib_bytes + len(content)
            back = np.empty(numbers.shape, stored_type(numbers.dtype))
            begun = time.perf_counter()
            decode_into(content, back)
            seconds += time.perf_counter() - begun
    return Measured(records, raw_bytes, zlib_bytes, max(seconds, 1e-9)) if records else None
