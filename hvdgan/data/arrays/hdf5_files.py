"""Arrays in HDF5 files, read by h5py."""

import contextlib
import importlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hvdgan.cli.errors import RunError, UserError, in_one_line
from hvdgan.data.arrays.stored import Container, Stored, named_errors
from hvdgan.data.base.cf_numbers import ATTRIBUTES, Rules, refuse_packed, rules_of
from hvdgan.data.base.scan_cache import identity

SUFFIXES = (".h5", ".hdf5", ".hdf", ".he5")
_CHUNK_CACHE = 16 * 2**20
_PLUGIN_PATH = b"HDF5_PLUGIN_PATH="


class Hdf5File(Container):
    """An HDF5 file, with its data sets by their paths, such as `group/ECAL`.

    A data set's unit is its attribute `units` or `unit`; its attribute `channels`, a list of texts, names the channels.
    Where the file system of a cluster has no locks, or another process holds one, the file is opened without; a file
    that is written to during the run ends it.

    Args:
        data: path of the file.
        cache: bytes of decoded chunks that the library keeps for each array.

    Raises:
        UserError: it is not HDF5, or is damaged.
    """

    def __init__(self, data: str, cache: int = _CHUNK_CACHE) -> None:
        super().__init__(data)
        with _reasons(data):
            self._stamp = identity(data)
            self._file = _opened(data, cache)
            self._names = sorted(_sets_below(self._file, "", set()))

    def names(self) -> list[str]:
        return self._names

    def get(self, name: str) -> "Hdf5Array":
        stored = self.undecoded(name)
        with _reasons(self.data):
            known = self._file[name].attrs
            attributes = {key: known[key] for key in ATTRIBUTES if key in known}
            refuse_packed(stored.name, attributes)
            stored.declared = (rules_of(name, attributes, stored.dtype),)
        return stored

    def undecoded(self, name: str) -> "Hdf5Array":
        """One of the arrays, whatever its attributes say of the meaning of its numbers.

        Raises:
            UserError: it is empty, or is compressed by a filter that is not installed.
        """
        with _reasons(self.data):
            dataset = self._file[name]
            if dataset.shape is None:
                raise UserError(f"--data {self.data}:{name}: it is empty; expected at least one sample")
            _refuse_unknown_filters(f"--data {self.data}:{name}", dataset)
            return Hdf5Array(f"{self.data}:{name}", dataset, self)

    def stamp(self) -> list[Any]:
        return self._stamp

    def refuse_changed(self, named: str) -> None:
        """Refuse a file that was written to since it was opened.

        Raises:
            RunError: it has changed, or is gone.
        """
        try:
            problem = "" if identity(self.data) == self._stamp else "the file has changed since the run began"
        except OSError as error:
            problem = str(error.strerror)
        if problem:
            raise RunError(f"--data {named} cannot be read: {problem}; restore the file, then resume")


class Hdf5Array(Stored):
    """A data set of an HDF5 file.

    Args:
        name: name for messages.
        dataset: the data set, of an open file.
        file: the file.
    """

    declared: Sequence[Rules] = ()
    """what its attributes declare about its numbers"""

    def __init__(self, name: str, dataset: Any, file: Hdf5File) -> None:
        self._dataset, self._file = dataset, file
        attributes = dataset.attrs
        super().__init__(
            name,
            dataset.shape,
            dataset.dtype.newbyteorder("="),
            units=_texts(attributes.get("units", attributes.get("unit"))),
            channels=_texts(attributes.get("channels")),
            prepared=dataset.chunks is None or dataset.chunks[0] == 1,
        )

    def rules(self) -> Sequence[Rules]:
        return self.declared

    def read(self, indices: np.ndarray) -> np.ndarray:
        self._file.refuse_changed(self.named(int(indices[0])) if len(indices) else self.name)
        out = np.empty((len(indices), *self.shape[1:]), self.dtype)
        for place, index in enumerate(indices.tolist()):
            try:
                out[place] = self._dataset[index]
            except (OSError, ValueError, RuntimeError, KeyError) as error:
                raise RunError(
                    f"--data {self.named(index)} cannot be read: {in_one_line(error)}; the file has changed, or the "
                    "disk has failed; restore the file, then resume"
                ) from error
        return out


def _opened(path: str, cache: int) -> Any:
    try:
        return h5py.File(path, "r", rdcc_nbytes=cache)
    except OSError as error:
        if "lock" not in str(error):
            raise
        return h5py.File(path, "r", rdcc_nbytes=cache, locking=False)


def _refuse_unknown_filters(where: str, dataset: Any) -> None:
    """Find the plugins of the filters that compress a data set, where the user's environment or hdf5plugin has them.

    TensorFlow sets HDF5_PLUGIN_PATH=disable when it is imported, so the value is that with which the process began.

    Raises:
        UserError: a filter is in neither.
    """
    plist = dataset.id.get_create_plist()
    for code, _, _, name in map(plist.get_filter, range(plist.get_nfilters())):
        if h5py.h5z.filter_avail(code):
            continue
        begun_with = Path("/proc/self/environ").read_bytes().split(b"\0")
        for each in (line.removeprefix(_PLUGIN_PATH) for line in begun_with if line.startswith(_PLUGIN_PATH)):
            for folder in each.split(os.pathsep.encode()):
                h5py.h5pl.append(folder)
        with contextlib.suppress(ImportError):
            importlib.import_module("hdf5plugin")
        if not h5py.h5z.filter_avail(code):
            known = name.decode(errors="replace").partition(";")[0] or "without a name"
            raise UserError(f"{where}: needs the HDF5 filter {known} ({code}); pip install hdf5plugin")


def _sets_below(group: Any, prefix: str, seen: set[Any]) -> Iterator[str]:
    """Paths of the data sets in a group and below it; links are followed, and each group counts once."""
    address = h5py.h5o.get_info(group.id)
    if (address.fileno, address.addr) in seen:
        return
    seen.add((address.fileno, address.addr))
    for key in group:
        try:
            item = group[key]
        except (KeyError, OSError):
            continue  # a link to nothing
        if isinstance(item, h5py.Dataset):
            yield prefix + key
        elif isinstance(item, h5py.Group):
            yield from _sets_below(item, f"{prefix}{key}/", seen)


def _texts(attribute: Any) -> Sequence[str]:
    """A text, or several, of an attribute; empty if it is missing or holds no texts."""
    found = np.atleast_1d(np.asarray(attribute, object)).tolist()
    texts = [each.decode(errors="replace") if isinstance(each, bytes) else each for each in found]
    return texts if all(isinstance(each, str) for each in texts) else ()


def _reasons(name: str) -> contextlib.AbstractContextManager[None]:
    return named_errors(name, "as HDF5", "a whole file, written by h5py or the like")
