"""Encodes the numbers of an array in a record: as they are, or compressed by zlib after their bytes are shuffled.

Shuffling puts the first bytes of all numbers together, then the second ones, and so on. Neighbouring numbers often have
the same sign and exponent, so that zlib finds these bytes repeated.
"""

import sys
import zlib
from typing import Any, Literal

import numpy as np

Encoding = Literal["raw", "zlib"]
SAMPLE, INPUT = "sample", "input"
"""names of the features of a record"""
_LEVEL = 1
"""level of zlib; higher ones take several times as long and save a few percent"""


def stored_type(dtype: Any) -> np.dtype:
    """The type in which numbers are stored: the same one, with the lowest byte first."""
    return np.dtype(dtype).newbyteorder("<")


def encoded(numbers: np.ndarray, encoding: Encoding) -> bytes:
    """The bytes of some numbers in a record.

    Args:
        numbers: numbers of any shape and type.
        encoding: raw or zlib; both are exact.
    """
    content = np.ascontiguousarray(numbers, stored_type(numbers.dtype))
    if encoding == "raw":
        return content.tobytes()
    planes = content.reshape(-1).view(np.uint8).reshape(-1, content.itemsize).T
    return zlib.compress(planes.tobytes(), _LEVEL)


def decode_into(content: bytes | memoryview, numbers: np.ndarray) -> None:
    """Decompress the bytes that encoded() made with zlib; both parts release Python's lock.

    Args:
        content: the bytes.
        numbers: contiguous array of the stored type, which receives the numbers.

    Raises:
        ValueError: they are damaged, or have another size.
    """
    try:
        planes = zlib.decompress(content, bufsize=max(1, numbers.nbytes))
    except zlib.error as error:
        raise ValueError(f"cannot be decompressed: {error}") from error
    if len(planes) != numbers.nbytes:
        raise ValueError(f"{len(planes):,} bytes of numbers; expected {numbers.nbytes:,}")
    unshuffle(planes, numbers.reshape(-1).view(np.uint8).reshape(-1, numbers.itemsize))


def unshuffle(planes: Any, numbers: np.ndarray) -> None:
    """Undo a shuffle of bytes.

    Args:
        planes: the first bytes of all numbers, then all second bytes, and so on.
        numbers: uint8 array (N, bytes of a number), which receives the bytes of each number.

    Raises:
        ValueError: `planes` has another size.
    """
    for place, plane in enumerate(np.frombuffer(planes, np.uint8).reshape(numbers.shape[::-1])):
        numbers[:, place] = plane


def native(numbers: np.ndarray) -> np.ndarray:
    """Stored numbers in the byte order of this machine."""
    return numbers if sys.byteorder == "little" else numbers.astype(numbers.dtype.newbyteorder("="))
