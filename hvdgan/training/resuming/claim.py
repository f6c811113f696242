"""Where a run goes on: what a run folder holds, and whether it may be continued with these settings."""

import dataclasses
import hashlib
import json
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from hvdgan.checkpoints import checkpoint, files
from hvdgan.checkpoints.files import find
from hvdgan.checkpoints.retention import run_id_of
from hvdgan.cli.config import Resume, read_json
from hvdgan.cli.errors import RunError, UserError
from hvdgan.cli.lock import Lock, wait_for_lock
from hvdgan.cli.replacing import whole_file
from hvdgan.training.resuming import origin
from hvdgan.training.resuming.changes import check_settings
from hvdgan.training.run import Run

# The tensors that are there or not as a setting says, in words, and where they begin in a run that had none.
_TENSORS_OF = {
    "ema_decay": ("ema", "averages", "the weights"),
    "precision": ("loss_scales", "loss scales", "their first value"),
}


@dataclasses.dataclass
class Found:
    """Where a run goes on.

    step: steps done.
    position: samples seen: the place of the next one in the order of all.
    run_id: of the run that the folder belongs to.
    statistics: (size, n), those of each rank, where the checkpoint has them.
    progress: what else a loop was in the middle of, as it was given to facts().
    remarks: lines for people, about what was found on the way.
    lock: keeps others out of the run folder until it is closed.
    recovered: whether it is from a commit of an elastic run, and no checkpoint.
    """

    step: int = 0
    position: int = 0
    run_id: str = ""
    statistics: np.ndarray | None = None
    progress: dict[str, Any] = dataclasses.field(default_factory=dict)
    remarks: list[str] = dataclasses.field(default_factory=list)
    lock: Lock | None = None
    recovered: bool = False


def claim(run: Run, resume: Resume) -> Found:
    """Take the run folder and restore what it or a named checkpoint holds; rank 0 alone calls it.

    Args:
        run: its variables receive the values.
        resume: what the command line says of it.

    Raises:
        UserError: the folder or the checkpoint cannot serve this run.
        RunError: no checkpoint can be read.
    """
    _check_allowed(run, resume)
    try:
        # Before anything is looked at, where there is something; a refusal leaves no folder behind.
        found = Found(run_id=uuid.uuid4().hex)
        new = not (run.config_path.exists() or run.checkpoints.exists())
        if not new:
            _take_lock(run, found)
            checkpoint.mend(run.checkpoints)
        named = _named(run, resume.resume)
        if named is not None:
            _restore(run, named, resume, found)
        elif candidates := files.newest_first(run.checkpoints):
            _restore_newest(run, candidates, resume, found)
            if resume.resume not in ("auto", "never") and candidates[0].name != Path(resume.resume).name:
                found.remarks.append(
                    f"--resume {resume.resume}: the run of this folder began there, and resumes at its newest "
                    f"checkpoint, {candidates[0].name}; to go back, name another --run-dir"
                )
        elif run.config_path.is_file():
            before = read_json(run.config_path)
            found.remarks += check_settings(run, run.config_path, before, resume.allow_changed)
        if not found.step and resume.init_from is not None:
            found.remarks.append(_take_networks(run, resume.init_from, resume.init_networks))
        from_elsewhere = named is not None and named.parent.resolve() != run.checkpoints.resolve()
        if found.step > run.schedule.total_steps:
            what = f"--resume {named}: it" if named is not None else f"--resume: the newest checkpoint of {run.run_dir}"
            raise UserError(
                f"{what} is of step {found.step}, and this run ends at step {run.schedule.total_steps}; "
                f"give its stages more steps{', or name an earlier checkpoint' if from_elsewhere else ''}"
            )
        if from_elsewhere or found.step < run.last_step:
            if new:
                _take_lock(run, found)
            origin.note_launch(run.run_dir, new=new)
            _write_settings(run)
        if named is not None:
            # Before the first checkpoint: without one in the folder the same command begins here again.
            origin.note_checkpoint(run.run_dir, named)
        if from_elsewhere:
            # From now on this folder stands by itself, also if the run ends before its first checkpoint is due.
            found.run_id = uuid.uuid4().hex
            everyones = run.state.read_statistics()[None] if found.statistics is None else found.statistics
            checkpoint.write(
                run.checkpoints, snapshot(run, found.step, found.position, found.run_id, everyones, found.progress)
            )
        return found
    except OSError as error:
        raise UserError(f"--run-dir {run.run_dir}, --resume {resume.resume}: {error}") from error


