"""The file evaluation.jsonl of a run folder: one line for each evaluation, with all that its figures need."""

import contextlib
import fcntl
import hashlib
import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hvdgan import __version__
from hvdgan.files.in_place import in_place
from hvdgan.files.lock import Lock, wait_for_lock
from hvdgan.runs.folder import Facts, Folder

FILE = "evaluation.jsonl"


def record_of(step: int, values: dict[str, float], facts: dict[str, Any], **others: Any) -> Facts:
    """Make the record of an evaluation after a step: figures by name, and facts that they need to be compared.

    Figures that are not finite become null, because JSON has no NaN.
    """
    finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"step": step, **finite, **facts, **others, "hvdgan": __version__, "time": when}


def identity(*facts: Any) -> str:
    """Hex digits that are equal for equal facts (JSON types), which are all that the figures of a line depend on."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def append(run_dir: Path, record: Facts) -> None:
    """Append a record in one piece, also while the run appends one; a half-written last line is ended first."""
    with open(run_dir / FILE, "a+b", opener=in_place) as file:
        with contextlib.suppress(OSError):  # a file system without locks still appends in one piece
            fcntl.flock(file, fcntl.LOCK_EX)
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        whole = file.read(1) in (b"", b"\n")
        file.write((b"" if whole else b"\n") + json.dumps(record).encode() + b"\n")


def read(folder: Folder) -> Iterator[Facts]:
    """Yield the records of a run folder."""
    return (record for record in folder.records(FILE) if isinstance(record.get("step"), int))


def found(run_dir: Path, key: str) -> Facts | None:
    """The latest record with this identity; None if there is none."""
    latest = None
    for record in read(Folder(run_dir)):
        latest = record if record.get("identity") == key else latest
    return latest


def lock_evaluations(run_dir: Path) -> Lock:
    """Lock the evaluations of a run, so that one hvdgan evaluate at a time measures it."""
    cure = "wait for its end: what it has measured is not measured again"
    return wait_for_lock(run_dir / "cache", named=f"{run_dir / FILE}", by="hvdgan.evaluate", cure=cure)
