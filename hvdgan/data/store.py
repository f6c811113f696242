"""A store: an array on a disk or in memory of which single samples are read; and the files that hold some by name."""

import abc
import contextlib
import dataclasses
import hashlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hvdgan.data.bad_files import BadImage
from hvdgan.errors import RunError, UserError, in_one_line
from hvdgan.errors.shared_errors import ALONE, Peers
from hvdgan.settings.config import Config

Size = int | tuple[int, int]
"""height and width in pixels: one number for both, or two"""
ALIGNMENT = 64
"""bytes, of which the address of an array is a multiple if TensorFlow can take it over"""
_SIZE = 32
"""default height and width of pictures in files"""
_USUAL = ("images", "x", "arr_0")
"""names of the samples where a file has several arrays"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataRequest:
    """What is to be opened, and what for.

    Args:
        config: settings of the data.
        paired: True if each sample must come with an input.
        peers: the ranks; each opens the data, and they share the work.
        unmapped: True if the maps of another run apply: arrays need none then, and get `none`.
        in_order: True if one thread reads the samples in ascending order, as hvdgan prepare does; TFRecord files may be
            compressed as a whole then.
        any_size: True if the samples are whole fields for networks that have seen parts of others. Where a recipe takes
            pairs, the samples may be the inputs themselves, and the constants are as high and wide as what is made.
    """

    config: Config
    paired: bool = False
    peers: Peers = ALONE
    unmapped: bool = False
    in_order: bool = False
    any_size: bool = False

    @property
    def looked_at(self) -> int:
        """Number of samples that are looked at for what the data do not say; whole fields may be large."""
        return 2 if self.any_size else 64

    @property
    def size(self) -> Size:
        """Height and width of pictures that have several sizes."""
        return self.config.image_size or _SIZE


def sides(image_size: Size) -> tuple[int, int]:
    """Height and width of a picture, given as one number for both or as two."""
    return (image_size, image_size) if isinstance(image_size, int) else image_size


def identity(path: str) -> list[Any]:
    """Facts that change when a file changes: its path, its size, and the nanosecond of its last change."""
    status = os.stat(path)
    return [os.path.abspath(path), status.st_size, status.st_mtime_ns]


@contextlib.contextmanager
def named_errors(name: str, kind: str, expected: str) -> Iterator[None]:
    """Turn any error in the block into a UserError that names the file: damaged files raise many types."""
    try:
        yield
    except RunError:
        raise
    except Exception as error:
        raise UserError(f"--data {name}: cannot be read {kind}: {in_one_line(error)}; expected {expected}") from error


def failed(named: str, reason: Exception | str) -> RunError:
    """The error that ends the run if a file, or a sample of this name, has changed or cannot be read."""
    told = in_one_line(reason) if isinstance(reason, Exception) else reason
    return RunError(f"--data {named} cannot be read: {told}; restore the data or the disk, then resume")


def refuse_changed(stamp: Sequence[Any], named: str) -> None:
    """Refuse a file that was written to since it was opened."""
    try:
        status = os.stat(stamp[0])
    except OSError as error:
        raise failed(named, str(error.strerror)) from error
    if [status.st_size, status.st_mtime_ns] != stamp[1:]:
        raise failed(named, "the file has changed since the run began")


def gaps(name: str, stored: int, chunks: int, fill: Any, what: str = "chunks") -> str:
    """How many chunks of an array a file lacks, in words; "" if none, or if it reads them as NaN."""
    words = f"{name}: {chunks - stored:,} of {chunks:,} {what} are not stored, and are read as {fill}"
    return words if stored < chunks and fill == fill else ""


def spread(count: int, most: int = 64) -> np.ndarray:
    """Numbers of at most 64 samples, or another number, spread evenly over all."""
    return np.unique(np.linspace(0, count - 1, most).astype(np.int64))


def selection(indices: np.ndarray) -> slice | np.ndarray:
    """A slice in place of indices that follow one another, which libraries read at once."""
    is_run = len(indices) and (np.diff(indices) == 1).all()
    return slice(int(indices[0]), int(indices[-1]) + 1) if is_run else indices


def as_texts(array: np.ndarray, name: str) -> np.ndarray:
    """An array of texts in place of one of bytes, or of Python objects that are texts; no others are taken."""
    if array.dtype.kind not in "SO":
        return array
    found = [each.decode(errors="replace") if isinstance(each, bytes) else each for each in array.ravel().tolist()]
    if not all(isinstance(each, str) for each in found):
        raise BadImage(name, f"Python objects of type {type(found[0]).__name__}; expected numbers or texts")
    return np.array(found, np.str_).reshape(array.shape)


def aligned(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """A new array that begins where TensorFlow takes it over without a copy."""
    if dtype.hasobject:
        return np.empty(shape, dtype)
    size = math.prod(shape) * dtype.itemsize
    room = np.empty(size + ALIGNMENT, np.uint8)
    first = -room.ctypes.data % ALIGNMENT
    return room[first : first + size].view(dtype).reshape(shape)


class Store(abc.ABC):
    """An array on a disk or in memory; its first axis counts the samples.

    Args:
        name: name for messages, such as `showers.h5:ECAL`.
        shape: (N, ...).
        dtype: type of the numbers; those of another byte order are converted when they are read.
        units: unit of all numbers, or one for each channel; empty where the file does not say.
        channels: names of the channels, where the file gives some.
        axes: letters of a sample's axes, as in --axes, where the file names them; else "".
        prepared: True if hvdgan prepare would not make reading faster.
    """

    dims: tuple[str, ...] = ()
    """names of the dimensions, with that of the samples, where the file has some; "" for one without a name"""
    space: tuple[str, ...] = ()
    """those of a sample's dimensions in space, if the channels are last"""
    unclear = ""
    """why the first dimension may not be that of the samples, and what to do, unless the axes are given"""
    file_counts: Sequence[tuple[str, int]] = ()
    """names of several files that are joined, with the number of samples in each"""
    in_memory = False
    """True if memory holds the samples, so that a cache is of no use"""

    def __init__(
        self,
        name: str,
        shape: Sequence[int],
        dtype: Any,
        *,
        units: Sequence[str] = (),
        channels: Sequence[str] = (),
        axes: str = "",
        prepared: bool = True,
    ) -> None:
        self.name = name
        self.shape = tuple(int(size) for size in shape)
        self.dtype = np.dtype(dtype)
        self.units = tuple(units) if any(units) else ()
        self.channels = tuple(channels)
        self.axes = axes
        self.prepared = prepared

    def units_of(self, count: int) -> tuple[str, ...]:
        """The units of `count` channels; () where they are not known."""
        return self.units * count if len(self.units) == 1 else self.units if len(self.units) == count else ()

    @property
    def channel_names(self) -> tuple[str, ...]:
        """The names of the channels, which are the last axis: those of the file, or their numbers."""
        return self.channels if len(self.channels) == self.shape[-1] else tuple(map(str, range(self.shape[-1])))

    @abc.abstractmethod
    def read(self, indices: np.ndarray) -> np.ndarray:
        """Read some samples, (B, ...) of `dtype`, in any order; safe to call from several threads.

        A BadImage says that one sample cannot be read, a RunError that the file has changed or the disk has failed.
        """

    def read_drawn(self, indices: np.ndarray, draws: np.ndarray | None) -> np.ndarray:
        """Read some samples, or a part of each that a number decides, uint64 (B,); None: the part in the middle."""
        return self.read(indices)

    def read_to(self, out: np.ndarray, places: np.ndarray, indices: np.ndarray) -> None:
        """Read some samples to places of an array (B, ...)."""
        out[places] = self.read(indices)

    def refuse_other_types(self) -> None:
        """Refuse texts, complex numbers and the like."""
        if self.dtype.kind not in "fiub" or self.dtype.itemsize > 8:
            raise UserError(
                f"--data {self.name}: numbers of type {self.dtype}; expected float16, float32, float64 or integers; "
                "convert them, such as with array.astype(np.float32), and split complex numbers into two channels"
            )

    def readable(self, indices: np.ndarray) -> np.ndarray:
        """Those of some samples that are not broken, (B, ...); if all are, they are refused."""
        try:
            return self.read(indices)
        except BadImage as first:
            found = []
            for index in indices.tolist():
                with contextlib.suppress(BadImage):
                    found.append(self.read(np.array([index])))
            if not found:
                raise UserError(f"--data {first}; none of {len(indices)} samples looked at can be used") from first
            return np.concatenate(found)

    def remark(self) -> str:
        """What the log says of its files, such as chunks that they lack; "" if nothing."""
        return ""

    def named(self, index: int) -> str:
        """The name of a sample, for messages."""
        return f"{self.name}[{index}]"

    def key(self, index: int) -> bytes:
        """Bytes that identify a sample on every machine: its place, or its name."""
        return str(index).encode()

    def digest(self, index: int) -> bytes:
        """The SHA-256 of a sample's key."""
        return hashlib.sha256(self.key(index)).digest()

    def whole(self) -> np.ndarray:
        """All of it, for small arrays such as conditions and labels; a missing number is refused."""
        if not self.shape:
            raise UserError(f"--data {self.name}: a single number; expected an array")
        try:
            return as_texts(self.read(np.arange(self.shape[0])), self.name)
        except BadImage as bad:
            raise UserError(f"--data {bad}") from bad

    def refuse_others(self, samples: "Store", flag: str) -> None:
        """Refuse an array, named by a flag, whose entries belong to others than the samples beside which it lies.

        It then has another first dimension, the same dimensions in another order, or other numbers of entries in files.
        """
        mine, theirs = self.dims, samples.dims
        are_named = bool(mine and theirs and mine[0] and theirs[0])
        shared = [[dim for dim in one if dim and dim in other] for one, other in ((mine, theirs), (theirs, mine))]
        if (are_named and mine[0] != theirs[0]) or shared[0] != shared[1]:
            raise UserError(
                f"{flag}: {self.name} has the dimensions {', '.join(mine)}, and the samples {', '.join(theirs)}; "
                "expected the same first one, and those that both have in the same order; rename or transpose it"
            )
        for (file, count), (_, expected) in zip(self.file_counts, samples.file_counts, strict=False):
            if count != expected:
                raise UserError(
                    f"{flag}: {self.name} has {count:,} entries in {file}, which has {expected:,} samples; expected "
                    "one for each sample of the file"
                )


