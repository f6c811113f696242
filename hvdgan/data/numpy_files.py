"""Arrays in .npy files, which are mapped to memory, and in .npz archives, which are loaded."""

import contextlib
import logging
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib import format as npy_format

from hvdgan.data.store import Container, Store, identity, named_errors, refuse_changed

LARGE_BYTES = 2**30
_SMALL = 2**12
"""bytes of a sample below which a loop over samples costs more than a second copy"""

logger = logging.getLogger(__name__)


class NumpyArray(Store):
    """An array in memory, or mapped to it."""

    def __init__(
        self,
        name: str,
        array: np.ndarray,
        *,
        units: Sequence[str] = (),
        channels: Sequence[str] = (),
        stamp: list[Any] | None = None,
    ) -> None:
        super().__init__(name, array.shape, array.dtype.newbyteorder("="), units=units, channels=channels)
        self._stamp = stamp
        self.array = np.asarray(array)  # each sample of a memmap would be one, too, which takes a microsecond

    def read(self, indices: np.ndarray) -> np.ndarray:
        if self._stamp is not None:
            refuse_changed(self._stamp, self.name)
        samples = np.empty((len(indices), *self.shape[1:]), self.dtype)
        if samples[:1].nbytes < _SMALL:
            samples[:] = self.array[indices]
        else:
            for place, index in enumerate(indices.tolist()):  # one copy; indexing with an array would make two
                samples[place] = self.array[index]
        return samples


class NumpyFile(Container):
    """An .npy file with one array, or an .npz archive with arrays by name.

    In an archive, an array of text `x_units` holds the units of the channels of the array `x`, and `x_channels` their
    names, as hvdgan.sample writes them. Every rank holds the arrays of an archive in memory.
    """

    def __init__(self, data: str) -> None:
        super().__init__(data)
        with _reasons(data):
            self._stamp = identity(data)
            self._is_archive = zipfile.is_zipfile(data)
            self._names = self._of_archive() if self._is_archive else [""]

    def names(self) -> list[str]:
        return self._names

    def get(self, name: str) -> NumpyArray:
        with _reasons(self.data):
            if not self._is_archive:
                return NumpyArray(self.data, npy_format.open_memmap(self.data, mode="r"), stamp=self._stamp)
            with np.load(self.data, allow_pickle=False) as archive:
                array = archive[name]
                if not isinstance(array, np.ndarray):
                    raise ValueError(f"{name} was not written by NumPy")
                units, channels = (self._texts.get(f"{name}_{kind}", ()) for kind in ("units", "channels"))
        if array.nbytes > LARGE_BYTES:
            logger.warning(
                "--data %s:%s: every rank holds its %.1f GB in memory; an .npy file is mapped",
                self.data,
                name,
                array.nbytes / 1e9,
            )
        return NumpyArray(f"{self.data}:{name}", array, units=units, channels=channels)

    def stamp(self) -> list[Any]:
        return self._stamp

    def _of_archive(self) -> list[str]:
        """The names of the arrays, but for those of text that describe others, which are kept."""
        self._texts: dict[str, list[str]] = {}
        with np.load(self.data, allow_pickle=False) as archive:
            for name in archive.files:
                described, _, kind = name.rpartition("_")
                if kind in ("units", "channels") and described in archive.files:
                    with contextlib.suppress(ValueError):  # Python objects, which nobody may ask for
                        if (array := archive[name]).dtype.kind == "U":
                            self._texts[name] = np.atleast_1d(array).tolist()
            return [name for name in archive.files if name not in self._texts]


def _reasons(name: str) -> contextlib.AbstractContextManager[None]:
    return named_errors(name, "as a NumPy array", "an array of numbers, written by np.save or np.savez")
