"""Writes one shard, so that after a crash at any moment it is either finished or can be made again.

A shard is made in two halves, since duplicates are searched in all shards between them. The first half writes the
records and facts about them to the folder `.work`. The second half removes the duplicates, renames the records, and
writes their index and, last of all, the file with the shard's facts, which marks the shard as finished. The bytes of a
shard depend on the images and the settings only, not on the number of processes.
"""

import contextlib
import dataclasses
import errno
import hashlib
import io
import json
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hvdgan.cli.errors import RunError
from hvdgan.cli.files.pictures import picture
from hvdgan.cli.files.replacing import flush, whole_file
from hvdgan.data.base.source import BadImage, Unreadable, printable
from hvdgan.data.formats.manifest import WORK, sha256_of
from hvdgan.data.formats.tf_example import example
from hvdgan.data.formats.tfrecord import framed, payload_of
from hvdgan.data.packing.archives import GONE
from hvdgan.data.packing.array_part import SamplesPart, records_of, without_duplicates
from hvdgan.data.packing.parts import Part

Encoding = Literal["png", "jpeg", "raw", "zlib", "auto"]
_RECORDS = ".tfrecord"
_OF_THE_FILE = (None, errno.EACCES, errno.EPERM)
"""errors for which one image is left out: Pillow's own (None) and missing permissions"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Packing:
    """The encoding and the choice of the images.

    encoding: png, jpeg or raw for pictures; raw or zlib for arrays, and auto until a sample is looked at; None: the
        default of the data, png or auto.
    min_size: minimum length of the shorter side in pixels; smaller images are left out.
    dedup: True if only the first of several images with equal pixels, or of samples with equal numbers, is kept.
    """

    encoding: Encoding | None
    min_size: int
    dedup: bool


def pack(folder: Path, name: str, part: Part | SamplesPart, packing: Packing, tick: Callable[[], None]) -> None:
    """Make the first half of a shard, and the second one unless duplicates are to be removed.

    Args:
        folder: DST.
        name: name of the shard.
        part: images or samples of the shard.
        packing: encoding and choice of the images.
        tick: function that is called after each image; it may raise an error.

    Raises:
        RunError: the shard cannot be written, or the disk has failed.
    """
    if is_finished(folder, name):
        for _ in range(len(part)):
            tick()
        return
    with named_write_errors(folder / f"{name}{_RECORDS}"):
        if not _is_half_made(folder, name):
            _pack(folder / WORK, name, part, packing, tick)
        if not packing.dedup:
            finish(folder, name, {})


def is_finished(folder: Path, name: str) -> bool:
    """Check that a shard is finished."""
    try:
        facts = json.loads((folder / f"{name}.json").read_text())
        return os.stat(folder / f"{name}{_RECORDS}").st_size == facts["bytes"] and (folder / f"{name}.idx").exists()
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return False


def read_half(folder: Path, name: str) -> dict[str, Any]:
    """The facts about a shard's records that the first half has written."""
    return json.loads((folder / WORK / f"{name}.json").read_text())


def finish(folder: Path, name: str, duplicates: dict[int, str], tick: Callable[[], None] = lambda: None) -> None:
    """Make the second half of a shard.

    Args:
        folder: DST.
        name: name of the shard.
        duplicates: numbers of the records to leave out, each with the name of the image that it equals.
        tick: function that is called at the end.

    Raises:
        RunError: the shard cannot be written.
    """
    if is_finished(folder, name):
        return tick()
    with named_write_errors(folder / f"{name}{_RECORDS}"):
        half = read_half(folder, name)
        source = folder / WORK / f"{name}{_RECORDS}"
        sha256 = half["sha256"]
        kept = [number for number in range(len(half["names"])) if number not in duplicates]
        lengths = [half["lengths"][number] for number in kept]
        if duplicates:
            target = source.with_suffix(".kept")
            sha256 = _copy_without(source, target, half["lengths"], duplicates)
            source = target
            if "statistics" in half:
                without_duplicates(source, lengths, half, duplicates)
        facts: dict[str, Any] = {
            "records": len(kept),
            "bytes": sum(lengths),
            "sha256": sha256,
            **_sums(half, kept),
            "names": [half["names"][number] for number in kept],
            "failures": half["failures"],
            "small": half["small"],
            "duplicates": [[half["names"][number], duplicates[number]] for number in sorted(duplicates)],
        }
        facts |= {key: half[key] for key in ("statistics", "missing") if key in half}
        facts |= {
            key: [half[key][number] for number in kept] for key in ("labels", "keys", "conditions") if key in half
        }
        write_whole(folder / f"{name}.idx", _index(lengths))
        source.rename(folder / f"{name}{_RECORDS}")
        write_whole(folder / f"{name}.json", to_json(facts))
    tick()


def _sums(half: dict[str, Any], kept: list[int]) -> dict[str, Any]:
    """The sums of the pixels of pictures, by channel."""
    if "sums" not in half:
        return {}
    sums = [half["sums"][number] for number in kept]
    return {"sums": np.sum(sums, axis=0, dtype=np.int64).tolist() if kept else []}


def to_json(values: Any) -> bytes:
    """JSON of some values: equal values give equal bytes, and names that are not UTF-8 are escaped."""
    return (json.dumps(values, indent=1) + "\n").encode("ascii")


def write_whole(path: Path, content: bytes, *, lasting: bool = True) -> None:
    """Write a file under another name in `.work`, and rename it.

    Args:
        path: path of the file.
        content: content of the file.
        lasting: True if the file must survive a power failure; flushing it to the disk takes as long as many images.
    """
    partial = path.parent / WORK / f"{path.name}.partial" if path.parent.name != WORK else path.with_suffix(".partial")
    with whole_file(path, partial, lasting=lasting):
        partial.write_bytes(content)


