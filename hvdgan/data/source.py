"""The interface of all sources of samples, and the report of broken files."""

import abc
import hashlib
import inspect
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hvdgan.cli.errors import RunError
from hvdgan.cli.types import Fit
from hvdgan.values.missing import Missing
from hvdgan.values.sample_values import Layout, SampleValues, of_pixels

_NAMED_IN_ERRORS = 5
Size = int | tuple[int, int]
"""height and width in pixels: one number for both, or two"""


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
    """Samples by index, all of one shape: 8-bit pictures (PictureSource), or arrays of any kind.

    A subclass implements `fetch` or `fetch_batch`; the base makes the other one from it.

    Args:
        name: value of `--data`, for error messages.
        layout: shapes of a sample and of its input.
        fingerprint: hex digits, equal if the samples and their shapes are equal.
        dtype: type of the numbers that `fetch` returns.
        values: maps of the numbers to those that networks see.
        labels: classes of the samples, int32 (N,), or None.
        class_names: names of the labels 0, 1, ..., or None if they are not known.
        conditions: numbers that describe each sample, (N, k), or None; their names are in `values`.
        constants: fields that all samples share, channels last, or None.
        bad_files: files found broken on opening; they have no index.
    """

    batched = False
    """True if `fetch_batch` of many images costs far less than many calls of `fetch`"""
    in_memory = False
    """True if memory holds the images as `fetch` returns them, so that a cache is of no use"""
    is_pictures = False
    """True for 8-bit pictures, whose uint8 0 to 255 the step itself maps to [-1, 1]"""
    prepared = False
    """True if `hvdgan.prepare` would not make reading faster"""
    remarks: Sequence[str] = ()
    """lines to log when a run starts: numbers that are rounded, lie outside of a declared range, or are not used"""
    missing: Missing | None = None
    """what networks see in place of missing numbers; None: a sample with one is broken"""
    assumed_axes: Sequence[str] = ()
    """axes that arrays are taken to have although their shape allows others, in words, for the start of a run"""

    def __init__(
        self,
        *,
        name: str,
        layout: Layout,
        fingerprint: str,
        values: SampleValues,
        dtype: Any = np.uint8,
        labels: np.ndarray | None = None,
        class_names: Sequence[str] | None = None,
        conditions: np.ndarray | None = None,
        constants: np.ndarray | None = None,
        bad_files: Iterable[BadFile] = (),
    ) -> None:
        self.name = name
        self.layout = layout
        self.fingerprint = fingerprint
        self.dtype = self.stored_dtype = np.dtype(dtype)
        self.values = values
        self.labels = labels
        self.class_names = None if class_names is None else list(class_names)
        self.conditions = conditions
        self.constants = constants
        self.bad_files = list(bad_files)

    @property
    def num_classes(self) -> int:
        """One more than the largest label; 0 if there are no labels or if one is negative, which is not a class."""
        return 0 if self.labels is None or self.labels.min() < 0 else int(self.labels.max()) + 1

    @property
    def total(self) -> int:
        """The number of all samples, including broken ones and those that are held out."""
        return len(self) + len(self.bad_files)

    @property
    def paired(self) -> bool:
        """True if each sample comes with an input."""
        return self.layout.input_shape is not None

    @property
    def record_shape(self) -> tuple[int, ...]:
        """Shape of what `fetch` returns: a sample, or a sample and its input in one array."""
        return self.layout.record

    def blank(self, count: int) -> np.ndarray:
        """Zeros in place of `count` samples, (count, *record_shape)."""
        return np.zeros((count, *self.record_shape), self.dtype)

    def facts(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """What memory holds about some samples: their numbers in the data, labels and conditions, (B, ...) each."""
        known = {"numbers": self.numbers(indices)}
        if self.labels is not None:
            known["labels"] = self.labels[indices]
        if self.conditions is not None:
            known["conditions"] = self.conditions[indices]
        return known

    def numbers(self, indices: np.ndarray) -> np.ndarray:
        """The samples' numbers in the whole data, int64 (B,); they differ from the indices where some are held out."""
        return np.asarray(indices, np.int64)

    def named(self, index: int) -> str:
        """The name of a sample, for messages."""
        return f"{self.name}[{index}]"

    def take_outside(self) -> int:
        """How many numbers outside of the declared ranges were read since the last call."""
        return 0

    @abc.abstractmethod
    def __len__(self) -> int:
        """The number of images that have an index."""

    def fetch(self, index: int) -> np.ndarray:
        """Read one sample; safe to call from several threads.

        Args:
            index: number of the sample, 0 <= index < len(self).

        Returns:
            An array of `record_shape` and `dtype`; of a pair, the numbers of the input come first.

        Raises:
            BadImage: this image is broken, and is left out.
            RunError: the data have changed since they were opened.
        """
        return self.fetch_batch(np.array([index]))[0]

    def fetch_batch(self, indices: np.ndarray) -> np.ndarray:
        """Read several samples; safe to call from several threads.

        Args:
            indices: numbers of the samples, int64 (B,).

        Returns:
            An array (B, *record_shape) of `dtype`.

        Raises:
            BadImage: one of them is broken.
            RunError: the data have changed since they were opened.
        """
        return np.stack([self.fetch(int(index)) for index in indices])

    @abc.abstractmethod
    def key(self, index: int) -> bytes:
        """Bytes that identify an image on every machine: its name or place within the data, or its pixels."""

    def digest(self, index: int) -> bytes:
        """The SHA-256 of an image's key."""
        return hashlib.sha256(self.key(index)).digest()

    def stamp(self) -> list[Any] | None:
        """Facts that, with the fingerprint, prove that no key and no number has changed, without reading the images.

        Returns:
            Values expressible in JSON; None if there is no proof, or if the images do not come from files.

        Raises:
            OSError: a file is missing.
        """
        return None


class PictureSource(Source):
    """8-bit pictures, all of one size.

    Args:
        image_size: height and width of the pictures that `fetch` returns, in pixels; one number for both, or two.
        channels: channels of a picture, 1 (grey) or 3 (RGB).
        fit: way in which pictures of another aspect ratio are brought to this size; None: they are refused.
        paired: True if each picture comes with an input of the same size and channels.
        others: arguments of Source.
    """

    is_pictures = True

    def __init__(
        self,
        *,
        image_size: Size,
        channels: int,
        fit: Fit | None = None,
        paired: bool = False,
        **others: Any,
    ) -> None:
        shape = (*sides(image_size), channels)
        values = of_pixels(channels, paired=paired)
        super().__init__(layout=Layout(shape, shape if paired else None), values=values, **others)
        self.image_size, self.channels, self.fit = image_size, channels, fit

    def own_size(self, index: int) -> tuple[int, int] | None:
        """Height and width of a picture before it is brought to the image size; None if that is not known."""
        return None


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
        self.is_pictures, self.stored_dtype = source.is_pictures, source.stored_dtype
        self.remarks, self.assumed_axes, self.missing = source.remarks, source.assumed_axes, source.missing
        self._source = source

    @property
    def num_classes(self) -> int:
        return self._source.num_classes

    @property
    def total(self) -> int:
        return self._source.total

    def __len__(self) -> int:
        return len(self._source)

    def numbers(self, indices: np.ndarray) -> np.ndarray:
        return self._source.numbers(indices)

    def named(self, index: int) -> str:
        return self._source.named(index)

    def key(self, index: int) -> bytes:
        return self._source.key(index)

    def digest(self, index: int) -> bytes:
        return self._source.digest(index)

    def stamp(self) -> list[Any] | None:
        return self._source.stamp()


def sides(image_size: Size) -> tuple[int, int]:
    """Height and width of a picture, given as one number for both or as two."""
    return (image_size, image_size) if isinstance(image_size, int) else image_size


def printable(name: str) -> str:
    """A file name for messages: line breaks, and bytes that are not UTF-8, are escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in name)


def fingerprint(image_size: Size, channels: int, parts: Iterable[bytes], fit: Fit | None = None) -> str:
    """A SHA-256 that identifies the pictures, in hex.

    Args:
        image_size: height and width in pixels; one number for both, or two.
        channels: 1 or 3.
        parts: bytes that identify the pictures; the boundaries between the parts count.
        fit: way in which pictures of another aspect ratio are brought to this size.
    """
    height, width = sides(image_size)
    size = f"{height}" if height == width else f"{height} {width}"
    # Square pictures that are cropped had no fit before it could be chosen, and keep their fingerprint.
    how = "" if fit in (None, "crop") else f" {fit}"
    return fingerprint_of(f"{size} {channels}{how}".encode(), parts)


def fingerprint_of(head: bytes, parts: Iterable[bytes]) -> str:
    """The SHA-256 of a head and of parts, whose boundaries count, in hex."""
    digest = hashlib.sha256(head)
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
