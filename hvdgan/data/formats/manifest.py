"""The folder of packed shards that hvdgan.prepare makes: its files, its manifest, and whether the two agree.

manifest.json                          what the folder holds, with the size and SHA-256 of every other file
images-00000-of-00064.tfrecord         records: tf.train.Example, see hvdgan.data.packing.shard_writer
images-00000-of-00064.idx              a line `offset length` per record, as NVIDIA's tfrecord2idx writes it
images-00000-of-00064.json             the shard's images by name, and what was left out, by name and reason
labels.npy                             int32, one per image, where there are classes
prepare.json                           how it was made; there from the start
.work/                                 while it is being made
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
FORMAT_VERSION = 1
_BLOCK = 2**20


def shard_name(number: int, count: int) -> str:
    """Of a shard's files, without the ending."""
    return f"images-{number:05d}-of-{count:05d}"


def is_prepared(folder: Path) -> bool:
    """Whether hvdgan.prepare made this folder, or began to."""
    return any(_format_of(folder / name) == FORMAT for name in (SETTINGS, MANIFEST))


def read_manifest(folder: Path) -> dict[str, Any]:
    """What the manifest says.

    Raises:
        UserError: there is none, it cannot be read, or another version of the format wrote it.
    """
    path = folder / MANIFEST
    if not path.exists():
        raise UserError(
            f"{folder}: not finished: it has no {MANIFEST}; the hvdgan.prepare command that began it goes on"
        )
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        version = manifest["format_version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: cannot be read: {error!r}; restore it, or prepare the data again") from error
    if version != FORMAT_VERSION:
        raise UserError(f"{path}: format version {version}; this hvdgan {__version__} reads version {FORMAT_VERSION}")
    needed = {"count", "image_size", "channels", "encoding", "pairs", "class_names", "files", "shards"}
    if missing := sorted(needed - manifest.keys()):
        raise UserError(f"{path}: damaged: it lacks {', '.join(missing)}; restore it, or prepare the data again")
    if manifest.pop("checksum", None) != _checksum(manifest):
        raise UserError(f"{path}: damaged: its checksum does not match; restore it, or prepare the data again")
    return manifest


def sealed(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest with a checksum of itself: a class's name or a count is not to be found in any other file."""
    return {**manifest, "checksum": _checksum(manifest)}


def disagreements(folder: Path, manifest: dict[str, Any]) -> Iterator[str]:
    """What the folder's files are that the manifest says otherwise, by their names and sizes alone."""
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
    """Refuse a folder whose files are not those of its manifest, by their names and sizes.

    Raises:
        UserError: it names the first difference.
    """
    for found in disagreements(folder, manifest):
        raise UserError(
            f"{folder}: the manifest does not match the files: {found}; restore it, or prepare the data again"
        )


def read_verified(folder: Path, manifest: dict[str, Any], name: str) -> bytes:
    """A small file that the manifest names, whole.

    Raises:
        UserError: it is not what was written.
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
    """In hex, of a file of any size."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _checksum(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode("ascii")).hexdigest()


def _format_of(path: Path) -> Any:
    """The format that a JSON file says it is of; None for everything else."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return values.get("format") if isinstance(values, dict) else None
