"""Reads and verifies single records of packed shards by their index."""

import functools
import hashlib
import io
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hvdgan.cli.errors import RunError, UserError
from hvdgan.cli.shared_errors import ALONE, Peers, on_all
from hvdgan.data.base.scan_cache import identity
from hvdgan.data.base.sharing import pack, share_out, unpack
from hvdgan.data.base.source import printable
from hvdgan.data.formats.manifest import LABELS, read_manifest, read_verified, refuse_if_other
from hvdgan.data.formats.tfrecord import OPEN_FILES, RecordFile, payload_of


class ShardReader:
    """Reads records; safe to call from several threads.

    Opening checks the sizes of the shards. A record is verified when it is read.

    manifest: manifest of the folder.

    Args:
        folder: folder that hvdgan.prepare made.
        peers: the ranks, each of which reads the indexes of some shards.

    Raises:
        UserError: the folder is not finished, or its manifest does not match its files.
        RunError: the ranks do not see the same shards.
    """

    def __init__(self, folder: Path, peers: Peers = ALONE) -> None:
        self.manifest = on_all(lambda: _checked_manifest(folder), peers, f"--data {folder}: its manifest")
        self._folder = folder
        shards = self.manifest["shards"]
        self._names = [shard["name"] for shard in shards]
        # The number of each shard's first record, and the number of all records.
        self._firsts = np.cumsum([0, *(shard["records"] for shard in shards)])
        indices = self._indices(shards, peers)
        self._offsets = np.concatenate([index[:, 0] for index in indices])
        self._lengths = np.concatenate([index[:, 1] for index in indices])
        self._opened = functools.lru_cache(maxsize=OPEN_FILES)(self._open)
        self._facts = functools.lru_cache(maxsize=2)(self._read_facts)  # keys are read in their order

    def __len__(self) -> int:
        return len(self._offsets)

    def read(self, indices: np.ndarray) -> list[bytes]:
        """Serialized tf.train.Examples.

        Args:
            indices: numbers of the records, int64 (B,).

        Raises:
            RunError: a record cannot be read or is damaged; the message names file and record.
        """
        records: list[bytes] = []
        self.for_each(indices, lambda _, file, *place: records.append(payload_of(file.read(*place))))
        return records

    def for_each(self, indices: np.ndarray, work: Callable[[int, RecordFile, int, int], None]) -> None:
        """Call a function for each of some records, in their order.

        Args:
            indices: numbers of the records, int64 (B,).
            work: function of a record's place among these, its shard, and its offset and length there, with the frame.

        Raises:
            RunError: the function has raised an OSError or a ValueError; the message names file and record.
        """
        # This runs for every image under the GIL, so every microsecond counts.
        shards = (np.searchsorted(self._firsts, indices, side="right") - 1).tolist()
        offsets, lengths = self._offsets[indices].tolist(), self._lengths[indices].tolist()
        for place, (shard, offset, length) in enumerate(zip(shards, offsets, lengths, strict=True)):
            try:
                # If two threads open a shard at once, only one of the two files stays open.
                work(place, self._opened(shard), offset, length)
            except OSError as error:
                raise self.failure(int(indices[place]), str(error.strerror)) from error
            except ValueError as error:
                raise self.failure(int(indices[place]), str(error)) from error

    def failure(self, index: int, reason: str) -> RunError:
        """The error for a record, with the names of file and image."""
        shard, place = self._place(index)
        try:
            image = f" ({printable(self._facts(shard)['names'][place])})"
        except (OSError, ValueError, UserError):
            image = ""  # damaged, too
        path = self._folder / f"{self._names[shard]}.tfrecord"
        return RunError(
            f"--data {self._folder}: {path.name}, record {place}{image}: {reason}; "
            f"restore the file, then resume; python -m hvdgan.prepare --verify {self._folder} checks all records"
        )

    def key(self, index: int) -> bytes:
        """Bytes that identify an image on every machine: its name in a folder or archive, or its digest in an array."""
        shard, place = self._place(index)
        facts = self._facts(shard)
        return bytes.fromhex(facts["keys"][place]) if "keys" in facts else os.fsencode(facts["names"][place])

    def digest(self, index: int) -> bytes:
        """The SHA-256 of the image's key in the packed data, so that the same images are held out."""
        shard, _ = self._place(index)
        key = self.key(index)
        return key if "keys" in self._facts(shard) else hashlib.sha256(key).digest()

    def stamp(self) -> list[Any]:
        """Facts that change when a file with keys changes.

        Raises:
            OSError: a file is missing.
        """
        names = [f"{name}.json" for name in self._names]
        return [[self.manifest["files"][name]["sha256"], *identity(os.fspath(self._folder / name))] for name in names]

    def labels(self) -> np.ndarray | None:
        """Classes of the images, int32 (N,), or None.

        Raises:
            UserError: their file is damaged.
        """
        return self.array(LABELS)

    def array(self, name: str) -> np.ndarray | None:
        """The array in an .npy file of the folder, or None if there is no such file.

        Raises:
            UserError: the file is damaged.
        """
        if name not in self.manifest["files"]:
            return None
        return np.load(io.BytesIO(read_verified(self._folder, self.manifest, name)), allow_pickle=False)

    def checksums(self) -> list[bytes]:
        """SHA-256 of each shard, from the manifest."""
        return [self.manifest["files"][f"{name}.tfrecord"]["sha256"].encode() for name in self._names]

    def _indices(self, shards: Sequence[dict[str, Any]], peers: Peers) -> list[np.ndarray]:
        """The index of each shard; every rank reads some of them."""
        checksums = [self.manifest["files"][f"{name}.idx"]["sha256"] for name in self._names]
        items = [f"{number} {checksum}" for number, checksum in enumerate(checksums)]

        def look(some: Sequence[str]) -> list[str]:
            return [pack(self._index(shards[int(item.split()[0])])) for item in some]

        found = share_out(items, look, peers, f"--data {self._folder}")
        return [unpack(each, np.int64).reshape(-1, 2) for each in found]

    def _index(self, shard: dict[str, Any]) -> np.ndarray:
        """Offset and length of each record, int64 (N, 2)."""
        text = read_verified(self._folder, self.manifest, f"{shard['name']}.idx")
        index = np.fromstring(text, np.int64, sep=" ").reshape(-1, 2)
        if len(index) != shard["records"]:
            raise UserError(f"{self._folder}: {shard['name']}.idx has {len(index)} lines; expected {shard['records']}")
        return index

    def _place(self, index: int) -> tuple[int, int]:
        """The number of the shard, and of the record within it."""
        shard = int(np.searchsorted(self._firsts, index, side="right")) - 1
        return shard, index - int(self._firsts[shard])

    def _open(self, shard: int) -> RecordFile:
        return RecordFile(os.fspath(self._folder / f"{self._names[shard]}.tfrecord"))

    def _read_facts(self, shard: int) -> dict[str, Any]:
        return json.loads(read_verified(self._folder, self.manifest, f"{self._names[shard]}.json"))


def _checked_manifest(folder: Path) -> dict[str, Any]:
    manifest = read_manifest(folder)
    refuse_if_other(folder, manifest)
    return manifest
