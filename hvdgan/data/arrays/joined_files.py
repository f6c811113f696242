"""Several files of one kind as one: the samples of each follow those of the one before."""

import hashlib
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from hvdgan.cli.errors import RunError, UserError
from hvdgan.cli.shared_errors import Peers
from hvdgan.data.arrays.kinds import check_numbers
from hvdgan.data.arrays.stored import Container, Stored, first_broken
from hvdgan.data.base.cf_numbers import Rules
from hvdgan.data.base.scan_cache import identity
from hvdgan.data.base.sharing import share_out

MOST_OPEN = 64
"""files that stay open"""
Opener = Callable[[str], Container]


class JoinedFiles(Container):
    """Files of one kind, joined along the first axis.

    The ranks share the look into all files; each then opens a file when it first reads from it.

    Args:
        data: value of --data without the name of an array, for messages.
        files: paths of the files, in the order of their samples; at least one.
        opener: function that opens one of them.
        peers: the ranks; each calls this.

    Raises:
        UserError: the first file cannot be read.
    """

    def __init__(self, data: str, files: Sequence[str], opener: Opener, peers: Peers) -> None:
        super().__init__(data)
        self._files, self._opener, self._peers = list(files), opener, peers
        self._first = opener(files[0])
        self._sources: set[str] = set()

    def names(self) -> list[str]:
        return self._first.names()

    def samples_among(self, names: Sequence[str]) -> str:
        return self._first.samples_among(names)

    def find(self, name: str, flag: str) -> Stored:
        self._first.find(name, flag)
        return self.get(name)

    def get(self, name: str) -> Stored:
        first = self._first.get(name)
        check_numbers(first)

        def look(file: str) -> list[Any]:
            container = self._opener(file)
            return [_facts(container.find(name, f"--data {self.data}")), container.sources()]

        expected, found = _facts(first), self._shared(look)
        for file, each in zip(self._files, found, strict=True):
            if [each[0][1:], *each[1:]] != [expected[0][1:], *expected[1:]]:
                raise UserError(
                    f"--data {self.data}: {name} of {file} has {_in_words(each, expected)}, and that of "
                    f"{self._files[0]} {_in_words(expected, each)}; expected the same apart from the first axis"
                )
        counts = [each[0][0] if each[0] else 0 for each in found]
        return JoinedArray(f"{self.data}:{name}", first, self._files, counts, lambda file: self._opener(file).get(name))

    def find_constant(self, name: str, flag: str) -> Stored:
        stored = self._first.find_constant(name, flag)
        check_numbers(stored)

        def look(file: str) -> list[Any]:
            container = self._opener(file)
            fields = container.find_constant(name, flag)
            numbers = fields.whole()
            fields.refuse_marked(np.arange(len(numbers)), numbers)
            digest = hashlib.sha256(f"{numbers.shape} {numbers.dtype}".encode() + numbers.tobytes()).hexdigest()
            return [digest, container.sources()]

        digests = self._shared(look)
        for file, digest in zip(self._files, digests, strict=True):
            if digest != digests[0]:
                raise UserError(
                    f"{flag} {name}: {file} has other numbers than {self._files[0]}; all samples share the constants, "
                    "so they must be equal in all files"
                )
        return stored

    def stamp(self) -> list[Any]:
        return [identity(file) for file in (*self._files, *self.sources())]

    def sources(self) -> list[str]:
        return sorted(self._sources)

    def _shared(self, look: Callable[[str], list[Any]]) -> list[Any]:
        """What is found in each file; the ranks share the files.

        Args:
            look: function of a file that returns what is found, and the sources of its arrays.
        """
        looked = share_out(self._files, lambda some: list(map(look, some)), self._peers, f"--data {self.data}")
        self._sources.update(*(sources for _, sources in looked))
        return [found for found, _ in looked]


