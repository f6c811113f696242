"""Records where a run began, and which job or launch began it, so that the same command resumes it."""

import json
import os
from pathlib import Path
from typing import Any

from hvdgan.checkpoints.files import MANIFEST, read_manifest
from hvdgan.cli.files.outputs import write_json
from hvdgan.cli.launcher import requeued

_FILE = "origin.json"


def note_checkpoint(run_dir: Path, checkpoint: Path) -> None:
    """Record that the run of a folder began at a checkpoint that the command named, or has returned to it."""
    record = _read(run_dir)
    place = _place(checkpoint)
    others = [each for each in record["checkpoints"] if each.get("path") != place["path"]]
    write_json(run_dir / _FILE, {**record, "checkpoints": [*others, place]})


def note_launch(run_dir: Path, *, new: bool) -> None:
    """Record the Slurm job that began the run of a folder, and the elastic launch that works on it."""
    before = _read(run_dir)
    after = {**before, "job": _job() if new else before["job"], "launch": _launch()}
    if after != before:
        write_json(run_dir / _FILE, after)


def began_at(run_dir: Path, checkpoint: Path) -> bool:
    """Check whether the run of a folder began at a checkpoint, which may since have been deleted or moved."""
    known = _read(run_dir)["checkpoints"]
    if not (checkpoint / MANIFEST).is_file():
        return str(checkpoint.resolve()) in [each.get("path") for each in known]
    place = _place(checkpoint)
    same = ("run_id", "step") if place["run_id"] else ("path", "run_id", "step")
    return any(all(each.get(name) == place[name] for name in same) for each in known)


def begun_by_this_command(run_dir: Path) -> bool:
    """Check whether this process belongs to the requeued Slurm job, or to the elastic launch, that began the run.

    A job that was not requeued does not count: a command typed twice in one allocation may be a mistake.
    """
    record = _read(run_dir)
    return (requeued() is not None and record["job"] == _job()) or of_this_launch(run_dir)


def of_this_launch(run_dir: Path) -> bool:
    """Check whether the elastic launch of this process was the last one to work on a folder's run."""
    return _launch() is not None and _read(run_dir)["launch"] == _launch()


def _place(checkpoint: Path) -> dict[str, Any]:
    manifest = read_manifest(checkpoint)
    return {"path": str(checkpoint.resolve()), "run_id": manifest.get("run_id", ""), "step": manifest["step"]}


def _job() -> str | None:
    """Return the Slurm job; it keeps its number when it is requeued, and each task of an array has its own number."""
    number = os.environ.get("SLURM_JOB_ID")
    return f"{os.environ.get('SLURM_CLUSTER_NAME', '')}/{number}" if number else None


def _launch() -> str | None:
    """Return the address where the ranks of an elastic launch meet; it stays the same while ranks come and go."""
    if os.environ.get("HOROVOD_ELASTIC") != "1":
        return None
    address, port = (os.environ.get(f"HOROVOD_GLOO_RENDEZVOUS_{name}") for name in ("ADDR", "PORT"))
    return f"{address}:{port}" if address and port else None


def _read(run_dir: Path) -> dict[str, Any]:
    """Return the record; an empty one if it is missing or damaged."""
    record: dict[str, Any] = {"checkpoints": [], "job": None, "launch": None}
    try:
        found = json.loads((run_dir / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return record
    if isinstance(found, dict):
        record |= {name: found.get(name) for name in record}
    places = record["checkpoints"] if isinstance(record["checkpoints"], list) else []
    return {**record, "checkpoints": [each for each in places if isinstance(each, dict)]}
