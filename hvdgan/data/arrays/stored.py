"""The interface of arrays in files, of which single samples are read."""

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

from hvdgan.cli.errors import UserError

_ALIGNMENT = 64


def room(count: int, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Memory for `count` samples, (count, *shape), at an address that TensorFlow takes over without copying."""
    size = count * int(np.prod(shape)) * dtype.itemsize
    raw = np.empty(size + _ALIGNMENT, np.uint8)
    first = -raw.ctypes.data % _ALIGNMENT
    return raw[first : first + size].view(dtype).reshape(count, *shape)


class Stored(abc.ABC):
    """An array in a file or in several; its first axis counts the samples.

    Args:
        name: name for messages, such as `showers.h5:ECAL`.
        shape: (N, ...).
        dtype: type of the numbers; those of another byte order are converted when they are read.
        unit: unit of the numbers; "" where the file does not say.
        channels: names of the last axis, where the file gives some.
    """

    def __init__(
        self, name: str, shape: tuple[int, ...], dtype: Any, *, unit: str = "", channels: Sequence[str] = ()
    ) -> None:
        self.name = name
        self.shape = tuple(int(size) for size in shape)
        self.dtype = np.dtype(dtype)
        self.unit = unit
        self.channels = tuple(channels)

    @abc.abstractmethod
    def read(self, indices: np.ndarray) -> np.ndarray:
        """Read some samples, (B, ...) of `dtype`; safe to call from several threads.

        Args:
            indices: numbers of the samples, int64 (B,), in any order; one may occur twice.

        Raises:
            BadImage: a file of one sample cannot be read.
            RunError: the file has changed or the disk has failed.
        """

    def named(self, index: int) -> str:
        """The name of a sample, for messages."""
        return f"{self.name}[{index}]"

    def key(self, index: int) -> bytes:
        """Bytes that identify a sample on every machine."""
        return str(index).encode()

    def whole(self) -> np.ndarray:
        """All of it, for small arrays such as conditions."""
        return self.read(np.arange(self.shape[0]))


class Container(abc.ABC):
    """A file, or several of the same kind, with one array or several by name.

    Args:
        data: value of --data without the name of an array, for messages.
    """

    batched = True
    """True if reading many samples at once costs far less than one by one"""

    def __init__(self, data: str) -> None:
        self.data = data

    @abc.abstractmethod
    def names(self) -> list[str]:
        """The names of the arrays; [""] if the file has one without a name."""

    @abc.abstractmethod
    def get(self, name: str) -> Stored:
        """One of the arrays.

        Raises:
            UserError: it cannot be used.
        """

    @abc.abstractmethod
    def stamp(self) -> list[Any]:
        """Facts that change when a file changes.

        Raises:
            OSError: a file is missing.
        """

    def find(self, name: str, flag: str) -> Stored:
        """The array of a name that a flag gives.

        Raises:
            UserError: there is none; the message names those that exist.
        """
        if name not in self.names():
            there = ", ".join(each for each in self.names() if each) or "one array without a name"
            raise UserError(f"{flag}: no array {name} in {self.data}; it has {there}")
        return self.get(name)
