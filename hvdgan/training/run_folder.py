"""Takes a run folder, and restores the checkpoint from which its run resumes."""

import uuid
from pathlib import Path
from typing import Any

from hvdgan.checkpoints import checkpoint, files
from hvdgan.checkpoints.retention import run_id_of
from hvdgan.cli import events
from hvdgan.cli.errors import RunError, UserError
from hvdgan.cli.files.in_place import check_regular
from hvdgan.cli.files.lock import wait_for_lock
from hvdgan.cli.files.outputs import write_json
from hvdgan.training import origin
from hvdgan.training.changes import changed_code, changed_versions, check_settings
from hvdgan.training.command import Resume
from hvdgan.training.frozen import refuse_other_frozen
from hvdgan.training.resume_point import ResumePoint
from hvdgan.training.run import Run
from hvdgan.training.saved_settings import read_json
from hvdgan.training.saving import snapshot
from hvdgan.training.tensors import restore_tensors, take_networks
from hvdgan.training.value_maps import check_value_maps

_WRITTEN_IN_PLACE = (events.LOG, events.FILE, "metrics.jsonl", "evaluation.jsonl")


def take(run: Run, resume: Resume) -> ResumePoint:
    """Take the run folder and restore its checkpoint, or the one that the command names; only rank 0 calls this."""
    _check_allowed(run, resume)
    resume_point = ResumePoint(run_id=uuid.uuid4().hex)
    try:
        _take(run, resume, resume_point)
    except BaseException as error:
        if resume_point.lock is not None:
            resume_point.lock.close()
        if isinstance(error, OSError):
            raise UserError(f"--run-dir {run.run_dir}, --resume {resume.resume}: {error}") from error
        raise
    return resume_point


def _take(run: Run, resume: Resume, resume_point: ResumePoint) -> None:
    # A folder that exists is locked before it is read. A new one is made only when nothing is refused any more.
    is_new = not (run.config_path.exists() or run.checkpoints.exists())
    if not is_new:
        _take_lock(run, resume_point)
        checkpoint.mend(run.checkpoints)
    named = _named(run, resume.resume)
    _restore_values(run, named, resume, resume_point)
    is_from_elsewhere = named is not None and named.parent.resolve() != run.checkpoints.resolve()
    _check_not_past_the_end(run, named, resume_point, is_from_elsewhere=is_from_elsewhere)
    if is_from_elsewhere or resume_point.step < run.last_step:
        if is_new:
            _take_lock(run, resume_point)
        origin.note_launch(run.run_dir, new=is_new)
        write_json(run.config_path, run.settings(), indent=2)
    if named is not None:
        # Noted before the first checkpoint: until there is one, the same command begins at the named one again.
        origin.note_checkpoint(run.run_dir, named)
    if is_from_elsewhere:
        _begin_own_folder(run, resume_point)


def _check_allowed(run: Run, resume: Resume) -> None:
    if unknown := set(resume.allow_changed) - run.settings().keys() - {"frozen"}:
        raise UserError(
            f"--allow-changed {','.join(resume.allow_changed)}: there is no setting {', '.join(sorted(unknown))}; "
            "expected names as in config.json"
        )
    if resume.init_networks and resume.init_from is None:
        raise UserError(f"--init-networks {','.join(resume.init_networks)}: name the run with --init-from")


def lock(run: Run, resume_point: ResumePoint, *, living: bool) -> None:
    """Take the lock of the run folder; only rank 0 calls this."""
    resume_point.lock = wait_for_lock(run.run_dir, living=living)
    resume_point.remarks += resume_point.lock.remarks
    for name in _WRITTEN_IN_PLACE:
        check_regular(run.run_dir / name)


def _take_lock(run: Run, resume_point: ResumePoint) -> None:
    # A rank 0 that an elastic launch has lost may still be about to end.
    lock(run, resume_point, living=origin.of_this_launch(run.run_dir))


def _named(run: Run, resume: str) -> Path | None:
    """Return the checkpoint that --resume names; None if the run begins anew or resumes from its folder."""
    if resume == "auto":
        return None
    if resume == "never":
        exists = run.config_path.exists() or run.checkpoints.exists()
        if exists and not origin.begun_by_this_command(run.run_dir):
            raise UserError(
                f"--resume never: {run.run_dir} holds a run already; name another --run-dir, or resume it with "
                "--resume auto"
            )
        return None
    named, newest = Path(resume), files.newest(run.checkpoints)
    if newest is not None and origin.began_at(run.run_dir, named):
        return None
    if not (named / files.MANIFEST).is_file():
        inside = files.newest(named / "checkpoints")
        hint = f"; did you mean {inside}?" if inside else " such as runs/dcgan/checkpoints/step-00001000"
        raise UserError(f"--resume {resume}: expected auto, never, or the folder of a checkpoint{hint}")
    if newest is not None and not newest.samefile(named):
        raise UserError(
            f"--resume {resume}: {run.run_dir} holds a run that did not begin there, whose steps would be lost; name "
            "another --run-dir, or resume it with --resume auto"
        )
    return named