class JoinedArray(Stored):
    """Arrays of several files, joined along the first axis.

    Args:
        name: name for messages.
        first: the array of the first file.
        files: paths of the files.
        counts: number of samples in each.
        opener: function that opens the array of one of them.
    """

    def __init__(
        self, name: str, first: Stored, files: Sequence[str], counts: Sequence[int], opener: Callable[[str], Stored]
    ) -> None:
        self._files, self._opener = files, opener
        self._counts = list(counts)
        self._past = np.cumsum(counts)
        self._folder = os.path.commonpath([os.path.dirname(os.path.abspath(file)) for file in files])
        self._lock = threading.Lock()
        self._opened: OrderedDict[int, Stored] = OrderedDict([(0, first)])
        _ARRAYS.add(self)
        shape = (int(self._past[-1]), *first.shape[1:]) if first.shape else ()
        super().__init__(
            name,
            shape,
            first.dtype,
            units=first.units,
            channels=first.channels,
            axes=first.axes,
            prepared=first.prepared,
        )
        self.dims, self.unclear, self.rules_axis = first.dims, first.unclear, first.rules_axis
        self.files = list(zip(files, self._counts, strict=True))
        self._rules: dict[int, Sequence[Rules]] = {0: first.rules()}
        """what each file that was opened declares; the array itself would keep its file open"""

    def broken_in(
        self, indices: np.ndarray, samples: np.ndarray, *, marks_only: bool = False
    ) -> tuple[int, str] | None:
        for number, places in self._by_file(indices):
            if number not in self._rules:
                self._part(number)
            if not (rules := self._rules[number]):
                continue
            if found := first_broken(rules, self.rules_axis, samples[places], marks_only=marks_only):
                return int(indices[places[found[0]]]), found[1]
        return None

    def read(self, indices: np.ndarray) -> np.ndarray:
        out = np.empty((len(indices), *self.shape[1:]), self.dtype)
        for number, places in self._by_file(indices):
            out[places] = self._part(number).read(indices[places] - (self._past[number] - self._counts[number]))
        return out

    def whole(self) -> np.ndarray:
        """All of it; the files are then closed, since arrays such as conditions are read once."""
        numbers = super().whole()
        with self._lock:
            self._opened.clear()
        return numbers

    def named(self, index: int) -> str:
        number, within = self._place_of(index)
        return f"{self._files[number]}[{within}]"

    def key(self, index: int) -> bytes:
        number, within = self._place_of(index)
        return os.fsencode(f"{os.path.relpath(self._files[number], self._folder)}[{within}]")

    def _by_file(self, indices: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """The numbers of the files that hold some samples, and the places among these of those in each."""
        numbers = np.searchsorted(self._past, indices, "right")
        for number in np.unique(numbers).tolist():
            yield number, np.flatnonzero(numbers == number)

    def _place_of(self, index: int) -> tuple[int, int]:
        number = int(np.searchsorted(self._past, index, "right"))
        return number, index - int(self._past[number] - self._counts[number])

    def _part(self, number: int) -> Stored:
        """The array of a file, which stays open until others have been used since."""
        with self._lock:
            if number in self._opened:
                self._opened.move_to_end(number)
                return self._opened[number]
        file = self._files[number]
        try:
            part = self._opener(file)
        except (OSError, RunError, KeyError) as error:
            raise RunError(f"{error}; {file} has changed since the run began; restore it, then resume") from error
        if part.shape != (self._counts[number], *self.shape[1:]) or part.dtype != self.dtype:
            raise RunError(
                f"--data {file}: shape {part.shape} and type {part.dtype}; it has changed since the run began, when it "
                f"had {(self._counts[number], *self.shape[1:])} and {self.dtype}; restore it, then resume"
            )
        if number not in self._rules:
            self._rules[number] = part.rules()
        with self._lock:
            self._opened[number] = part
            if len(self._opened) > MOST_OPEN:
                self._opened.popitem(last=False)  # its file is closed once no thread reads it any more
        return part

    def renew_lock(self) -> None:
        """Replace the lock, which another thread may have held when this process was forked."""
        self._lock = threading.Lock()


_ARRAYS: weakref.WeakSet[JoinedArray] = weakref.WeakSet()
"""those in use; a fork calls one function for all, since it cannot be unregistered, and would keep an array for ever"""


def _renew_locks() -> None:
    for array in list(_ARRAYS):
        array.renew_lock()


os.register_at_fork(after_in_child=_renew_locks)


def _facts(stored: Stored) -> list[Any]:
    """What must be the same in all files, apart from the first length, as JSON types."""
    return [list(stored.shape), stored.dtype.str, *map(list, (stored.units, stored.channels, stored.dims))]


def _in_words(facts: list[Any], others: list[Any]) -> str:
    """The facts; channels and dimensions only where they differ from others."""
    shape, dtype, units, *named = facts
    text = f"shape {tuple(shape)}, type {np.dtype(dtype)}" + (f" and unit {', '.join(units)}" if units else "")
    for kind, names, theirs in zip(("channels", "dimensions"), named, others[3:], strict=True):
        if names != theirs:
            text += f", {kind} {', '.join(names) or '(none)'}"
    return text
