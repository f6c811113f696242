"""Arrays in an HDF5 file: the library says where the chunks are, and several threads read and decompress them at once.

The HDF5 library lets one thread in at a time. So it is asked only for the place of a chunk; its bytes are read and
decompressed without it. What this module does not decode itself (filters other than gzip and shuffle, virtual and
external data sets, numbers of unusual width) is read through the library, chunk by chunk.

Reference: The HDF Group, "HDF5 File Format Specification", version 3.0, sections IV.A.2.l (filters) and VII.
"""

import contextlib
import functools
import itertools
import math
import os
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import h5py
import numpy as np

from hvdgan.cli.errors import RunError, UserError, in_one_line
from hvdgan.data.arrays.stored import Container, Stored, named_errors
from hvdgan.data.base.aligned_memory import room
from hvdgan.data.base.bounded_cache import BoundedCache
from hvdgan.data.base.cf_numbers import ATTRIBUTES, Rules, refuse_packed, rules_of
from hvdgan.data.base.raw_files import RawFile
from hvdgan.data.base.scan_cache import identity

_DEFLATE, _SHUFFLE = h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE
_CACHE = BoundedCache(64 * 2**20)
"""decoded chunks of several samples, of all files that this process reads"""
MOST_CHUNKS = 2**22
"""chunks whose places are remembered, 16 bytes each"""
_serials = itertools.count()
_CHECKED: dict[tuple[Any, ...], dict[str, list[Any]]] = {}
"""identities of the files whose numbers each virtual data set shows, by the identity of its own file and its path: to
check them opens them all, and joined files are opened again and again"""
_DAMAGE = (OSError, ValueError, RuntimeError, KeyError)
"""types of the errors that h5py and Python raise for a damaged file"""

SUFFIXES = (".h5", ".hdf5", ".hdf", ".he5")


