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
from hvdgan.cli.files.in_place import in_place
from hvdgan.cli.files.lock import Lock, LockHeldError, held_by, lock

FILE = "evaluation.jsonl"
_ATTEMPTS = 100


def record_of(step: int, values: dict[str, float], facts: dict[str, Any], **others: Any) -> dict[str, Any]:
    """Make the record of an evaluation.

    Args:
        step: number of steps that the networks were trained.
        values: figures by name; those that are not finite become null, because JSON has no NaN.
        facts: facts that the figures need to be compared with others, as JSON types.
        others: more of that.
    """
    finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"step": step, **finite, **facts, **others, "hvdgan": __version__, "time": when}


def identity(run_id: str, step: int, settings: dict[str, Any]) -> str:
    """Hex digits that are equal for evaluations that give equal figures.

    Args:
        run_id: id of the run.
        step: number of steps that the networks were trained.
        settings: facts that the figures depend on, as JSON types.
    """
    return hashlib.sha256(json.dumps([run_id, step, settings], sort_keys=True).encode()).hexdigest()


def append(run_dir: Path, record: dict[str, Any]) -> None:
    """Append a record in one piece, also while other processes do; a half-written last line is ended first.

    Raises:
        OSError: the file cannot be written.
    """
    with open(run_dir / FILE, "a+b", opener=in_place) as file:
        with contextlib.suppress(OSError):  # a file system without locks still appends in one piece
            fcntl.flock(file, fcntl.LOCK_EX)
        size = file.seek(0, os.SEEK_END)
        whole = True
        if size:
            file.seek(size - 1)
            whole = file.read(1) == b"\n"
        file.write((b"" if whole else b"\n") + json.dumps(record).encode() + b"\n")


def records(run_dir: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a run folder; lines that are not whole are skipped."""
    try:
        lines = (run_dir / FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(record := json.loads(line), dict):
                yield record


def found(run_dir: Path, key: str) -> dict[str, Any] | None:
    """The record of the evaluation with this identity; None if there is none."""
    return next((each for each in records(run_dir) if each.get("identity") == key), None)


def claim(run_dir: Path, key: str) -> Lock | None:
    """Claim an evaluation, so that no other process does it at the same time; None if another one has claimed it.

    A claim ends with the process that made it.

    Raises:
        OSError: the run folder cannot be written.
    """
    folder = _claims(run_dir) / key[:16]
    for attempt in range(_ATTEMPTS):
        try:
            claimed = lock(folder, named=f"{run_dir}: an evaluation", by="evaluation")
        except LockHeldError:
            return None
        except (FileNotFoundError, FileExistsError):  # release() has removed the folder between two calls of lock()
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            if claimed.is_of(folder):
                return claimed
            claimed.close()  # release() has removed the file, so others would not see this lock
    return None


def is_claimed(run_dir: Path, key: str) -> bool:
    """Whether another process has claimed an evaluation; nothing is written. False if nobody can know.

    The process that holds the claim must not ask.
    """
    return bool(held_by(_claims(run_dir) / key[:16]))


def release(run_dir: Path, key: str, claimed: Lock) -> None:
    """End a claim, and remove what it left in the run folder."""
    folder = _claims(run_dir) / key[:16]
    with contextlib.suppress(OSError):  # another process may wait for it
        (folder / ".lock").unlink()
        folder.rmdir()
    claimed.close()


def _claims(run_dir: Path) -> Path:
    return run_dir / "cache" / "evaluations"
