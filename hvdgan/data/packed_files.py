"""Packed samples, as hvdgan prepare writes them: HDF5 files of one folder, read as users' own HDF5 files are.

hvdgan_packed.json            settings, source, the SHA-256 and the number of samples of each file, what was left out;
                              `complete` is true once all files are whole
packed-00000-of-00064.h5      data sets `images` (n, ...) and perhaps `inputs` and `arrays/NAME`, channels last, a chunk
                              for each sample; `names` of the samples, `digests` by which they are held out, `labels`,
                              `conditions` (n, k), `constants`, `left_out` (m, 2) with names and reasons; all with
                              Fletcher's checksum; attributes `channels` and `units`
"""

import dataclasses
import functools
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hvdgan.data.arrays import by_name
from hvdgan.data.bad_files import printable
from hvdgan.data.hdf5_files import Hdf5Array, Hdf5File, hdf5_file
from hvdgan.data.joined_files import JoinedArray, JoinedFiles
from hvdgan.data.numpy_files import NumpyArray
from hvdgan.data.store import DerivedStore, Store, failed
from hvdgan.errors import RunError, UserError
from hvdgan.errors.shared_errors import Peers, on_all
from hvdgan.settings.config import Config

INDEX = "hvdgan_packed.json"
FORMAT = "hvdgan packed samples 1"
AS_PACKED = ("axes", "inputs", "input_axes", "constants")
"""settings of arrays that hvdgan prepare has applied"""
MAPS = ("values", "input_values", "constant_values", "condition_values")
"""settings that a run may give instead of those of hvdgan prepare, as it may --values-of"""
_AXES = {1: "C", 2: "WC", 3: "HWC", 4: "DHWC"}
_FILE = re.compile(r"packed-\d+-of-\d+\.h5")


def is_packed(folder: str) -> bool:
    """Whether hvdgan prepare made this folder, or began to."""
    return os.path.isfile(os.path.join(folder, INDEX))


def read_index(folder: Path) -> dict[str, Any]:
    """What the folder says about its files and how they were made."""
    try:
        index: dict[str, Any] = json.loads((folder / INDEX).read_text())
        version = index["format"]
        if version == FORMAT:
            _check(folder, index)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{folder / INDEX}: cannot be read: {error!r}; restore it, or pack the data again") from error
    if version != FORMAT:
        raise UserError(f"{folder / INDEX}: format {version}; expected {FORMAT}; pack the data again")
    return index


def _check(folder: Path, index: dict[str, Any]) -> None:
    """Raise an error if a field is missing or of another type, or if a file lies elsewhere."""
    texts = [index["settings"][name] for name in (*AS_PACKED, *MAPS, "axes_of", "values_of", "missing")]
    texts += index["settings"]["arrays"]
    if index["complete"]:
        texts += [*(index["class_names"] or ()), *index["conditions"], "" * index["pictures"]]
        for name, facts in index["files"].items():
            if not _FILE.fullmatch(name) or (folder / name).resolve().parent != folder.resolve():
                raise ValueError(f"the file {name!r} lies elsewhere")
            texts += [facts["sha256"], "" * facts["count"]]
    "".join(each for each in texts if each is not None)  # a TypeError if one is no text, as above if a count is none


def read_whole_index(folder: Path, flag: str) -> dict[str, Any]:
    """The same of a folder that is finished; `flag` begins messages."""
    try:
        index = read_index(folder)
    except UserError as error:
        raise UserError(f"{flag} {error}") from error
    if not index["complete"]:
        raise UserError(f"{flag} {folder}: not finished; repeat the command of hvdgan prepare, which resumes it")
    return index