class Hdf5File(Container):
    """An HDF5 file, with its data sets by their paths, such as `group/ECAL`.

    A data set's unit is its attribute `units` or `unit`; its attribute `channels`, a list of texts, names the channels.
    Numbers of other files are read through virtual data sets only, since a link to another file says nothing of its
    changes.

    Args:
        data: path of the file.

    Raises:
        UserError: it is not HDF5, or is damaged.
    """

    def __init__(self, data: str) -> None:
        super().__init__(data)
        with _reasons(data):
            self._stamp = identity(data)
            self._file = _opened(data)
            self._raw = RawFile(data)
            self._names = sorted(_sets_below(self._file, "", set()))
            self._sources: dict[str, list[Any]] = {}
            """identities of the files whose numbers virtual data sets show"""

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
            UserError: it cannot be used.
        """
        with _reasons(self.data):
            dataset = self._file[name]
            if _file_number(dataset) != _file_number(self._file):
                raise UserError(
                    f"--data {self.data}:{name}: a link to another file; name that one, as in --data "
                    f"{dataset.file.filename}:{dataset.name.lstrip('/')}"
                )
            if dataset.shape is None:
                raise UserError(f"--data {self.data}:{name}: it is empty; expected at least one sample")
            if dataset.is_virtual:
                self._sources |= _checked_sources(dataset, self.data)
            return Hdf5Array(f"{self.data}:{name}", dataset, self._raw, is_plain=self._file.userblock_size == 0)

    def stamp(self) -> list[Any]:
        return [*self._stamp, *itertools.chain.from_iterable(self._sources[path] for path in self.sources())]

    def sources(self) -> list[str]:
        return sorted(self._sources)


class Hdf5Array(Stored):
    """A data set of an HDF5 file.

    Args:
        name: name for messages.
        dataset: the data set, of an open file.
        raw: bytes of the file.
        is_plain: True if the places that the library gives are counted from the first byte of the file.
    """

    declared: Sequence[Rules] = ()
    """what its attributes declare about its numbers"""

    def __init__(self, name: str, dataset: Any, raw: RawFile, *, is_plain: bool) -> None:
        self._dataset, self._raw = dataset, raw
        self._serial = next(_serials)
        shape, self._type = dataset.shape, dataset.dtype
        plist = dataset.id.get_create_plist()
        self._filters = [plist.get_filter(place)[:2] for place in range(plist.get_nfilters())]
        is_plain = is_plain and dataset.id.get_type() == h5py.h5t.py_create(self._type)
        is_contiguous = plist.get_layout() == h5py.h5d.CONTIGUOUS and not dataset.external
        self._chunk = tuple(dataset.chunks or (1, *shape[1:]))
        self._is_decoded_here = (
            is_plain and dataset.chunks is not None and {code for code, _ in self._filters} <= {_DEFLATE, _SHUFFLE}
        )
        self._chunk_bytes = int(np.prod(self._chunk)) * self._type.itemsize
        self._sample_bytes = int(np.prod(shape[1:])) * self._type.itemsize
        self._first_byte = dataset.id.get_offset() if is_plain and is_contiguous and shape else None
        self._has_whole_samples = self._is_decoded_here and not self._filters and self._chunk[1:] == shape[1:]
        super().__init__(
            name,
            shape,
            self._type.newbyteorder("="),
            units=_texts(dataset.attrs.get("units", dataset.attrs.get("unit"))),
            channels=_texts(dataset.attrs.get("channels")),
            prepared=self._first_byte is not None or self._has_whole_samples,
        )

    def rules(self) -> Sequence[Rules]:
        return self.declared

    def read(self, indices: np.ndarray) -> np.ndarray:
        if self._first_byte is None and not (self._has_whole_samples and self._index is not None):
            return self._of_chunks(indices)
        self._raw.refuse_changed(self.named, indices)
        raw = room(len(indices), (self._sample_bytes,), np.dtype(np.uint8))
        for place, index in enumerate(indices.tolist()):
            try:
                if (first := self._first_byte_of(index)) < 0:
                    raw[place] = np.ascontiguousarray(self._dataset[index]).reshape(-1).view(np.uint8)
                else:
                    self._raw.read_into(raw[place], first)
            except _DAMAGE as error:
                raise self._unreadable(index, error) from error
        return raw.view(self._type).reshape(len(indices), *self.shape[1:]).astype(self.dtype, copy=False)

    def _first_byte_of(self, index: int) -> int:
        """Place of a sample in the file; negative if it was never written."""
        if self._first_byte is not None:
            return self._first_byte + index * self._sample_bytes
        assert self._index is not None
        row, within = divmod(index, self._chunk[0])
        first = int(self._index.first_bytes[row])
        return first if first < 0 else first + within * self._sample_bytes

    @functools.cached_property
    def _index(self) -> "_ChunkIndex | None":
        """The places of the chunks; None if there are too many to remember, or the library cannot list them."""
        index = _ChunkIndex(self.shape, self._chunk)
        if index.count > MOST_CHUNKS or not hasattr(self._dataset.id, "chunk_iter"):
            return None
        self._dataset.id.chunk_iter(index.add)
        return index

    def _of_chunks(self, indices: np.ndarray) -> np.ndarray:
        """Read each chunk that the samples touch once."""
        self._raw.refuse_changed(self.named, indices)
        out = room(len(indices), self.shape[1:], self.dtype)
        if not self._is_decoded_here and self._chunk == (1, *self.shape[1:]):
            for place, index in enumerate(indices.tolist()):
                try:
                    out[place] = self._dataset[index]  # with integers alone h5py takes a shorter way
                except _DAMAGE as error:
                    raise self._unreadable(index, error) from error
            return out
        places: dict[int, list[int]] = {}
        for place, index in enumerate(indices.tolist()):
            places.setdefault(index // self._chunk[0], []).append(place)
        for row, theirs in sorted(places.items()):
            first = row * self._chunk[0]
            for corner in itertools.product(*map(range, itertools.repeat(0), self.shape[1:], self._chunk[1:])):
                try:
                    chunk = self._chunk_at((first, *corner))
                except _DAMAGE as error:
                    raise self._unreadable(int(indices[theirs[0]]), error) from error
                inside = tuple(slice(low, low + size) for low, size in zip(corner, chunk.shape[1:], strict=True))
                for place in theirs:
                    where: Any = (place, *inside)
                    out[where] = chunk[indices[place] - first]
        return out

    def _chunk_at(self, corner: tuple[int, ...]) -> np.ndarray:
        """The chunk whose first number has these coordinates, cut to the shape of the array."""
        key = (self._serial, corner)
        if self._chunk[0] > 1 and (found := _CACHE.get(key)) is not None:
            return found
        inside = tuple(
            slice(low, min(low + size, most)) for low, size, most in zip(corner, self._chunk, self.shape, strict=True)
        )
        chunk = self._decoded(corner) if self._is_decoded_here else None
        if chunk is None:
            chunk = self._dataset[inside]
        else:
            chunk = chunk[tuple(slice(0, each.stop - each.start) for each in inside)]
        if self._chunk[0] > 1:
            _CACHE.put(key, chunk)
        return chunk

    def _decoded(self, corner: tuple[int, ...]) -> np.ndarray | None:
        """The whole chunk; None if its place is not known, or if it is not stored as the filters say."""
        first, size, filter_mask = (-1, 0, 0) if self._index is None else self._index.at(corner)
        if first < 0:
            return None
        content: Any = np.empty(size, np.uint8)
        self._raw.read_into(content, first)
        try:
            for place, (code, _) in reversed(list(enumerate(self._filters))):
                if filter_mask >> place & 1:
                    continue
                if code == _DEFLATE:
                    content = zlib.decompress(content, bufsize=self._chunk_bytes)
                else:
                    content = _unshuffled(content, self._type.itemsize)
            return np.frombuffer(content, self._type).reshape(self._chunk)
        except (zlib.error, ValueError):
            return None  # edges may be stored without filters; if the file is damaged, the library says so

    def _unreadable(self, index: int, error: Exception) -> RunError:
        return RunError(
            f"--data {self.named(index)} cannot be read: {in_one_line(error)}; the file has changed, or the disk "
            "has failed; restore the file, then resume"
        )


def _opened(path: str) -> Any:
    try:
        return h5py.File(path, "r")
    except OSError as error:
        if "lock" not in str(error):
            raise
        return h5py.File(path, "r", locking=False)  # the file system has no locks, or another process writes the file


class _ChunkIndex:
    """Where the chunks of a data set are, since the library searches all of them for each one.

    Args:
        shape: shape of the data set.
        chunk: shape of a chunk.
    """

    def __init__(self, shape: Sequence[int], chunk: Sequence[int]) -> None:
        self._chunk = chunk
        self._grid = [-(-size // length) for size, length in zip(shape, chunk, strict=True)]
        self.count = math.prod(self._grid)
        self.first_bytes = np.full(min(self.count, MOST_CHUNKS), -1, np.int64)
        """place in the file of each chunk; -1: it was never written"""
        self._sizes = np.zeros(len(self.first_bytes), np.uint32)
        self._masks = np.zeros(len(self.first_bytes), np.uint32)

    def add(self, found: Any) -> None:
        """Note a chunk that the library lists."""
        place = self._place(found.chunk_offset)
        self.first_bytes[place] = found.byte_offset
        self._sizes[place], self._masks[place] = found.size, found.filter_mask

    def at(self, corner: Sequence[int]) -> tuple[int, int, int]:
        """First byte, number of bytes, and filters that were left out, of the chunk that begins at these indices."""
        place = self._place(corner)
        return int(self.first_bytes[place]), int(self._sizes[place]), int(self._masks[place])

    def _place(self, corner: Sequence[int]) -> int:
        place = 0
        for first, length, count in zip(corner, self._chunk, self._grid, strict=True):
            place = place * count + first // length
        return place


def _unshuffled(content: Any, item_bytes: int) -> np.ndarray:
    """The bytes of numbers of which first all first bytes are stored, then all second ones, and so on."""
    return np.ascontiguousarray(np.frombuffer(content, np.uint8).reshape(item_bytes, -1).T).reshape(-1)


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


def _file_number(item: Any) -> int:
    """The library's number of the file that an object lies in."""
    return h5py.h5o.get_info(item.id).fileno