def _restore_values(run: Run, named: Path | None, resume: Resume, resume_point: ResumePoint) -> None:
    """Restore the named checkpoint, else the newest of the folder, and take networks of another run if it is new."""
    if named is not None:
        _restore(run, named, resume, resume_point)
    elif candidates := files.newest_first(run.checkpoints):
        _restore_newest(run, candidates, resume, resume_point)
    elif run.config_path.is_file():
        before = read_json(run.config_path)
        resume_point.remarks += check_settings(run, run.config_path, before, resume.allow_changed)
    if not resume_point.step and resume.init_from is not None:
        resume_point.remarks.append(take_networks(run, resume.init_from, resume.init_networks))


def _restore_newest(run: Run, candidates: list[Path], resume: Resume, resume_point: ResumePoint) -> None:
    """Restore the newest checkpoint that is not damaged, and log the damaged ones."""
    damaged = []
    for candidate in candidates:
        try:
            _restore(run, candidate, resume, resume_point)
        except files.DamagedCheckpoint as error:
            damaged.append(str(error))
        else:
            break
    else:
        raise RunError(
            f"no checkpoint in {run.checkpoints} can be used: {'; '.join(damaged)}; bring one back, or start anew in "
            "another --run-dir"
        )
    resume_point.remarks += [f"warning: {each}; resuming from {candidate.name} instead" for each in damaged]
    if resume.resume not in ("auto", "never") and candidates[0].name != Path(resume.resume).name:
        resume_point.remarks.append(
            f"--resume {resume.resume}: the run of this folder began there, and resumes at its newest "
            f"checkpoint, {candidates[0].name}; to go back, name another --run-dir"
        )


def _restore(run: Run, source: Path, resume: Resume, resume_point: ResumePoint) -> None:
    manifest = files.read_manifest(source)
    resume_point.remarks += check_settings(run, source, manifest["config"], resume.allow_changed, manifest)
    resume_point.remarks += [*changed_code(run, source, manifest), *changed_versions(manifest)]
    allowed = bool(resume.allow_changed)  # another setting may be the cause, such as the name of a file of weights
    resume_point.remarks += refuse_other_frozen(source, manifest.get("frozen", {}), run.frozen, allowed=allowed)
    if "data" not in resume.allow_changed:
        _check_same_data(run, source, manifest["data"])
    resume_point.remarks += check_value_maps(run, source, manifest["data"], resume.allow_changed)
    resume_point.statistics, remarks = restore_tensors(run, source, manifest, resume.allow_changed)
    resume_point.remarks += remarks
    resume_point.step = manifest["step"]
    resume_point.position = manifest["data"].get("position", resume_point.step * run.config.global_batch_size)
    resume_point.run_id = run_id_of(run.checkpoints, manifest) or resume_point.run_id
    resume_point.progress = manifest.get("progress", {})
    run.schedule.restore(resume_point.progress)


def _check_same_data(run: Run, source: Path, before: dict[str, Any]) -> None:
    if before.get("fingerprint") != run.source.fingerprint:
        classes, classes_now = (before.get("spec") or {}).get("num_classes"), run.recipe.data.num_classes
        others = "" if classes in (None, classes_now) else f"; {classes} classes then, {classes_now} now"
        raise UserError(
            f"--resume: {source} was made with other images than those of {run.source.name}, or other --channels "
            f"({before.get('num_images')} images then, {len(run.source)} now{others}); restore them, start anew in "
            "another --run-dir, or allow it with --allow-changed data"
        )


def _check_not_past_the_end(
    run: Run, named: Path | None, resume_point: ResumePoint, *, is_from_elsewhere: bool
) -> None:
    if resume_point.step > run.schedule.total_steps:
        what = f"--resume {named}: it" if named is not None else f"--resume: the newest checkpoint of {run.run_dir}"
        raise UserError(
            f"{what} is of step {resume_point.step}, and this run ends at step {run.schedule.total_steps}; "
            f"give its stages more steps{', or name an earlier checkpoint' if is_from_elsewhere else ''}"
        )


def _begin_own_folder(run: Run, resume_point: ResumePoint) -> None:
    """Write the restored checkpoint to the run's own folder, so that the run no longer needs the other one."""
    resume_point.run_id = uuid.uuid4().hex
    everyones = run.state.statistics.read()[None] if resume_point.statistics is None else resume_point.statistics
    checkpoint.write(
        run.checkpoints,
        snapshot(run, resume_point.step, resume_point.position, resume_point.run_id, everyones, resume_point.progress),
    )