class PackedFiles(JoinedFiles):
    """The samples of a folder that hvdgan prepare made, under the names that they had."""

    has_names = True

    def __init__(self, folder: str, peers: Peers) -> None:
        self._index = on_all(lambda: read_whole_index(Path(folder), "--data"), peers, f"--data {folder}")
        parts = {name: facts for name, facts in self._index["files"].items() if facts["count"]}
        files = [os.path.join(folder, name) for name in parts]
        # Each chunk is one sample, which need not be kept: 64 open files would keep gigabytes.
        super().__init__(folder, files, functools.partial(_PackedFile, cache=0), peers)
        self.identity = "".join(facts["sha256"] for facts in parts.values()).encode()
        self.class_names = self._index["class_names"]
        self.holds_arrays = not self._index["pictures"]
        self._beside = functools.cache(self._read_beside)
        if "labels" in self.names():
            self.labels = self.joined("labels").whole()

    def settings(self, config: Config, *, paired: bool) -> Config:
        """The settings of a run, completed by those with which the folder was made."""
        given, packed, added = config.arrays, self._index["settings"], dict[str, Any]()
        for name in (*AS_PACKED, "axes_of"):
            if getattr(given, name) not in (None, packed[name]):
                flag = f"--{name.replace('_', '-')}"
                how = f"with {flag} {packed[name]}" if packed[name] else f"without {flag}"
                raise UserError(f"{flag} {getattr(given, name)}: {config.data} was packed {how}; leave the flag out")
        if paired and "inputs" not in self.names():
            raise UserError(
                f"--data {config.data}: holds single samples, and this recipe takes pairs; prepare them with python -m "
                "hvdgan.prepare --pairs"
            )
        for name in (*MAPS, "missing"):
            added[name] = getattr(given, name) or packed.get(name)
        added["arrays"] = given.arrays or tuple(packed["arrays"])
        maps = by_name(packed["values_of"], "--values-of", packed["arrays"])
        maps |= by_name(given.values_of, "--values-of", added["arrays"])
        added["values_of"] = ";".join(f"{name}={each}" for name, each in maps.items() if name in added["arrays"])
        if not given.conditions and given.condition_table is None:
            added["conditions"] = tuple(self._index["conditions"])
        constants = "constants" if "constants" in self.names() else None
        added |= {"axes_of": None, "axes": None, "inputs": None, "input_axes": None, "constants": constants}
        return dataclasses.replace(config, arrays=dataclasses.replace(given, **added))

    def get(self, name: str) -> Store:
        return _PackedArray(self.joined(name), self._beside)

    def find(self, name: str, flag: str) -> Store:
        """An array; of conditions the columns of one name, `x_0` and `x_1` also as `x`."""
        if flag == "--arrays":
            if name not in (there := self._index["settings"]["arrays"]):
                said = f"{self.data} was packed with {', '.join(there) or 'no arrays'}"
                raise UserError(f"--arrays {name}: {said}; pack it with hvdgan prepare --arrays")
            return super().find(f"arrays/{name}", flag)
        if flag != "--conditions":
            return super().find(name, flag)
        known = self._index["conditions"]
        column = re.compile(f"{re.escape(name)}(_\\d+)?")
        if not (places := [place for place, each in enumerate(known) if column.fullmatch(each)]):
            raise UserError(
                f"--conditions {name}: {self.data} was packed with {', '.join(known) or 'no conditions'}; pack others "
                "with hvdgan prepare --conditions, or give --condition-table"
            )
        stored, numbers = self._conditions
        units = np.array(stored.units_of(len(known)) or [""] * len(known))[places].tolist()
        return NumpyArray(f"{self.data}: {name}", numbers[:, places], units=units)

    @functools.cached_property
    def _conditions(self) -> tuple[Store, np.ndarray]:
        """All conditions, of which each name has some columns; every rank asks for them."""
        stored = self.joined("conditions")
        return stored, stored.whole()

    @staticmethod
    def _read_beside(file: str, what: str) -> np.ndarray:
        """The names of a file's samples, or the digests by which they are held out; read when first needed."""
        try:
            with hdf5_file(file) as opened:
                found: np.ndarray = _own(opened, what)[()]
        except (OSError, RuntimeError, KeyError) as error:
            raise failed(f"{file}:{what}", error) from error
        return found


class _PackedFile(Hdf5File):
    def get(self, name: str) -> Hdf5Array:
        _own(self._file, name)
        return super().get(name)


def _own(file: h5py.File, name: str) -> h5py.Dataset:
    """A data set whose numbers lie in its own file."""
    dataset = file.get(name)
    if dataset is None or dataset.is_virtual or dataset.external or dataset.file.filename != file.filename:
        raise UserError(f"--data {file.filename}:{name}: leads nowhere or to another file; restore it")
    return dataset


class _PackedArray(DerivedStore):
    """An array of all files, with the names of its samples."""

    def __init__(self, joined: JoinedArray, beside: Callable[[str, str], np.ndarray]) -> None:
        super().__init__(joined, axes=_AXES.get(len(joined.shape) - 1, ""))
        self._place_of, self._beside = joined.place_of, beside

    def read(self, indices: np.ndarray) -> np.ndarray:
        try:
            return self._stored.read(indices)
        except RunError as error:
            if len(indices) == 1:
                name = printable(os.fsdecode(self.key(int(indices[0]))))
                raise RunError(f"{error} (sample {name}); hvdgan prepare --verify checks all samples") from error
            return np.concatenate([self.read(indices[place : place + 1]) for place in range(len(indices))])

    def named(self, index: int) -> str:
        return f"{self._stored.named(index)} ({printable(os.fsdecode(self.key(index)))})"

    def key(self, index: int) -> bytes:
        return bytes(self._of("names", index))

    def digest(self, index: int) -> bytes:
        return bytes(self._of("digests", index).tobytes())

    def _of(self, what: str, index: int) -> Any:
        file, within = self._place_of(index)
        return self._beside(file, what)[within]