def _checked_sources(virtual: Any, path: str) -> dict[str, list[Any]]:
    """The identities of the files whose numbers a virtual data set shows, which are opened only if one has changed.

    Args:
        virtual: the data set.
        path: path of its file.

    Raises:
        UserError: a file or a data set is missing.
    """
    key = (*identity(path), virtual.name)
    known = _CHECKED.get(key)
    if known is None or not _are_unchanged(known):
        known = _CHECKED[key] = {source: identity(source) for source in _sources_of(virtual, path)}
    return known


def _are_unchanged(known: dict[str, list[Any]]) -> bool:
    try:
        return all(identity(path) == each for path, each in known.items())
    except OSError:
        return False


def _sources_of(virtual: Any, path: str) -> Iterator[str]:
    """The files whose numbers a virtual data set shows.

    Args:
        virtual: the data set.
        path: path of its file.

    Raises:
        UserError: a file or a data set is missing: the library would give fill values in its place, without an error.
    """
    for name, inside in dict.fromkeys(each[1:3] for each in virtual.virtual_sources()):
        if "%b" in name + inside:
            continue  # stands for any number of files or data sets; the first missing one ends the data set
        source = next((each for each in _places_of(name, path) if os.path.isfile(each)), None)
        with contextlib.ExitStack() as stack:
            file: Any = {}
            if source is not None:
                file = virtual.file if name == "." else stack.enter_context(_opened(source))
            if source is None or inside not in file:
                what = f"data set {inside} in the file {name}" if source else f"file {name}"
                raise UserError(
                    f"--data {path}:{virtual.name.lstrip('/')}: a virtual data set, whose {what} is missing; put it "
                    "back: fill values would be read in its place"
                )
            yield source
            if (part := file[inside]).is_virtual:
                yield from _sources_of(part, source)


def _places_of(name: str, path: str) -> Iterator[str]:
    """Where the library looks for a file that a virtual data set of the file `path` names."""
    if name == ".":
        yield path
        return
    if os.path.isabs(name):
        yield name
        name = os.path.basename(name)
    folder = os.path.dirname(os.path.abspath(path))
    for prefix in filter(None, os.environ.get("HDF5_VDS_PREFIX", "").split(":")):
        yield os.path.join(prefix.replace("${ORIGIN}", folder), name)
    yield os.path.join(folder, name)
    yield name
    yield os.path.join(os.path.dirname(os.path.realpath(path)), name)


def _texts(attribute: Any) -> Sequence[str]:
    """A text, or several, of an attribute; empty if it is missing or holds no texts."""
    found = np.atleast_1d(np.asarray(attribute, object)).tolist()
    texts = [each.decode(errors="replace") if isinstance(each, bytes) else each for each in found]
    return texts if all(isinstance(each, str) for each in texts) else ()


def _reasons(name: str) -> contextlib.AbstractContextManager[None]:
    return named_errors(name, "as HDF5", "a whole file, written by h5py or the like")
