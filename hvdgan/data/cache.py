"""Caches decoded images in memory, or in a file of the run folder."""

import hashlib
import json
import logging
import os
import threading
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import PIL

from hvdgan import __version__
from hvdgan.cli import hosts
from hvdgan.cli.errors import UserError
from hvdgan.cli.shared_errors import ALONE, Peers, from_root, on_all
from hvdgan.data.base.source import Source, SourceWrapper

_DIGEST_BYTES = 16
_CHECKS = 2
"""version of the checks that samples have passed before they are kept; 2: numbers that files declare to be missing"""
_MEMORY_FRACTION = 0.8
"""fraction of the free memory that the cache may take; the run needs the rest"""

logger = logging.getLogger(__name__)


def cached(source: Source, kind: Literal["none", "memory", "disk"], folder: Path, peers: Peers = ALONE) -> Source:
    """A source whose images are decoded once by each rank, or once on each host.

    In memory, each rank keeps the images that it has read. These are all images in the end, since a rank's slices
    differ in every epoch. On the disk, the ranks of a host share one file, which a later run in the same folder reuses.

    Args:
        source: the images; a source that holds them in memory is returned as it is.
        kind: value of `--pipeline.cache`.
        folder: folder for the file, which is made when the first image is read.
        peers: the ranks; each calls this.

    Raises:
        UserError: the images do not fit into the memory of a host; raised on every rank.
        RunError: a file of the data is missing; raised on every rank.
    """
    if kind == "none" or source.in_memory:
        return source
    if kind == "disk":
        stamp = from_root(source.stamp, peers, "times of the data's files")
        return _Cached(source, _OnDisk(source, stamp, folder / f"{os.uname().nodename}.images"))
    on_all(lambda: _check_memory(source, peers), peers, "memory for the cache")
    return _Cached(source, _InMemory(source))


class _Store(Protocol):
    def get(self, index: int) -> np.ndarray | None: ...

    def get_all(self, indices: np.ndarray) -> np.ndarray | None:
        """All of them in one call; None if one is missing, or if the store has no such call."""
        return None

    def put(self, index: int, image: np.ndarray) -> None: ...


class _Cached(SourceWrapper):
    """Another source's images, each fetched from it once."""

    def __init__(self, source: Source, store: _Store) -> None:
        super().__init__(source)
        self._store = store

    def fetch_batch(self, indices: np.ndarray) -> np.ndarray:
        if (together := self._store.get_all(indices)) is not None:
            return together
        images = [self._store.get(int(index)) for index in indices]
        missing = [place for place, image in enumerate(images) if image is None]
        if missing:
            for place, image in zip(missing, self._source.fetch_batch(indices[missing]), strict=True):
                self._store.put(int(indices[place]), image)
                images[place] = image
        return np.stack(images)  # type: ignore[arg-type]  # none is None by now


class _InMemory(_Store):
    """An array in memory; the system provides a page only when an image is written to it."""

    def __init__(self, source: Source) -> None:
        self._images = np.empty((len(source), *source.record_shape), source.dtype)
        self._there = np.zeros(len(source), bool)

    def get(self, index: int) -> np.ndarray | None:
        return self._images[index] if self._there[index] else None

    def get_all(self, indices: np.ndarray) -> np.ndarray | None:
        return self._images[indices] if self._there[indices].all() else None

    def put(self, index: int, image: np.ndarray) -> None:
        self._images[index] = image
        self._there[index] = True  # last, since other threads read


class _OnDisk(_Store):
    """A sparse file with a place for each sample: a digest, then its numbers.

    The digest is keyed by the data with the times of its files, the size, the versions of the software and the image's
    number. A place without a matching digest counts as missing: it was never written, was cut short by a crash, is
    damaged, or belongs to other data or to files that were written again since. The ranks of a host therefore share the
    file without a lock: two that write the same image write the same bytes. The file is read and written by position,
    not mapped, since a full disk or a truncated file would then raise a bus error and not an OSError.
    """

    def __init__(self, source: Source, stamp: list[Any] | None, path: Path) -> None:
        software = f"hvdgan {__version__} Pillow {PIL.__version__}"
        identity = json.dumps([source.fingerprint, stamp, source.record_shape, software, _CHECKS])
        self._key = hashlib.sha256(identity.encode()).digest()
        self._shape, self._dtype = source.record_shape, source.dtype
        self._bytes = _DIGEST_BYTES + _bytes_of(source)
        self._path = path
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._writes = True

    def get(self, index: int) -> np.ndarray | None:
        try:
            found = os.pread(self._open(), self._bytes, index * self._bytes)
        except OSError as error:
            self._give_up(error)
            return None
        numbers = found[_DIGEST_BYTES:]
        if len(found) < self._bytes or found[:_DIGEST_BYTES] != self._digest(index, numbers):
            return None
        return np.frombuffer(numbers, self._dtype).reshape(self._shape)

    def put(self, index: int, image: np.ndarray) -> None:
        if not self._writes:
            return
        numbers = image.tobytes()
        try:
            os.pwrite(self._open(), self._digest(index, numbers) + numbers, index * self._bytes)
        except OSError as error:
            self._give_up(error)

    def __del__(self) -> None:
        if self._fd is not None:
            os.close(self._fd)

    def _open(self) -> int:
        with self._lock:
            if self._fd is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            return self._fd

    def _give_up(self, error: OSError) -> None:
        """Log a warning once and stop writing: the run can read the images themselves."""
        with self._lock:
            first, self._writes = self._writes, False
        if first:
            logger.warning("--pipeline.cache disk: %s: %s; no more images are cached", self._path, error)

    def _digest(self, index: int, numbers: bytes) -> bytes:
        person = index.to_bytes(16, "little")
        return hashlib.blake2b(numbers, digest_size=_DIGEST_BYTES, key=self._key, person=person).digest()


def _check_memory(source: Source, peers: Peers) -> None:
    """Check that all images fit into the memory of this host, or raise a UserError."""
    free = free_memory()
    needed = len(source) * _bytes_of(source) * peers.local_size
    if free is None or needed <= _MEMORY_FRACTION * free:
        return
    raise UserError(
        f"--pipeline.cache memory: {len(source):,} samples of {source.record_shape} {source.dtype} take "
        f"{needed / 1e9:.3g} GB for the {peers.local_size} rank(s) of {os.uname().nodename}, where {free / 1e9:.3g} GB "
        f"are free and at most {_MEMORY_FRACTION:.0%} of that may be used; expected disk or none"
    )


def _bytes_of(source: Source) -> int:
    return int(np.prod(source.record_shape)) * source.dtype.itemsize


def free_memory() -> int | None:
    """Bytes that this process may still take, within the limits of a scheduler or container (control groups v2).

    None if the system does not report them.
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        facts = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        free = 1024 * facts["MemAvailable"]
    except (OSError, KeyError, ValueError, IndexError):
        return None
    return min([free, *_left_in_groups()])


def _left_in_groups() -> list[int]:
    """Free bytes of each control group with a limit, from the process's own group upwards."""
    left = []
    for group in hosts.control_groups():
        try:
            limit = int((group / "memory.max").read_text())
            taken = int((group / "memory.current").read_text())
            statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):  # no such file, or "max": no limit
            continue
        # Inactive pages of files count as taken, but the kernel frees them on demand.
        left.append(max(0, limit - taken + int(statistics.get("inactive_file", 0))))
    return left
