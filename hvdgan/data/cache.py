"""Images that are decoded once: kept in memory, or in a file of the run folder."""

import hashlib
import logging
import os
import threading
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import PIL

from hvdgan import __version__
from hvdgan.cli.errors import UserError
from hvdgan.cli.shared_errors import ALONE, Peers
from hvdgan.data.source import Source, SourceWrapper

_DIGEST_BYTES = 16
_PART_OF_MEMORY = 0.8
"""of what is free, so that the training still finds room"""

_CGROUPS = Path("/sys/fs/cgroup")

logger = logging.getLogger(__name__)


def cached(source: Source, kind: Literal["none", "memory", "disk"], folder: Path, peers: Peers = ALONE) -> Source:
    """A source whose images are decoded once by each rank, or once on each host.

    In memory each rank keeps what it has read, in the end all images, since its slices differ in every epoch. On the
    disk the ranks of a host share one file, in which a later run of the same folder finds the images again.

    Args:
        source: the images; those of a source that holds them in memory already are not kept twice.
        kind: what `--pipeline.cache` says.
        folder: receives the file, when the first image is read.
        peers: the ranks, each of which calls this.

    Raises:
        UserError: not all images fit into the memory of a host, on any rank.
    """
    if kind == "none" or source.in_memory:
        return source
    if kind == "disk":
        return _Cached(source, _OnDisk(source, folder / f"{os.uname().nodename}.images"))
    for complaint in peers.gather(_complaint(source, peers), "memory for the cache"):
        if complaint:
            raise UserError(complaint)
    return _Cached(source, _InMemory(source))


class _Store(Protocol):
    def get(self, index: int) -> np.ndarray | None: ...

    def get_all(self, indices: np.ndarray) -> np.ndarray | None:
        """In one go, where that is possible and all are there."""
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
        return np.stack(images)  # type: ignore[arg-type]  # none is missing any more


class _InMemory(_Store):
    """An array of which the system gives the memory only where an image has been written."""

    def __init__(self, source: Source) -> None:
        self._images = np.empty((len(source), *source.shape), np.uint8)
        self._there = np.zeros(len(source), bool)

    def get(self, index: int) -> np.ndarray | None:
        return self._images[index] if self._there[index] else None

    def get_all(self, indices: np.ndarray) -> np.ndarray | None:
        return self._images[indices] if self._there[indices].all() else None

    def put(self, index: int, image: np.ndarray) -> None:
        self._images[index] = image
        self._there[index] = True  # last: another thread may look


class _OnDisk(_Store):
    """A file with a place for each image: a digest, then the pixels. What has not been written takes no room.

    The digest is keyed by what decides the pixels (data, size, versions) and by the image's number. So whatever is not
    this image, whole, counts as missing: a place never written, half a write at a crash, a flipped bit, a file of other
    data. That is also why the ranks of a host can share the file without a lock: two that write the same image write
    the same bytes. It is read and written by position, not mapped: a full disk or a shortened file is then an error
    that can be met, and no bus error.
    """

    def __init__(self, source: Source, path: Path) -> None:
        identity = f"{source.fingerprint} {source.shape} hvdgan {__version__} Pillow {PIL.__version__}"
        self._key = hashlib.sha256(identity.encode()).digest()
        self._shape = source.shape
        self._bytes = _DIGEST_BYTES + int(np.prod(source.shape))
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
        pixels = found[_DIGEST_BYTES:]
        if len(found) < self._bytes or found[:_DIGEST_BYTES] != self._digest(index, pixels):
            return None
        return np.frombuffer(pixels, np.uint8).reshape(self._shape)

    def put(self, index: int, image: np.ndarray) -> None:
        if not self._writes:
            return
        pixels = image.tobytes()
        try:
            os.pwrite(self._open(), self._digest(index, pixels) + pixels, index * self._bytes)
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
        """Training needs no cache: it says so once, and reads the images themselves from then on."""
        with self._lock:
            first, self._writes = self._writes, False
        if first:
            logger.warning("--pipeline.cache disk: %s: %s; what is not there yet is not kept", self._path, error)

    def _digest(self, index: int, pixels: bytes) -> bytes:
        person = index.to_bytes(16, "little")
        return hashlib.blake2b(pixels, digest_size=_DIGEST_BYTES, key=self._key, person=person).digest()


def _complaint(source: Source, peers: Peers) -> str | None:
    """What is wrong with keeping all images in the memory of this host; None where nothing is."""
    free = free_memory()
    needed = len(source) * int(np.prod(source.shape)) * peers.local_size
    if free is None or needed <= _PART_OF_MEMORY * free:
        return None
    return (
        f"--pipeline.cache memory: {len(source):,} images of {source.image_size} x {source.image_size} take "
        f"{needed / 1e9:.3g} GB for the {peers.local_size} rank(s) of {os.uname().nodename}, where {free / 1e9:.3g} GB "
        f"are free, and at most {_PART_OF_MEMORY:.0%} of that may be taken; expected disk or none"
    )


def free_memory() -> int | None:
    """Bytes, by the host and by the limits that a scheduler or a container sets (control groups, version 2).

    None where the system does not tell.
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        facts = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        free = 1024 * facts["MemAvailable"]
    except (OSError, KeyError, ValueError, IndexError):
        return None
    return min([free, *_left_in_groups()])


def _left_in_groups() -> list[int]:
    """Of each group this process is in that has a limit, from its own upwards."""
    try:
        groups = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    own = next((line[3:] for line in groups if line.startswith("0::")), "/").strip("/")
    left = []
    for group in [_CGROUPS / own, *(_CGROUPS / own).parents]:
        try:
            limit = int((group / "memory.max").read_text())
            taken = int((group / "memory.current").read_text())
            statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):  # no such file, or "max": no limit
            continue
        # Pages of files that nobody has used for long count as taken, and are given back when asked for.
        left.append(max(0, limit - taken + int(statistics.get("inactive_file", 0))))
    return left
