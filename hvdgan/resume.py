"""Where a run goes on: what a run folder holds, and whether it may be continued with these settings."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from hvdgan import checkpoint
from hvdgan.config import read_json
from hvdgan.errors import UserError
from hvdgan.run import Run

# What may differ between a run and its resumption without changing what is computed.
# The data may be spelt otherwise or have moved: its fingerprint is compared.
_MAY_CHANGE = {"run_dir", "max_steps", "max_bad_fraction", "pipeline", "data", "channels", "peer_timeout"}
_MAY_CHANGE |= {"log_every", "sample_every", "eval_every", "checkpoint_every"}


@dataclasses.dataclass
class Found:
    """Where a run goes on.

    step: steps done.
    statistics: (size, n) float32, those of each rank, where the checkpoint has them.
    progress: what else a loop was in the middle of, as it was given to save().
    """

    step: int = 0
    statistics: np.ndarray | None = None
    progress: dict[str, Any] = dataclasses.field(default_factory=dict)


def claim(run: Run, resume: str) -> Found:
    """Take the run folder and restore what it or a named checkpoint holds; rank 0 alone calls it.

    Args:
        run: its variables receive the values.
        resume: "auto", "never" or a checkpoint's folder.

    Raises:
        UserError: the folder or the checkpoint cannot serve this run.
        RunError: the checkpoint is damaged.
    """
    try:
        found = _find(run, resume)
        state = Found()
        if found is not None:
            manifest = checkpoint.read_manifest(found)
            _check_same_settings(run, found, manifest["config"])
            _check_same_data(run, found, manifest["data"])
            statistics = checkpoint.restore(found, manifest, run.state.tensors())
            state = Found(manifest["step"], statistics, manifest.get("progress", {}))
            run.schedule.ended.update({int(index): steps for index, steps in state.progress.get("ended", {}).items()})
        elif run.config_path.is_file():
            _check_same_settings(run, run.config_path, read_json(run.config_path))
        if state.step < run.last_step:
            _write_settings(run)
        if found is not None and found.parent.resolve() != run.checkpoints.resolve():
            # From now on this folder stands by itself, also if the run ends before its first checkpoint is due.
            statistics = run.state.read_statistics()[None] if state.statistics is None else state.statistics
            save(run, state.step, statistics, state.progress)
        return state
    except OSError as error:
        raise UserError(f"--run-dir {run.run_dir}, --resume {resume}: {error}") from error


def _find(run: Run, resume: str) -> Path | None:
    """The checkpoint to go on from."""
    newest = checkpoint.newest(run.checkpoints)
    if resume == "auto":
        return newest
    if resume == "never":
        if run.config_path.exists() or run.checkpoints.exists():
            raise UserError(
                f"--resume never: {run.run_dir} holds a run already; name another --run-dir, or go on with auto"
            )
        return None
    named = Path(resume)
    if not (named / "manifest.json").is_file():
        inside = checkpoint.newest(named / "checkpoints")
        hint = f"; did you mean {inside}?" if inside else " such as runs/dcgan/checkpoints/step-00001000"
        raise UserError(f"--resume {resume}: expected auto, never, or the folder of a checkpoint{hint}")
    if newest is not None and not newest.samefile(named):
        raise UserError(
            f"--resume {resume}: {run.run_dir} holds a run whose steps after that would be lost; name another --run-dir"
        )
    return named


def _write_settings(run: Run) -> None:
    run.run_dir.mkdir(parents=True, exist_ok=True)
    partial = run.config_path.with_name(".config.json.partial")
    partial.write_text(json.dumps(run.settings(), indent=2) + "\n", encoding="utf-8")
    partial.rename(run.config_path)


def _check_same_settings(run: Run, found: Path, before: dict[str, Any]) -> None:
    """A resumed run computes what the first would have gone on to compute, or refuses."""
    now = run.settings()
    free = _MAY_CHANGE | set(run.recipe.may_change)
    changed = [key for key in now | before if key not in free and now.get(key) != before.get(key)]
    if changed:
        key = changed[0]
        more = f" (and {', '.join(changed[1:])})" if changed[1:] else ""
        raise UserError(
            f"--resume: {found} was made with {key} {before.get(key)!r}, and this run has {now.get(key)!r}{more}; "
            "keep it, or start anew in another --run-dir"
        )


def _check_same_data(run: Run, found: Path, before: dict[str, Any]) -> None:
    if before.get("fingerprint") != run.source.fingerprint:
        raise UserError(
            f"--resume: {found} was made with other images than those of {run.source.name}, or other --channels "
            f"({before.get('num_images')} images then, {len(run.source)} now); restore them, or start anew in another "
            "--run-dir"
        )


def save(run: Run, step: int, statistics: np.ndarray, progress: dict[str, Any]) -> None:
    """Write a checkpoint after `step` steps; rank 0 alone calls it.

    Args:
        run: its variables are written.
        step: steps done so far, >= 1.
        statistics: (size, n) float32, those of each rank.
        progress: what the loop needs to go on, expressible in JSON.

    Raises:
        RunError: it cannot be written.
    """
    at = run.schedule.at(step - 1)
    facts = {
        "stage": at.stage.name,
        "stage_step": at.stage_step + 1,
        "samples_seen": step * run.config.global_batch_size,
        "data": {
            "source": run.source.name,
            "fingerprint": run.source.fingerprint,
            "num_images": len(run.source),
            "position": step * run.config.global_batch_size,
            "spec": dataclasses.asdict(run.recipe.data),
        },
        "seed": run.config.seed,
        "ranks": run.ranks.size,
        "config": run.settings(),
        "progress": progress,
    }
    with run.state.with_statistics(statistics):
        checkpoint.save(run.checkpoints, step, run.state.tensors(), statistics, facts)