@contextlib.contextmanager
def named_write_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into a RunError that names the file."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{path} cannot be written: {error}; free space or correct permissions, then give the same command again"
        ) from error


def encoded(pixels: np.ndarray, encoding: Encoding) -> bytes:
    """The bytes of an image in a record.

    Args:
        pixels: pixels of the image, uint8 (H, W, C), C 1 or 3.
        encoding: png or raw, which are exact, or jpeg with quality 95 and colours at full resolution.
    """
    if encoding == "raw":
        return pixels.tobytes()
    image = picture(pixels)
    file = io.BytesIO()
    if encoding == "png":
        image.save(file, "PNG")
    else:
        image.save(file, "JPEG", quality=95, subsampling=0)
    return file.getvalue()


def record_of(part: Part, number: int, pixels: np.ndarray, encoding: Encoding) -> bytes:
    """The record of an image, with the feature names of TensorFlow's own data sets."""
    height, width = pixels.shape[:2]
    channels = pixels.shape[-1] // (2 if part.pairs else 1)
    features: dict[str, bytes | int] = {
        "image/encoded": encoded(pixels[..., -channels:], encoding),
        "image/format": encoding.encode(),
        "image/height": height,
        "image/width": width,
        "image/channels": channels,
        "image/filename": os.fsencode(part.names[number]),
    }
    if part.pairs:
        features["input/encoded"] = encoded(pixels[..., :channels], encoding)
    if part.labels is not None:
        features["image/class/label"] = part.labels[number]
    return framed(example(features))


def _pack(work: Path, name: str, part: Part | SamplesPart, packing: Packing, tick: Callable[[], None]) -> None:
    half: dict[str, Any] = {key: [] for key in ("names", "lengths", "failures", "small")}
    records = _of_samples(part, packing, half) if isinstance(part, SamplesPart) else _of_images(part, packing, half)
    digest = hashlib.sha256()
    path = work / f"{name}{_RECORDS}"
    with whole_file(path, work / f"{name}.partial", lasting=True) as partial, partial.open("wb") as file:
        for record in records:
            file.write(record)
            digest.update(record)
            tick()
    half["sha256"] = digest.hexdigest()
    write_whole(work / f"{name}.json", to_json(half), lasting=False)  # not flushed: a file cut short counts as missing


def _of_samples(part: SamplesPart, packing: Packing, half: dict[str, Any]) -> Iterator[bytes]:
    half["missing"] = []
    return records_of(part, "zlib" if packing.encoding == "zlib" else "raw", half, dedup=packing.dedup)


def _of_images(part: Part, packing: Packing, half: dict[str, Any]) -> Iterator[bytes]:
    """The record of each image; no bytes for an image that is left out."""
    half |= {"sums": [], "digests": []}
    half |= {key: [] for key in ("labels", "conditions") if getattr(part, key) is not None}
    return (_record(part, number, packing, half) for number in range(len(part)))


def _record(part: Part, number: int, packing: Packing, half: dict[str, Any]) -> bytes:
    """The record of an image, whose facts are added to `half`; no bytes if the image is left out."""
    name = part.names[number]
    try:
        if packing.min_size and (side := part.smallest_side(number)) < packing.min_size:
            half["small"].append([name, side])
            return b""
        pixels = part.read(number)
    except BadImage as bad:
        _refuse_if_gone(part, bad)
        half["failures"].append([printable(name), bad.bad_file.reason])
        return b""
    except Unreadable as error:
        raise RunError(f"{part.where}: {error}") from error
    record = record_of(part, number, pixels, packing.encoding or "png")
    half["names"].append(name)
    half["lengths"].append(len(record))
    half["sums"].append(pixels.sum(axis=(0, 1), dtype=np.int64).tolist())
    half["digests"].append(hashlib.sha256(pixels.tobytes()).hexdigest()[:32])
    if part.labels is not None:
        half["labels"].append(part.labels[number])
    if part.conditions is not None:
        half["conditions"].append(part.conditions[number])
    if (key := part.key(number)) is not None:
        half.setdefault("keys", []).append(key.hex())
    return record


def _refuse_if_gone(part: Part, bad: BadImage) -> None:
    """Raise an error if a listed file has disappeared: as a broken image it would be left out for good."""
    cause = bad.__cause__
    if isinstance(cause, OSError) and cause.errno not in _OF_THE_FILE:
        raise RunError(f"{part.where}: {bad}; {GONE}")


def _is_half_made(folder: Path, name: str) -> bool:
    """Check that the first half is finished; its records may already have their final name."""
    try:
        half = read_half(folder, name)
    except (FileNotFoundError, ValueError):
        return False
    records = folder / WORK / f"{name}{_RECORDS}"
    return (
        records.exists() and os.stat(records).st_size == sum(half["lengths"]) and sha256_of(records) == half["sha256"]
    )


def _copy_without(source: Path, target: Path, lengths: list[int], dropped: Collection[int]) -> str:
    """Copy the records of a shard, except for some; returns the SHA-256 of the copy."""
    digest = hashlib.sha256()
    with source.open("rb") as records, target.open("wb") as file:
        for number, length in enumerate(lengths):
            record = records.read(length)
            payload_of(record)  # raises an error if it is damaged
            if number not in dropped:
                file.write(record)
                digest.update(record)
    flush(target)
    return digest.hexdigest()


def _index(lengths: list[int]) -> bytes:
    """The index: a line for each record with its offset and its length, including the frame."""
    offsets = np.cumsum([0, *lengths])[:-1]
    return "".join(f"{offset} {length}\n" for offset, length in zip(offsets, lengths, strict=True)).encode()
