"""Reads and checks the manifest of a folder of packed shards, as hvdgan.prepare writes it.

manifest.json                          the content of the folder, with the size and SHA-256 of every other file
images-00000-of-00064.tfrecord         records: tf.train.Example, see hvdgan.data.packing.shard_writer
images-00000-of-00064.idx              a line `offset length` per record, as NVIDIA's tfrecord2idx writes it
images-00000-of-00064.json             the names of the shard's images; names and reasons of those left out
samples-00000-of-00064.*               the same for arrays (format version 2), see hvdgan.data.formats.array_records
labels.npy                             int32, one per image, if there are classes
conditions.npy                         float64, a row per image or sample, if they are packed with conditions
constants.npy                          the fields that all samples share, if arrays are packed with some
prepare.json                           the settings, written at the start
.work/                                 unfinished files, until the folder is finished
"""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hvdgan import __version__
from hvdgan.cli.errors import UserError

MANIFEST = "manifest.json"
SETTINGS = "prepare.json"
LABELS = "labels.npy"
WORK = ".work"
FORMAT = "hvdgan shards"
CONDITIONS = "conditions.npy"
CONSTANTS = "constants.npy"
PICTURES_VERSION, ARRAYS_VERSION = 1, 2
VERSIONS = (PICTURES_VERSION, ARRAYS_VERSION)
"""format versions of a folder of pictures and of one of arrays"""
_NEEDED = {"count", "encoding", "pairs", "class_names", "files", "shards"}
_NEEDED_OF = {
    PICTURES_VERSION: {"image_size", "channels"},
    ARRAYS_VERSION: {"shape", "dtype", "input_shape", "input_dtype", "channel_names", "condition_names", "settings"},
}
_BLOCK = 2**20


def shard_name(number: int, count: int, *, of_arrays: bool = False) -> str:
    """Name of a shard's files, without the ending."""
    return f"{'samples' if of_arrays else 'images'}-{number:05d}-of-{count:05d}"


def is_prepared(folder: Path) -> bool:
    """Check that hvdgan.prepare made this folder, or began to."""
    return any(_format_of(folder / name) == FORMAT for name in (SETTINGS, MANIFEST))


def read_manifest(folder: Path) -> dict[str, Any]:
    """The verified manifest of a folder.

    Raises:
        UserError: it is missing, cannot be read, is damaged, or has another format version.
    """
    path = folder / MANIFEST
    if not path.exists():
        raise UserError(f"{folder}: not finished: it has no {MANIFEST}; the same hvdgan.prepare command resumes it")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        version = manifest["format_version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: cannot be read: {error!r}; restore it, or prepare the data again") from error
    if version not in VERSIONS:
        raise UserError(f"{path}: format version {version}; this hvdgan {__version__} reads versions 1 and 2")
    if missing := sorted((_NEEDED | _NEEDED_OF[version]) - manifest.keys()):
        raise UserError(f"{path}: damaged: it lacks {', '.join(missing)}; restore it, or prepare the data again")
    if manifest.pop("checksum", None) != _checksum(manifest):
        raise UserError(f"{path}: damaged: its checksum does not match; restore it, or prepare the data again")
    return manifest


def sealed(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest with its own checksum, which protects the facts that stand in no other file."""
    return {**manifest, "checksum": _checksum(manifest)}


def disagreements(folder: Path, manifest: dict[str, Any]) -> Iterator[str]:
    """Differences between the names and sizes of the files and those in the manifest."""
    for name, facts in manifest["files"].items():
        try:
            size = os.stat(folder / name).st_size
        except OSError as error:
            yield f"{name}: {error.strerror}"
            continue
        if size != facts["bytes"]:
            yield f"{name} has {size:,} bytes; expected {facts['bytes']:,}"
    for path in sorted(folder.glob("*.tfrecord")):
        if path.name not in manifest["files"]:
            yield f"{path.name}: the manifest does not name it"


def refuse_if_other(folder: Path, manifest: dict[str, Any]) -> None:
    """Refuse a folder if the names and sizes of its files differ from the manifest.

    Raises:
        UserError: they differ; the message names the first difference.
    """
    for found in disagreements(folder, manifest):
        raise UserError(
            f"{folder}: the manifest does not match the files: {found}; restore it, or prepare the data again"
        )


def read_verified(folder: Path, manifest: dict[str, Any], name: str) -> bytes:
    """The content of a small file, verified by the manifest.

    Raises:
        UserError: the file is missing or damaged.
    """
    try:
        content = (folder / name).read_bytes()
    except OSError as error:
        raise UserError(f"{folder / name}: {error.strerror}; restore it, or prepare the data again") from error
    if hashlib.sha256(content).hexdigest() != manifest["files"][name]["sha256"]:
        raise UserError(
            f"{folder}: the manifest does not match the files: {name} has another checksum; "
            "restore it, or prepare the data again"
        )
    return content


def sha256_of(path: Path) -> str:
    """SHA-256 of a file of any size, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _checksum(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode("ascii")).hexdigest()


def _format_of(path: Path) -> Any:
    """The value of `format` in a JSON file; None for all other files."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return values.get("format") if isinstance(values, dict) else None
