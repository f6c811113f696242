"""The bytes of a file that stays open, read by several threads at once."""

import os
import weakref
from collections.abc import Callable

import numpy as np

from hvdgan.cli.errors import RunError


class RawFile:
    """An open file. Unlike a memory map, it turns a failing disk into an error, and its pages do not count as memory.

    Args:
        path: path of the file.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)
        self._facts = self._now()

    def _now(self) -> tuple[int, int]:
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns

    def refuse_changed(self, named: Callable[[int], str], indices: np.ndarray) -> None:
        """Refuse a file that was written to since it was opened.

        Args:
            named: function of a sample's number, for its name in the message.
            indices: numbers of the samples that are about to be read.

        Raises:
            RunError: it has changed.
        """
        try:
            problem = None if self._now() == self._facts else "the file has changed since the run began"
        except OSError as error:
            problem = f"the disk or the network has failed: {error.strerror}"
        if problem and len(indices):
            raise RunError(f"--data {named(int(indices[0]))} cannot be read: {problem}; restore the file, then resume")

    def read_into(self, out: np.ndarray, first: int) -> None:
        """Fill a flat uint8 array with the bytes that begin at a place of the file.

        Raises:
            OSError: the disk has failed, or the file ends before.
        """
        done = os.preadv(self._descriptor, [out.data], first)
        while done < len(out):
            count = os.preadv(self._descriptor, [out[done:].data], first + done)
            if not count:
                raise OSError(f"{self._path} ends after {first + done:,} bytes")
            done += count