def snapshot(
    run: Run, step: int, position: int, run_id: str, statistics: np.ndarray, progress: dict[str, Any]
) -> checkpoint.Snapshot:
    """What a checkpoint after `step` steps holds.

    Args:
        run: its variables are copied.
        step: steps done so far, >= 1; 0 for a commit, which no file shows.
        position: samples seen so far.
        run_id: of the run that the folder belongs to.
        statistics: (size, n), those of each rank.
        progress: what the loop needs to go on, expressible in JSON.
    """
    at = run.schedule.at(max(step - 1, 0))
    facts = {
        "run_id": run_id,
        "stage": at.stage.name,
        "stage_index": at.index,
        "stage_step": at.stage_step + 1,
        "stages": [[stage.name, stage.steps] for stage in run.schedule.stages],
        "samples_seen": position,
        "data": {
            "source": run.source.name,
            "fingerprint": run.source.fingerprint,
            "num_images": len(run.source),
            "position": position,
            "spec": dataclasses.asdict(run.recipe.data),
        },
        "seed": run.config.seed,
        "ranks": run.ranks.size,
        "config": run.settings(),
        "config_sha256": hashlib.sha256(json.dumps(run.settings(), sort_keys=True).encode()).hexdigest(),
        "best": progress.get("best"),
        "progress": progress,
    }
    with run.state.with_statistics(statistics):
        return checkpoint.take(step, run.state.tensors(), statistics, facts)


def _take_lock(run: Run, found: Found) -> None:
    # A rank 0 that an elastic launch has lost may still be on its way out.
    found.lock = wait_for_lock(run.run_dir, living=origin.of_this_launch(run.run_dir))
    found.remarks += found.lock.remarks


def _named(run: Run, resume: str) -> Path | None:
    """The checkpoint that --resume names; None where the run begins anew, or from what its folder holds."""
    if resume == "auto":
        return None
    if resume == "never":
        begun = run.config_path.exists() or run.checkpoints.exists()
        if begun and not origin.begun_by_this_command(run.run_dir):
            raise UserError(
                f"--resume never: {run.run_dir} holds a run already; name another --run-dir, or resume it with "
                "--resume auto"
            )
        return None
    named, newest = Path(resume), files.newest(run.checkpoints)
    if newest is not None and origin.began_at(run.run_dir, named):
        return None
    if not (named / "manifest.json").is_file():
        inside = files.newest(named / "checkpoints")
        hint = f"; did you mean {inside}?" if inside else " such as runs/dcgan/checkpoints/step-00001000"
        raise UserError(f"--resume {resume}: expected auto, never, or the folder of a checkpoint{hint}")
    if newest is not None and not newest.samefile(named):
        raise UserError(
            f"--resume {resume}: {run.run_dir} holds a run that did not begin there, whose steps would be lost; name "
            "another --run-dir, or resume it with --resume auto"
        )
    return named


def _restore_newest(run: Run, candidates: list[Path], resume: Resume, found: Found) -> None:
    """Restore the newest checkpoint that verifies; a damaged one is named, and the one before it is next."""
    damaged = []
    for candidate in candidates:
        try:
            _restore(run, candidate, resume, found)
        except files.DamagedCheckpoint as error:
            damaged.append(str(error))
        else:
            found.remarks += [f"warning: {each}; going on from {candidate.name} instead" for each in damaged]
            return
    raise RunError(
        f"no checkpoint in {run.checkpoints} can be used: {'; '.join(damaged)}; bring one back, or start anew in "
        "another --run-dir"
    )


def _restore(run: Run, source: Path, resume: Resume, found: Found) -> None:
    manifest = files.read_manifest(source)
    found.remarks += check_settings(run, source, manifest["config"], resume.allow_changed, manifest)
    if "data" not in resume.allow_changed:
        _check_same_data(run, source, manifest["data"])
    _restore_tensors(run, source, manifest, resume, found)
    found.step = manifest["step"]
    found.position = manifest["data"].get("position", found.step * run.config.global_batch_size)
    found.run_id = run_id_of(run.checkpoints, manifest) or found.run_id
    found.progress = manifest.get("progress", {})
    run.schedule.restore(found.progress)