class DerivedStore(Store):
    """The samples of another store in another form, under the same names and keys.

    `shape` is that of the other one by default, and `others` are further arguments of Store, for what differs.
    """

    def __init__(self, stored: Store, shape: Sequence[int] | None = None, **others: Any) -> None:
        same = {name: getattr(stored, name) for name in ("name", "dtype", "units", "channels", "axes", "prepared")}
        super().__init__(shape=stored.shape if shape is None else shape, **{**same, **others})
        self._stored = stored

    def named(self, index: int) -> str:
        return self._stored.named(index)

    def key(self, index: int) -> bytes:
        return self._stored.key(index)

    def digest(self, index: int) -> bytes:
        return self._stored.digest(index)

    def remark(self) -> str:
        return self._stored.remark()


class Container:
    """A file, or several of the same kind, with one array or several by name; "" is the only one without a name.

    Args:
        data: value of `--data`, without the name of an array.
        stores: functions that open the arrays, by their names.
    """

    has_names = False
    """True if the keys of samples are names, which decide what is held out"""
    identity = b""
    """bytes that tell these files from others with the same numbers in the samples that a fingerprint looks at"""
    folder = ""
    """folder below which the files lie"""
    paths: Sequence[str] | None = None
    """paths of the files, of which one has another size or time once a sample has changed, unless the fingerprint shows
    it; None: nothing shows that"""
    holds_arrays = False
    """True if the numbers are known to be no pictures, although arrays of small integers may have the same type"""
    labels: np.ndarray | None = None
    """classes of the samples, int32 (N,), where they are known without an array of that name"""
    class_names: Sequence[str] | None = None
    """names of these classes"""

    def __init__(self, data: str, stores: Mapping[str, Callable[[], Store]] | None = None) -> None:
        self.data = data
        self._stores = stores or {}

    def names(self) -> list[str]:
        """The names of the arrays."""
        return list(self._stores)

    def get(self, name: str) -> Store:
        """One of the arrays."""
        return self._stores[name]()

    def settings(self, config: Config, *, paired: bool) -> Config:
        """The settings of the data, completed by what the files say."""
        return config

    def find(self, name: str, flag: str) -> Store:
        """The array of a name that a flag gives."""
        name = self.full_name(name)
        self._refuse_missing(name, flag)
        return self.get(name)

    def full_name(self, name: str) -> str:
        """The name of the only array that ends with /name, if there is one and none is called so."""
        found = [] if self.has(name) else [each for each in self.names() if each.endswith(f"/{name}")]
        return found[0] if len(found) == 1 else name

    def likely(self, names: Sequence[str]) -> str:
        """Which of these arrays holds the samples: one of floats, with the most axes."""
        stores = {name: self.get(name) for name in names}
        return max(names, key=lambda name: (stores[name].dtype.kind == "f", len(stores[name].shape)))

    def find_constant(self, name: str, flag: str) -> Store:
        """The array of fields that all samples share; its first axis is that of a sample."""
        return self.find(name, flag)

    def samples_among(self, names: Sequence[str]) -> str:
        """The name of the samples where --data gives none: the only array, or that of a usual name; else "".

        np.savez names arrays without names by their order, so that nothing says which of several are the samples.
        """
        usual = [known for known in _USUAL if known in names and (known != "arr_0" or "arr_1" not in names)]
        return names[0] if len(names) == 1 else next(iter(usual), "")

    def has(self, name: str) -> bool:
        """Whether there is an array of this name."""
        return name in self.names()

    def _refuse_missing(self, name: str, flag: str) -> None:
        if not self.has(name):
            there = ", ".join(each for each in self.names() if each)
            there = there or ("one array without a name" if self.names() else "none")
            raise UserError(f"{flag}: no array {name} in {self.data}; it has {there}")
