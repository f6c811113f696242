"""The interface of all sources of images, and the report of broken files."""

import abc
import hashlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hvdgan.cli.errors import RunError

_NAMED_IN_ERRORS = 5


class BadFile(NamedTuple):
    """A file or image that cannot be used: its name within the data, and the reason."""

    name: str
    reason: str


class BadImage(Exception):
    """One image cannot be read; the others can.

    Args:
        name: name of the image within the data, such as `cats/tom.png`.
        reason: reason why it cannot be read, in a few words.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.bad_file = BadFile(name, reason)


class Unreadable(RunError):
    """The disk, the network or the memory has failed, not the file.

    I/O and memory errors are not counted as broken images: the image would be left out for good, or by one rank only.
    """


class Source(abc.ABC):
    """Images by index, all of one size.

    A subclass implements `fetch` or `fetch_batch`; the base makes the other one from it.

    Args:
        name: value of `--data`, for error messages.
        image_size: height and width of the images that `fetch` returns, in pixels.
        channels: channels of an image, 1 (grey) or 3 (RGB).
        fingerprint: hex digits, equal if the images, their size and their channels are equal.
        labels: classes of the images, int32 (N,), or None.
        class_names: names of the labels 0, 1, ..., or None if they are not known.
        paired: True if each image comes with an input of the same size and channels.
        bad_files: files found broken on opening; they have no index.
    """

    batched = False
    """True if `fetch_batch` of many images costs far less than many calls of `fetch`"""
    in_memory = False
    """True if memory holds the images as `fetch` returns them, so that a cache is of no use"""
    prepared = False
    """True if `hvdgan.prepare` would not make reading faster"""
    decode: Callable[[Any], Any] | None = None
    """operations that turn a tensor of `fetch_records` (B,) into the images of `fetch_batch` (B, *shape); None if the
    source has no records"""

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
        """One more than the largest label; 0 if there are no labels or if one is negative, which is not a class."""
        return 0 if self.labels is None or self.labels.min() < 0 else int(self.labels.max()) + 1

    @property
    def total(self) -> int:
        """The number of all images, including broken ones and those that are held out."""
        return len(self) + len(self.bad_files)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of an image: (image_size, image_size, channels), with twice the channels if paired."""
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
        """Bytes that identify an image on every machine: its name within the data, or its pixels."""

    def digest(self, index: int) -> bytes:
        """The SHA-256 of an image's key."""
        return hashlib.sha256(self.key(index)).digest()

    def stamp(self) -> list[Any] | None:
        """Facts that, with the fingerprint, prove that no key has changed, without reading the images.

        Returns:
            Values expressible in JSON; None if there is no proof, or if the images do not come from files.

        Raises:
            OSError: a file is missing.
        """
        return None

    def fetch_records(self, indices: np.ndarray) -> list[bytes]:
        """Read several images for `decode`, which decodes them without holding the GIL.

        Args:
            indices: numbers of the images, int64 (B,).

        Raises:
            RunError: the data have changed since they were opened.
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
    """A file name for messages: line breaks, and bytes that are not UTF-8, are escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in name)


def fingerprint(image_size: int, channels: int, parts: Iterable[bytes]) -> str:
    """A SHA-256 that identifies the images, in hex.

    Args:
        image_size: height and width in pixels.
        channels: 1 or 3.
        parts: bytes that identify the images; the boundaries between the parts count.
    """
    digest = hashlib.sha256(f"{image_size} {channels}".encode())
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def in_words(bad_files: Sequence[tuple[str, str]]) -> str:
    """The first few bad files with their reasons, and the number of the others."""
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
    """Raise an error if a larger fraction of the data is broken than allowed.

    Args:
        error: type of the error.
        name: value of `--data`.
        bad_files: names and reasons of the distinct broken files so far.
        total: number of all files, including broken ones, > 0.
        max_bad_fraction: value of `--max-bad-fraction`, in [0, 1].
        flag: flag that the name belongs to.

    Raises:
        error: the fraction is exceeded; the message names the data, both numbers, the first broken files and the flag.
    """
    if len(bad_files) / total <= max_bad_fraction:
        return
    raise error(
        f"{flag}{name}: {len(bad_files)} of {total} images cannot be read: {in_words(bad_files)}; "
        f"repair or remove them, or allow them with --max-bad-fraction (now {max_bad_fraction:g})"
    )
