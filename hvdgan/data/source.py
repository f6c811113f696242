"""What every source of images offers, and how broken files are reported."""

import abc
import hashlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hvdgan.cli.errors import RunError

_NAMED_IN_ERRORS = 5


class BadFile(NamedTuple):
    """A file or image that cannot be used: its name within the data, and why."""

    name: str
    reason: str


class BadImage(Exception):
    """One image cannot be read; the others can.

    Args:
        name: its name within the data, such as `cats/tom.png`.
        reason: what is wrong with it, in a few words.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.bad_file = BadFile(name, reason)


class Unreadable(RunError):
    """The disk, the network or the memory has failed, not the file that was to be read.

    Counted as a broken image it would be left out for ever, or by one rank alone.
    """


class Source(abc.ABC):
    """Images by index, all of one size.

    Args:
        name: what `--data` says, for error messages.
        image_size: height and width of what `fetch` returns, in pixels.
        channels: of an image, 1 (grey) or 3 (RGB).
        fingerprint: hex digits, equal wherever the same images are seen at the same size and channels.
        labels: int32 (N,), or None where the data has none.
        class_names: what the labels 0, 1, ... mean, or None where that is not known.
        paired: whether each image comes with an input of the same size and channels.
        bad_files: what was found broken when opening; they have no index.
    """

    batched = False
    """whether one `fetch_batch` costs far less than as many calls of `fetch`"""
    in_memory = False
    """whether the images are held in memory as `fetch` returns them, so that there is nothing to cache"""
    prepared = False
    """whether `hvdgan.prepare` would not make reading them faster"""
    decode: Callable[[Any], Any] | None = None
    """operations from a tensor of some of `fetch_records` (B,) to `fetch_batch` of them (B, *shape); None: there are no
    records, and images are fetched"""

    def __init__(
        self,
        *,
        name: str,
        image_size: int,
        channels: int,
        fingerprint: str,
        labels: np.ndarray | None = None,
        class_names: Sequence[str] | None = None,
        paired: bool = False,
        bad_files: Iterable[BadFile] = (),
    ) -> None:
        self.name = name
        self.image_size = image_size
        self.channels = channels
        self.fingerprint = fingerprint
        self.labels = labels
        self.class_names = None if class_names is None else list(class_names)
        self.paired = paired
        self.bad_files = list(bad_files)

    @property
    def num_classes(self) -> int:
        """One more than the largest label; 0 where the data has none, or one below 0, which is no class."""
        return 0 if self.labels is None or self.labels.min() < 0 else int(self.labels.max()) + 1

    @property
    def total(self) -> int:
        """The number of all images, those included that were found broken or are kept for another use."""
        return len(self) + len(self.bad_files)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of what `fetch` returns: (image_size, image_size, channels), or twice the channels where paired."""
        return self.image_size, self.image_size, self.channels * (2 if self.paired else 1)

    @abc.abstractmethod
    def __len__(self) -> int:
        """The number of images that have an index."""

    def fetch(self, index: int) -> np.ndarray:
        """Read one image; safe to call from several threads.

        Args:
            index: number of the image, 0 <= index < len(self).

        Returns:
            uint8, of `shape`; of a pair, the channels of the input come first.

        Raises:
            BadImage: this image is broken, and is left out.
            RunError: the data have changed since they were opened.
        """
        return self.fetch_batch(np.array([index]))[0]

    def fetch_batch(self, indices: np.ndarray) -> np.ndarray:
        """Read several images; safe to call from several threads.

        Args:
            indices: numbers of the images, int64 (B,).

        Returns:
            uint8 (B, *shape).

        Raises:
            BadImage: one of them is broken.
            RunError: the data have changed since they were opened.
        """
        return np.stack([self.fetch(int(index)) for index in indices])

    @abc.abstractmethod
    def key(self, index: int) -> bytes:
        """What identifies an image on every machine: its name within the data, or what it holds."""

    def digest(self, index: int) -> bytes:
        """The SHA-256 of an image's key."""
        return hashlib.sha256(self.key(index)).digest()

    def stamp(self) -> list[Any] | None:
        """What tells, beside the fingerprint, that all keys are what they were, without looking at the images.

        Returns:
            Something expressible in JSON; None where nothing tells it, or the images come from no file.

        Raises:
            OSError: a file is gone.
        """
        return None

    def fetch_records(self, indices: np.ndarray) -> list[bytes]:
        """Read several images for `decode`, which makes pixels of them without holding the interpreter's lock.

        Args:
            indices: int64 (B,).

        Raises:
            RunError: the data is not what it was when it was opened.
        """
        raise NotImplementedError(f"{type(self).__name__} has no records")


class SourceWrapper(Source):
    """Another source's images, changed or chosen from; a subclass overrides what differs.

    Args:
        source: the other source.
        changes: arguments of Source that are not the other source's.
    """

    def __init__(self, source: Source, **changes: Any) -> None:
        own = {name: getattr(source, name) for name in inspect.signature(Source).parameters}
        super().__init__(**{**own, **changes})
        self.batched, self.in_memory, self.prepared = source.batched, source.in_memory, source.prepared
        self._source = source

    @property
    def num_classes(self) -> int:
        return self._source.num_classes

    @property
    def total(self) -> int:
        return self._source.total

    def __len__(self) -> int:
        return len(self._source)

    def key(self, index: int) -> bytes:
        return self._source.key(index)

    def digest(self, index: int) -> bytes:
        return self._source.digest(index)

    def stamp(self) -> list[Any] | None:
        return self._source.stamp()


def printable(name: str) -> str:
    """A file name for messages: line breaks, and bytes that are no UTF-8 and cannot be printed, are escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in name)


def fingerprint(image_size: int, channels: int, parts: Iterable[bytes]) -> str:
    """A SHA-256 of what the images are, in hex.

    Args:
        image_size: in pixels.
        channels: 1 or 3.
        parts: whatever identifies the images; where one part ends and the next begins counts.
    """
    digest = hashlib.sha256(f"{image_size} {channels}".encode())
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def in_words(bad_files: Sequence[tuple[str, str]]) -> str:
    """The first of some bad files with their reasons, and how many more there are."""
    first = [f"{bad_name} ({reason})" for bad_name, reason in bad_files[:_NAMED_IN_ERRORS]]
    if len(bad_files) > _NAMED_IN_ERRORS:
        first.append(f"and {len(bad_files) - _NAMED_IN_ERRORS} more")
    return ", ".join(first)


def refuse_if_too_many(
    error: type[RunError],
    *,
    name: str,
    bad_files: Sequence[tuple[str, str]],
    total: int,
    max_bad_fraction: float,
    flag: str = "--data ",
) -> None:
    """Stop when more of the data is broken than was allowed.

    Args:
        error: the type to raise.
        name: what `--data` says.
        bad_files: name and reason of the distinct broken ones so far.
        total: the number of all files, broken ones included; > 0.
        max_bad_fraction: what `--max-bad-fraction` says, in [0, 1].
        flag: what the name is of.

    Raises:
        error: it names the data, both counts, the first few broken files and the flag.
    """
    if len(bad_files) / total <= max_bad_fraction:
        return
    raise error(
        f"{flag}{name}: {len(bad_files)} of {total} images cannot be read: {in_words(bad_files)}; "
        f"repair or remove them, or allow them with --max-bad-fraction (now {max_bad_fraction:g})"
    )
