"""A run's folder on rank 0: its lock, the checkpoint from which it resumes, and where and by what it was begun."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from hvdgan.checkpoints import files
from hvdgan.errors import RunError, UserError
from hvdgan.files.in_place import check_regular
from hvdgan.files.lock import Lock, wait_for_lock
from hvdgan.files.outputs import write_json
from hvdgan.launching.launched import VAIN_REQUEUES, requeued
from hvdgan.runs import events
from hvdgan.settings.file import read_settings
from hvdgan.training.build import Run
from hvdgan.training.initial_weights import Facts, as_settings

_WRITTEN_IN_PLACE = (events.LOG, events.FILE, "metrics.jsonl", "evaluation.jsonl")
_FILE = "origin.json"


def is_new(run: Run) -> bool:
    """Whether the folder holds no run yet."""
    return not (run.config_path.exists() or run.checkpoints.exists())


def lock(run: Run) -> Lock | None:
    """Lock a folder that holds a run, before it is read; a new one is made when nothing is refused any more."""
    if is_new(run):
        return None
    held = take(run)
    files.remove_partial(run.checkpoints)
    return held


def take(run: Run, *, living: bool = False) -> Lock:
    """Take the lock of the run folder; another rank 0 of this elastic launch may still be `living` and about to end."""
    try:
        taken = wait_for_lock(run.run_dir, living=living or of_this_launch(run.run_dir))
        for name in _WRITTEN_IN_PLACE:
            check_regular(run.run_dir / name)
    except OSError as error:
        is_file = isinstance(error, FileExistsError | NotADirectoryError)
        raise UserError(f"--run-dir {run.run_dir}: {'it is no folder; name another' if is_file else error}") from error
    return taken


def find(run: Run, resume: str) -> list[Path]:
    """Find the checkpoints to resume from, the first choice first: the one that --resume names, or the run's own."""
    named = _named_checkpoint(run, resume)
    found = files.newest_first(run.checkpoints) if named is None else [named]
    if not found and run.config_path.is_file() and read_settings(run.config_path).get("recipe") != run.config.recipe:
        raise UserError(
            f"{run.config_path} is not of this recipe, {run.config.recipe}, and there is no checkpoint; name another "
            "--run-dir"
        )
    return found


def claim(run: Run, step: int, initial: Facts, *, new: bool) -> None:
    """Write to the locked folder that this run begins there at a step; `initial`: what its networks began with."""
    _check_progress(run.run_dir, step)
    _note_launch(run.run_dir, new=new)
    write_json(run.config_path, run.settings() | as_settings(initial), indent=2)


def _named_checkpoint(run: Run, resume: str) -> Path | None:
    """Return the checkpoint that --resume names; None if the run begins anew or resumes from its folder."""
    if resume == "auto":
        return None
    if resume == "never":
        if not is_new(run) and not begun_by_this_command(run.run_dir):
            raise UserError(
                f"--resume never: {run.run_dir} holds a run already; name another --run-dir, or resume it with "
                "--resume auto"
            )
        return None
    named, newest = Path(resume), files.newest(run.checkpoints)
    if newest is not None and str(named.resolve()) in _read(run.run_dir)["checkpoints"]:  # it may be deleted since
        return None
    if not files.is_checkpoint(named):
        inside = files.newest(named / "checkpoints")
        hint = f"; did you mean {inside}?" if inside else f" such as {files.EXAMPLE}"
        raise UserError(f"--resume {resume}: expected auto, never, or a checkpoint{hint}")
    if newest is not None and not newest.samefile(named):
        raise UserError(
            f"--resume {resume}: {run.run_dir} holds a run that did not begin there, whose steps would be lost; name "
            "another --run-dir, or resume it with --resume auto"
        )
    return named


def note_checkpoint(run_dir: Path, checkpoint: Path) -> None:
    """Record that the run of a folder began at a checkpoint that the command named, or has returned to it."""
    record, path = _read(run_dir), str(checkpoint.resolve())
    others = [each for each in record["checkpoints"] if each != path]
    write_json(run_dir / _FILE, {**record, "checkpoints": [*others, path]})


def _note_launch(run_dir: Path, *, new: bool) -> None:
    """Record the Slurm job that began the run of a folder, and the elastic launch that works on it."""
    before = _read(run_dir)
    after = {**before, "job": _job() if new else before["job"], "launch": _launch()}
    if after != before:
        write_json(run_dir / _FILE, after)


def begun_by_this_command(run_dir: Path) -> bool:
    """Check whether this process belongs to the requeued Slurm job, or to the elastic launch, that began the run.

    A job that was not requeued does not count: a command typed twice in one allocation may be a mistake.
    """
    record = _read(run_dir)
    return (requeued() is not None and record["job"] == _job()) or of_this_launch(run_dir)


def of_this_launch(run_dir: Path) -> bool:
    """Check whether the elastic launch of this process was the last one to work on a folder's run."""
    return _launch() is not None and _read(run_dir)["launch"] == _launch()


def _check_progress(run_dir: Path, step: int) -> None:
    """Refuse to begin once more where a requeued job has begun three times: something ends it before a checkpoint.

    Slurm does not requeue a job that fails.
    """
    again = requeued()
    if again is None or again[1] < VAIN_REQUEUES:
        return
    if [each.step for each in events.starts(run_dir / events.FILE)][-VAIN_REQUEUES:] == [step] * VAIN_REQUEUES:
        raise RunError(
            f"job {again[0]} was requeued {again[1]} times, and began at step {step} the last {VAIN_REQUEUES} times, "
            f"so no checkpoint was written since; {run_dir / events.LOG} says how each ended; raise --time-limit, or "
            "lower --checkpoint-every, and submit it again"
        )


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
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        record |= json.loads((run_dir / _FILE).read_text(encoding="utf-8"))
    return record
