"""Verifies a folder of packed shards, down to the record."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hvdgan.data.base.parallel_map import parallel_map
from hvdgan.data.base.source import printable
from hvdgan.data.formats.manifest import disagreements, sha256_of
from hvdgan.data.formats.tfrecord import payload_of


def damages(folder: Path, manifest: dict[str, Any], threads: int) -> Iterator[str]:
    """Descriptions of the damaged files and records, a line for each.

    Args:
        folder: folder of the shards.
        manifest: manifest of the folder.
        threads: threads that read and compute checksums, for which Python releases the GIL.
    """
    yield from (found for found in disagreements(folder, manifest) if "does not name" in found)
    for found in parallel_map(lambda name: list(_of_file(folder, manifest, name)), list(manifest["files"]), threads):
        yield from found


def _of_file(folder: Path, manifest: dict[str, Any], name: str) -> Iterator[str]:
    facts = manifest["files"][name]
    try:
        size = os.stat(folder / name).st_size
        if size == facts["bytes"] and sha256_of(folder / name) == facts["sha256"]:
            return
        if name.endswith(".tfrecord") and (found := list(_of_records(folder, name))):
            yield from found
            return
    except OSError as error:
        yield f"{name}: {error.strerror}"
        return
    yield f"{name}: {size:,} bytes; expected {facts['bytes']:,}" if size != facts["bytes"] else f"{name}: damaged"


def _of_records(folder: Path, name: str) -> Iterator[str]:
    """Descriptions of the damaged records, by the shard's index and names, which may be damaged themselves."""
    path = folder / name
    try:
        index = [line.split() for line in path.with_suffix(".idx").read_text().splitlines()]
        places = [(int(offset), int(length)) for offset, length in index]
        names = json.loads(path.with_suffix(".json").read_text())["names"]
    except (OSError, ValueError, KeyError):
        return
    with path.open("rb") as file:
        for number, (offset, length) in enumerate(places):
            file.seek(offset)
            record = file.read(length)
            try:
                if len(record) < length:
                    raise ValueError("the file is cut inside this record")
                payload_of(record)
            except ValueError as error:
                image = f" ({printable(names[number])})" if number < len(names) else ""
                yield f"{name}, record {number}{image}: {error}"
