"""Where a run folder's run began, and which job or launch began it: what the same command needs to resume it."""

import json
import os
from pathlib import Path
from typing import Any

from hvdgan.checkpoints.files import MANIFEST, read_manifest
from hvdgan.cli.outputs import write_json

_FILE = "origin.json"


def note_checkpoint(run_dir: Path, checkpoint: Path) -> None:
    """Record that the run in a folder began, or was taken up again, at a checkpoint that the command named.

    Raises:
        RunError: the checkpoint or the record cannot be read or written.
    """
    record = _read(run_dir)
    place = _place(checkpoint)
    others = [each for each in record["checkpoints"] if each.get("path") != place["path"]]
    write_json(run_dir / _FILE, {**record, "checkpoints": [*others, place]})


def note_launch(run_dir: Path, *, new: bool) -> None:
    """Record which Slurm job has begun the run of a folder, and which elastic launch works on it.

    Args:
        run_dir: the run folder.
        new: whether it begins now.

    Raises:
        RunError: the record cannot be written.
    """
    before = _read(run_dir)
    after = {**before, "job": _job() if new else before["job"], "launch": _launch()}
    if after != before:
        write_json(run_dir / _FILE, after)


def began_at(run_dir: Path, checkpoint: Path) -> bool:
    """Whether the run in a folder began at a checkpoint, which may be gone or have moved since.

    Args:
        run_dir: the run folder.
        checkpoint: as the command names it.
    """
    known = _read(run_dir)["checkpoints"]
    if not (checkpoint / MANIFEST).is_file():
        return str(checkpoint.resolve()) in [each.get("path") for each in known]
    place = _place(checkpoint)
    same = ("run_id", "step") if place["run_id"] else ("path", "run_id", "step")
    return any(all(each.get(name) == place[name] for name in same) for each in known)


def begun_by_this_command(run_dir: Path) -> bool:
    """Whether this process belongs to the requeued Slurm job, or the elastic launch, that began a folder's run.

    A job that was not requeued is not asked for: whoever types a command twice in one allocation may be wrong.
    """
    record = _read(run_dir)
    requeued = os.environ.get("SLURM_RESTART_COUNT", "0") not in ("", "0")
    same_job = _job() is not None and record["job"] == _job()
    return (requeued and same_job) or of_this_launch(run_dir)


def of_this_launch(run_dir: Path) -> bool:
    """Whether the elastic launch of this process is the last that has worked on a folder's run."""
    return _launch() is not None and _read(run_dir)["launch"] == _launch()


def _place(checkpoint: Path) -> dict[str, Any]:
    manifest = read_manifest(checkpoint)
    return {"path": str(checkpoint.resolve()), "run_id": manifest.get("run_id", ""), "step": manifest["step"]}


def _job() -> str | None:
    """The Slurm job, which keeps its number when it is requeued; each task of an array has one of its own."""
    number = os.environ.get("SLURM_JOB_ID")
    return f"{os.environ.get('SLURM_CLUSTER_NAME', '')}/{number}" if number else None


def _launch() -> str | None:
    """The launch of an elastic run: where its ranks meet, which stays while they come and go."""
    if os.environ.get("HOROVOD_ELASTIC") != "1":
        return None
    address, port = (os.environ.get(f"HOROVOD_GLOO_RENDEZVOUS_{name}") for name in ("ADDR", "PORT"))
    return f"{address}:{port}" if address and port else None


def _read(run_dir: Path) -> dict[str, Any]:
    """The record; an empty one where there is none, or what is there is damaged."""
    record: dict[str, Any] = {"checkpoints": [], "job": None, "launch": None}
    try:
        found = json.loads((run_dir / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return record
    if isinstance(found, dict):
        record |= {name: found.get(name) for name in record}
    places = record["checkpoints"] if isinstance(record["checkpoints"], list) else []
    return {**record, "checkpoints": [each for each in places if isinstance(each, dict)]}
