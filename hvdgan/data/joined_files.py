"""Several files of one kind as one: the samples of each follow those of the one before."""

import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from hvdgan.data.sharing import pack, share_out, unpack
from hvdgan.data.store import Container, Store, aligned, failed, spread
from hvdgan.errors import RunError, UserError
from hvdgan.errors.shared_errors import Peers

MOST_OPEN = 64
"""files that stay open"""
Opener = Callable[[str], Container]


class JoinedFiles(Container):
    """Files of one kind, joined along the first axis.

    The ranks share the look into all files; each then opens a file when it first reads from it.
    """

    def __init__(self, data: str, files: Sequence[str], opener: Opener, peers: Peers) -> None:
        super().__init__(data)
        self._files, self._opener, self._peers = list(files), opener, peers
        self._first = opener(files[0])
        self.paths = None if self._first.paths is None else self._files

    def names(self) -> list[str]:
        return self._first.names()

    def samples_among(self, names: Sequence[str]) -> str:
        return self._first.samples_among(names)

    def likely(self, names: Sequence[str]) -> str:
        return self._first.likely(names)

    def find(self, name: str, flag: str) -> Store:
        name = self._first.full_name(name)
        self._first.find(name, flag)
        return self.get(name)

    def get(self, name: str) -> Store:
        return self.joined(name)

    def joined(self, name: str) -> "JoinedArray":
        """The array of this name of all files."""
        first = self._first.get(name)
        found = self._of_each(lambda file: _facts(self._opener(file).find(name, f"--data {self.data}")))
        counts = [facts.pop("samples") for facts in found]
        if all(facts["type"].startswith("float") for facts in found):  # packed months may have more bits than others
            first.dtype = np.result_type(*{facts.pop("type") for facts in found})
        for file, facts in zip(self._files, found, strict=True):
            if (what := next((what for what in facts if facts[what] != found[0][what]), None)) is not None:
                raise UserError(
                    f"--data {self.data}: {name} of {file} has {what} {facts[what]}, and that of {self._files[0]} "
                    f"{found[0][what]}; expected the same apart from the number of samples"
                )
        parts = zip(self._files, counts, strict=True)
        return JoinedArray(f"{self.data}:{name}", first, parts, lambda file: self._opener(file).get(name), self._peers)

    def find_constant(self, name: str, flag: str) -> Store:
        stored = self._first.find_constant(name, flag)
        stored.refuse_other_types()

        def digest(file: str) -> str:
            numbers = self._opener(file).find_constant(name, flag).whole()
            return hashlib.sha256(f"{numbers.shape} {numbers.dtype}".encode() + numbers.tobytes()).hexdigest()

        digests = self._of_each(digest)
        for file, its in zip(self._files, digests, strict=True):
            if its != digests[0]:
                raise UserError(
                    f"{flag} {name}: {file} has other numbers than {self._files[0]}; all samples share the constants, "
                    "so they must be equal in all files"
                )
        return stored

    def _of_each(self, look: Callable[[str], Any]) -> list[Any]:
        """What is found in each file; the ranks share the files."""
        return share_out(self._files, lambda some: list(map(look, some)), self._peers, f"--data {self.data}")


class JoinedArray(Store):
    """Arrays of several files, joined along the first axis."""

    def __init__(
        self, name: str, first: Store, parts: Iterable[tuple[str, int]], opener: Callable[[str], Store], peers: Peers
    ) -> None:
        self._opener, self._peers = opener, peers
        self.file_counts = list(parts)
        files, counts = zip(*self.file_counts, strict=True)
        self._past = np.cumsum(counts)
        self._folder = os.path.commonpath([os.path.dirname(os.path.abspath(file)) for file in files])
        self._part = functools.lru_cache(MOST_OPEN)(lambda number: self._open(*self.file_counts[number]))
        same = {each: getattr(first, each) for each in ("dtype", "units", "channels", "axes", "prepared")}
        super().__init__(name, (int(self._past[-1]), *first.shape[1:]), **same)
        self.dims, self.unclear = first.dims, first.unclear

    def read(self, indices: np.ndarray) -> np.ndarray:
        out = aligned((len(indices), *self.shape[1:]), self.dtype)
        numbers = np.searchsorted(self._past, indices, "right")
        for number in np.unique(numbers).tolist():
            places = np.flatnonzero(numbers == number)
            before = self._past[number] - self.file_counts[number][1]
            self._part(number).read_to(out, places, indices[places] - before)
        return out

    def whole(self) -> np.ndarray:
        """All of it, on every rank; each file is read by one, which closes it, since such arrays are read once."""

        def read(parts: Sequence[tuple[str, int]]) -> list[str]:
            of_type = self.dtype if self.dtype.kind == "f" else None  # texts become of another type
            return [pack(np.asarray(self._open(file, count).whole(), of_type)) for file, count in parts]

        found = share_out(self.file_counts, read, self._peers, f"--data {self.name}")
        return np.concatenate([unpack(each, self.dtype) for each in found]).reshape(self.shape)

    def remark(self) -> str:
        return next(filter(None, (self._part(each).remark() for each in spread(len(self.file_counts)).tolist())), "")

    def named(self, index: int) -> str:
        return "{}[{}]".format(*self.place_of(index))

    def key(self, index: int) -> bytes:
        file, within = self.place_of(index)
        return os.fsencode(f"{os.path.relpath(file, self._folder)}[{within}]")

    def place_of(self, index: int) -> tuple[str, int]:
        """The file of a sample, and its place in it."""
        number = int(np.searchsorted(self._past, index, "right"))
        file, count = self.file_counts[number]
        return file, index - int(self._past[number]) + count

    def _open(self, file: str, count: int) -> Store:
        """The array of a file."""
        try:
            part = self._opener(file)
        except (OSError, RunError, KeyError) as error:
            raise failed(file, error) from error
        if part.shape != (count, *self.shape[1:]) or not np.can_cast(part.dtype, self.dtype):
            raise failed(file, f"{part.shape} of {part.dtype}, and {(count, *self.shape[1:])} when the run began")
        return part


def _facts(stored: Store) -> dict[str, Any]:
    """The number of samples, and what must be the same in all files, as JSON types."""
    count, *shape = stored.shape or (0,)
    facts = {"samples": count, "samples of shape": shape, "type": stored.dtype.name}
    return facts | {"units": list(stored.units), "channels": list(stored.channels), "dimensions": list(stored.dims)}
