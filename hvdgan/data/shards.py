"""Images in packed shards, as hvdgan.prepare makes them."""

import functools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hvdgan.data.base import Source, fingerprint, printable
from hvdgan.data.images import to_pixels
from hvdgan.data.manifest import LABELS, read_manifest, read_verified, refuse_if_other
from hvdgan.data.records import payload_of
from hvdgan.errors import RunError, UserError

_OPEN_FILES = 256


class ShardSource(Source):
    """The images of a folder that hvdgan.prepare made.

    A record is read by its offset, verified and decoded when it is asked for; in memory there are 16 bytes per image,
    and its label. Images of another size or number of channels than asked for are converted as those of a folder are.

    Args:
        name: what `--data` says, the folder.
        image_size: in pixels.
        channels: 1, 3, or None for what the shards hold.
        paired: whether each image must come with an input.

    Raises:
        UserError: the manifest does not match the files, or the shards do not hold what is asked for.
    """

    batched = prepared = True

    def __init__(self, name: str, *, image_size: int, channels: int | None, paired: bool = False) -> None:
        folder = Path(name)
        try:
            manifest = read_manifest(folder)
            refuse_if_other(folder, manifest)
        except UserError as error:
            raise UserError(f"--data {error}") from error
        _check_pairs(name, bool(manifest["pairs"]), paired)
        self._folder = folder
        self._manifest = manifest
        self._shards = [shard["name"] for shard in manifest["shards"]]
        self._firsts = np.cumsum([0, *(shard["records"] for shard in manifest["shards"])])
        """the index of each shard's first record, and of the one after the last"""
        indices = [self._read_index(shard) for shard in manifest["shards"]]
        self._offsets = np.concatenate([index[:, 0] for index in indices])
        self._lengths = np.concatenate([index[:, 1] for index in indices])
        self._stored = (manifest["image_size"], manifest["channels"])
        # A file that is dropped is closed with its last reader: never under a thread that reads from it.
        self._opened = functools.lru_cache(maxsize=_OPEN_FILES)(self._open)
        self._facts_of = functools.lru_cache(maxsize=2)(self._facts)  # keys are asked for in their order
        from hvdgan.data.decoding import decoder  # TensorFlow; hvdgan.prepare does without

        self._decode = decoder(manifest["encoding"], *self._stored, paired)
        channels = channels or manifest["channels"]
        sums = [manifest["files"][f"{shard}.tfrecord"]["sha256"].encode() for shard in self._shards]
        super().__init__(
            name=name,
            image_size=image_size,
            channels=channels,
            fingerprint=fingerprint(image_size, channels, [b"pairs" if paired else b"images", *sums]),
            labels=self._read_labels(),
            class_names=manifest["class_names"],
            paired=paired,
        )

    def __len__(self) -> int:
        return len(self._offsets)

    def fetch(self, index: int) -> np.ndarray:
        return self.fetch_batch(np.array([index]))[0]

    def fetch_batch(self, indices: np.ndarray) -> np.ndarray:
        """As of any source.

        Raises:
            RunError: a record cannot be read, or is not what was written; it names the file and the record.
        """
        images = self._decoded([int(index) for index in indices])
        if self._stored == (self.image_size, self.channels):
            return images
        return np.stack([self._converted(image) for image in images])

    def key(self, index: int) -> bytes:
        shard, place = self._place(index)
        facts = self._facts_of(shard)
        return bytes.fromhex(facts["keys"][place]) if "keys" in facts else os.fsencode(facts["names"][place])

    def _read_index(self, shard: dict[str, Any]) -> np.ndarray:
        """Offset and length of each record, int64 (N, 2)."""
        text = read_verified(self._folder, self._manifest, f"{shard['name']}.idx")
        index = np.fromstring(text, np.int64, sep=" ").reshape(-1, 2)
        if len(index) != shard["records"]:
            raise UserError(f"{self._folder}: {shard['name']}.idx has {len(index)} lines; expected {shard['records']}")
        return index

    def _read_labels(self) -> np.ndarray | None:
        if LABELS not in self._manifest["files"]:
            return None
        read_verified(self._folder, self._manifest, LABELS)
        return np.load(self._folder / LABELS, allow_pickle=False)

    def _place(self, index: int) -> tuple[int, int]:
        """The number of the shard, and of the record within it."""
        shard = int(np.searchsorted(self._firsts, index, side="right")) - 1
        return shard, index - int(self._firsts[shard])

    def _decoded(self, indices: list[int]) -> np.ndarray:
        records = [self._record(index) for index in indices]
        try:
            return self._decode(records)
        except Exception as error:
            if len(indices) > 1:
                for index in indices:
                    self._decoded([index])
            raise self._failure(indices[0], f"cannot be decoded: {' '.join(str(error).split())}") from error

    def _record(self, index: int) -> bytes:
        shard, _ = self._place(index)
        try:
            file = self._opened(shard)
            length = int(self._lengths[index])
            record = os.pread(file.descriptor, length, int(self._offsets[index]))
            if len(record) < length:
                raise ValueError(f"the file ends {length - len(record):,} bytes before the record does")
            return payload_of(record)
        except OSError as error:
            raise self._failure(index, str(error.strerror)) from error
        except ValueError as error:
            raise self._failure(index, str(error)) from error

    def _failure(self, index: int, reason: str) -> RunError:
        shard, place = self._place(index)
        try:
            image = f" ({printable(self._facts_of(shard)['names'][place])})"
        except (OSError, ValueError, UserError):
            image = ""
        path = self._folder / f"{self._shards[shard]}.tfrecord"
        return RunError(
            f"--data {self.name}: {path}, record {place}{image}: {reason}; "
            f"restore the file, then resume; python -m hvdgan.prepare --verify {self.name} looks at all"
        )

    def _converted(self, image: np.ndarray) -> np.ndarray:
        sides = np.split(image, 2, axis=-1) if self.paired else [image]
        pictures = [Image.fromarray(side[..., 0] if side.shape[-1] == 1 else side) for side in sides]
        return np.concatenate([to_pixels(picture, self.image_size, self.channels) for picture in pictures], axis=-1)

    def _open(self, shard: int) -> "_Descriptor":
        return _Descriptor(self._folder / f"{self._shards[shard]}.tfrecord")

    def _facts(self, shard: int) -> dict[str, Any]:
        return json.loads(read_verified(self._folder, self._manifest, f"{self._shards[shard]}.json"))


class _Descriptor:
    """A file open for reading, closed when nothing refers to it any more."""

    def __init__(self, path: Path) -> None:
        self.descriptor = -1
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


def _check_pairs(name: str, stored: bool, asked: bool) -> None:
    if stored and not asked:
        raise UserError(f"--data {name}: its shards hold pairs, and this recipe takes single images")
    if asked and not stored:
        raise UserError(
            f"--data {name}: its shards hold single images, and this recipe takes pairs; "
            "prepare them with python -m hvdgan.prepare --pairs"
        )