def _restore_tensors(run: Run, source: Path, manifest: dict[str, Any], resume: Resume, found: Found) -> None:
    """Restore all tensors, but for kinds that only the checkpoint or only the run has, where that is allowed."""
    tensors = run.state.tensors()
    theirs, own = ({name.split("/")[0] for name in names} for names in (manifest["tensors"], tensors))
    skipped, remarks = set(), []
    for setting, (kind, what, begin) in _TENSORS_OF.items():
        if setting in resume.allow_changed and kind in theirs ^ own:
            skipped.add(kind)
            then = "are dropped" if kind in theirs else f"are not there, and begin at {begin}"
            remarks.append(f"warning: the {what} of {source} {then}")
    if "ema" in skipped:
        skipped.add("ranks")  # each rank's statistics have averages among them: all go on with the means
    only = tuple(f"{kind}/" for kind in sorted((theirs | own) - skipped))
    wanted = {name: variable for name, variable in tensors.items() if name.startswith(only)}
    saved = checkpoint.restore(source, manifest, wanted, only)
    found.statistics = None if saved is None else run.state.own_statistics(saved)
    if saved is not None and found.statistics is None:
        remarks.append(
            f"warning: {source} was made with other statistics of each rank; all ranks go on with their means"
        )
    if "ema" in skipped:
        _begin_averages(run, run.state.ema)
    found.remarks += remarks


def _begin_averages(run: Run, networks: Iterable[str]) -> None:
    """Let averages begin at the weights, as those of a new run do."""
    pairs = run.state.sampling_values()
    for variable, average in (pair for name in networks for pair in pairs[name]):
        average.assign(variable)


def _take_networks(run: Run, source: Path, names: tuple[str, ...]) -> str:
    """Give networks, and their averages, the values that another run's have; returns a line about it."""
    where = f"--init-from {source}"
    try:
        source = find(source)
    except UserError as error:
        raise UserError(f"--init-from {error}") from error
    manifest = files.read_manifest(source)
    theirs = {name.split("/")[1] for name in manifest["tensors"] if name.startswith("networks/")}
    chosen = set(names) or theirs & run.state.networks.keys()
    if not chosen or chosen - (theirs & run.state.networks.keys()):
        raise UserError(
            f"{where}, --init-networks {','.join(names)}: it has {', '.join(sorted(theirs))}, and this run "
            f"{', '.join(run.state.networks)}; name some that both have"
        )
    own = run.state.tensors()
    for kind in ("networks", "ema"):
        prefixes = tuple(f"{kind}/{name}/" for name in sorted(chosen))
        wanted = {name: variable for name, variable in own.items() if name.startswith(prefixes)}
        if kind == "ema" and wanted.keys() - manifest["tensors"].keys():
            _begin_averages(run, chosen & run.state.ema.keys())  # that run has none
        elif wanted:
            checkpoint.restore(source, manifest, wanted, only=prefixes)
    return f"{', '.join(sorted(chosen))} taken from {source}"


def _write_settings(run: Run) -> None:
    with whole_file(run.config_path) as partial:
        partial.write_text(json.dumps(run.settings(), indent=2) + "\n", encoding="utf-8")


def _check_allowed(run: Run, resume: Resume) -> None:
    if unknown := set(resume.allow_changed) - run.settings().keys():
        raise UserError(
            f"--allow-changed {','.join(resume.allow_changed)}: there is no setting {', '.join(sorted(unknown))}; "
            "expected names as in config.json"
        )
    if resume.init_networks and resume.init_from is None:
        raise UserError(f"--init-networks {','.join(resume.init_networks)}: say from where with --init-from")


def _check_same_data(run: Run, found: Path, before: dict[str, Any]) -> None:
    if before.get("fingerprint") != run.source.fingerprint:
        raise UserError(
            f"--resume: {found} was made with other images than those of {run.source.name}, or other --channels "
            f"({before.get('num_images')} images then, {len(run.source)} now); restore them, start anew in another "
            "--run-dir, or allow it with --allow-changed data"
        )
