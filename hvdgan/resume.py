"""Where a run goes on: what a run folder holds, and whether it may be continued with these settings."""

import json
from pathlib import Path
from typing import Any

from hvdgan import checkpoint
from hvdgan.errors import UserError
from hvdgan.run import Run

# What may differ between a run and its resumption without changing what is computed.
_MAY_CHANGE = {"run_dir", "max_steps", "max_bad_fraction", "log_every", "sample_every", "checkpoint_every", "pipeline"}


def claim(run: Run, resume: str) -> int:
    """Take the run folder and restore what it or a named checkpoint holds; rank 0 alone calls it.

    Args:
        run: its variables receive the values.
        resume: "auto", "never" or a checkpoint's folder.

    Returns:
        The number of steps done.

    Raises:
        UserError: the folder or the checkpoint cannot serve this run.
        RunError: the checkpoint is damaged.
    """
    config_path = run.run_dir / "config.json"
    holds_run = config_path.exists() or run.checkpoints.exists()
    if resume == "never" and holds_run:
        raise UserError(
            f"--resume never: {run.run_dir} holds a run already; name another --run-dir, or go on with auto"
        )
    if resume not in ("auto", "never") and not Path(resume).is_dir():
        raise UserError(
            f"--resume {resume}: expected auto, never, or the folder of a checkpoint such as .../step-00001000"
        )
    found = checkpoint.newest(run.checkpoints)
    if resume not in ("auto", "never"):
        if holds_run and (found is None or not found.samefile(resume)):
            raise UserError(
                f"--resume {resume}: {run.run_dir} holds a run whose later steps would be lost; name another --run-dir"
            )
        found = Path(resume)
    step = 0
    if found is not None:
        manifest = checkpoint.read_manifest(found)
        _check_unchanged(run, found, manifest)
        checkpoint.restore(found, manifest, run.state.tensors())
        step = manifest["step"]
    try:
        run.run_dir.mkdir(parents=True, exist_ok=True)
        partial = config_path.with_name(".config.json.partial")
        partial.write_text(json.dumps(run.settings(), indent=2) + "\n", encoding="utf-8")
        partial.rename(config_path)
    except OSError as error:
        raise UserError(f"--run-dir {run.run_dir}: cannot be written: {error}") from error
    return step


def _check_unchanged(run: Run, found: Path, manifest: dict[str, Any]) -> None:
    """A resumed run computes what the first would have gone on to compute, or refuses."""
    now = run.settings()
    before = {**manifest["config"]}
    free = _MAY_CHANGE | set(run.recipe.may_change)
    changed = [key for key in sorted(now.keys() | before.keys()) if key not in free and now.get(key) != before.get(key)]
    if changed:
        key = changed[0]
        more = f" (and {', '.join(changed[1:])})" if changed[1:] else ""
        raise UserError(
            f"--resume: {found} was made with {key} {before.get(key)!r}, and this run has {now.get(key)!r}{more}; "
            "keep it, or start anew in another --run-dir"
        )
    if manifest["data"]["fingerprint"] != run.source.fingerprint:
        raise UserError(
            f"--resume: {found} was made with other images in {run.source.name} "
            f"({manifest['data']['num_images']:,}, now {len(run.source):,}); restore them, or start anew in "
            "another --run-dir"
        )


def save(run: Run, step: int) -> None:
    """Write a checkpoint after `step` steps; rank 0 alone calls it.

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
        },
        "seed": run.config.seed,
        "ranks": run.ranks.size,
        "config": run.settings(),
    }
    checkpoint.save(run.checkpoints, step, run.state.tensors(), facts)
