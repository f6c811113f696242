"""Restores a run on every rank: from its last commit in memory, from its folder, or from another checkpoint."""

import contextlib
import dataclasses
import functools
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hvdgan.checkpoints import files
from hvdgan.checkpoints.files import Snapshot
from hvdgan.checkpoints.tensor_names import EMA, LOSS_SCALES, kind_of
from hvdgan.data.domains import KnownMaps
from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import RunError, UserError, shared_errors
from hvdgan.settings.config import Config
from hvdgan.training import run_folder
from hvdgan.training.build import Run, folder_of
from hvdgan.training.changes import compare
from hvdgan.training.command import Resume
from hvdgan.training.initial_weights import take
from hvdgan.training.rank_state import Everyones
from hvdgan.training.saving import Commits, ResumePoint, snapshot
from hvdgan.values import sample_values

_MAY_LACK = {"ema_decay": (EMA, "averages"), "precision": (LOSS_SCALES, "loss scales")}
"""the kind of tensors, and its name in messages, that a checkpoint or the run may lack if this setting may change"""


class Saved(NamedTuple):
    """A checkpoint that was read and verified."""

    path: Path
    snapshot: Snapshot


def restore(run: Run, resume: Resume, commits: Commits) -> ResumePoint:
    """Restore on one rank, and give all ranks its values; every rank calls this.

    An elastic run resumes from its last commit if any rank has one.
    """
    root, commit = _newest_commit(run.ranks, commits)

    def on_root() -> tuple[ResumePoint, Everyones]:
        if run.ranks.rank != root:
            return ResumePoint(), {}
        if commit is not None:
            assign(run, Saved(Path("the last commit"), commit))
            return ResumePoint.of(commit, commit.facts["progress"], recovered=True), commit.of_ranks()
        _refuse_wrong_flags(run, resume)
        with _released_if_refused(run, resume) as undo:
            held = undo.enter_context(run_folder.lock(run) or contextlib.nullcontext())
            candidates = run_folder.find(run, resume.resume)
            saved, remarks = verify(candidates, resume)
            if saved is None:
                remarks, initial = take(run.config, run.state, run.recipe)
                point = ResumePoint(run_id=uuid.uuid4().hex, initial=initial)
            else:
                progress, differing = compare(run, saved.path, saved.snapshot.facts, resume.allow_changed)
                remarks += [*differing, *assign(run, saved, resume.allow_changed)]
                point = ResumePoint.of(saved.snapshot, progress)
            point = _begin(run, resume, undo, saved, dataclasses.replace(point, lock=held, remarks=remarks))
        return point, {} if saved is None else saved.snapshot.of_ranks()

    return broadcast(run, root, *shared_errors.on_all(on_root, run.ranks, "restore"))


def verify(candidates: Sequence[Path], resume: Resume) -> tuple[Saved | None, list[str]]:
    """Read the first checkpoint that is not damaged, and verify its tensors; returns lines about the damaged ones."""
    damaged = list[str]()
    for path in candidates:
        try:
            saved = Saved(path, files.read(path))
        except files.DamagedCheckpoint as error:
            damaged.append(error.what)
            continue
        remarks = [f"warning: {each}; resuming from {path.name} instead" for each in damaged]
        if resume.resume not in ("auto", "never") and candidates[0].name != Path(resume.resume).name:
            remarks.append(
                f"--resume {resume.resume}: the run of this folder began there, and resumes at its newest "
                f"checkpoint, {candidates[0].name}; to go back, name another --run-dir"
            )
        return saved, remarks
    if damaged:
        raise RunError(
            f"no checkpoint in {candidates[0].parent} can be used: {'; '.join(damaged)}; bring one back, or start anew "
            "in another --run-dir"
        )
    return None, []


def assign(run: Run, saved: Saved, allow_changed: Iterable[str] = ()) -> list[str]:
    """Give this rank's variables their values; returns lines about tensors that only the run or the checkpoint has."""
    path, snapshot = saved
    tensors, values, remarks = run.state.tensors(), snapshot.of_root(), list[str]()
    for kind, what in (_MAY_LACK[setting] for setting in allow_changed if setting in _MAY_LACK):
        theirs, own = ({name for name in names if kind_of(name) == kind} for names in (values, tensors))
        if not (theirs and own):
            values = {name: value for name, value in values.items() if name not in theirs}
            tensors = {name: variable for name, variable in tensors.items() if name not in own}
            then = "are dropped" if theirs else "are not there, and begin as in a new run"
            remarks += [f"warning: the {what} of {path} {then}"] * bool(theirs or own)
    run.rank_state.check_fits(snapshot, str(path))
    files.assign(tensors, values, path)
    if not any(kind_of(name) == EMA for name in values):
        run.state.begin_averages(run.state.ema)
    run.plan.resume(snapshot.facts["progress"])
    return remarks


def broadcast(run: Run, root: int, point: ResumePoint, everyones: Everyones) -> ResumePoint:
    """Give all ranks what the root has restored: its resume point, its variables, and their parts of `everyones`."""
    ranks = run.ranks
    # Every rank needs all of it, because any of them may be rank 0 of an elastic run later.
    facts = {field.name: getattr(point, field.name) for field in dataclasses.fields(point) if field.name != "lock"}
    facts = ranks.gather(facts if ranks.rank == root else None, "the resume point")[root]
    if ranks.rank != root:
        point = ResumePoint(**facts)
        run.plan.resume(point.progress)
    run.state.schedules.restore(run.plan, point.step)
    ranks.broadcast(list(run.state.tensors().values()), root)
    if point.saved_by:
        run.rank_state.scatter(everyones, point.saved_by, root)
    if point.recovered:
        # The previous rank 0, which may have run on this host, may still be about to end.
        work = functools.partial(run_folder.take, run, living=True) if ranks.is_root else lambda: None
        point = dataclasses.replace(point, lock=shared_errors.on_all(work, ranks, "run folder"))
    return point


def saved_maps(config: Config, resume: str, ranks: Ranks) -> KnownMaps | None:
    """The maps of the checkpoint that a run resumes, with their statistics, which need not be computed again then."""

    def look() -> list[Any] | None:
        if resume == "never":
            return None
        try:
            data = files.read_manifest(files.find(folder_of(config) if resume == "auto" else Path(resume)))["data"]
        except RunError:
            return None
        spec = data["spec"]
        values = [each["values"] for each in spec["domains"].values() or [spec]]
        return None if None in values else [data["fingerprint"], values]

    found = shared_errors.from_root(look, ranks, "the value maps of the checkpoint")
    return None if found is None else KnownMaps(found[0], [sample_values.of_json(each) for each in found[1]])


def _newest_commit(ranks: Ranks, commits: Commits) -> tuple[int, Snapshot | None]:
    """The first rank with the newest commit, and this rank's own; rank 0 if none has one. Every rank calls this."""
    mine = -1 if commits.last is None else commits.last.step
    steps = ranks.gather(mine, "commits") if commits.every else [-1]
    return steps.index(max(steps)), commits.last if max(steps) >= 0 else None


@contextlib.contextmanager
def _released_if_refused(run: Run, resume: Resume) -> Iterator[contextlib.ExitStack]:
    """Release the lock that the block takes if it fails; it is held until the run ends otherwise."""
    with contextlib.ExitStack() as undo:
        try:
            yield undo
        except OSError as error:
            raise UserError(f"--run-dir {run.run_dir}, --resume {resume.resume}: {error}") from error
        undo.pop_all()


def _refuse_wrong_flags(run: Run, resume: Resume) -> None:
    if unknown := set(resume.allow_changed) - run.settings().keys() - {"frozen"}:
        raise UserError(
            f"--allow-changed {','.join(resume.allow_changed)}: there is no setting {', '.join(sorted(unknown))}; "
            "expected names as in config.json"
        )


def _begin(
    run: Run, resume: Resume, undo: contextlib.ExitStack, saved: Saved | None, point: ResumePoint
) -> ResumePoint:
    """Write to the run folder that this run begins there, unless it has nothing to do."""
    is_from_elsewhere = saved is not None and saved.path.parent.resolve() != run.checkpoints.resolve()
    if point.step > run.plan.total_steps:
        what = f" {resume.resume}: it" if is_from_elsewhere else f": the newest checkpoint of {run.run_dir}"
        raise UserError(
            f"--resume{what} is of step {point.step}, and this run ends at step {run.plan.total_steps}; "
            f"give its stages more steps{', or name an earlier checkpoint' if is_from_elsewhere else ''}"
        )
    held = point.lock
    if is_from_elsewhere or point.step < run.last_step:
        held = held or undo.enter_context(run_folder.take(run))
        run_folder.claim(run, point.step, point.initial, new=point.lock is None)
    if resume.resume not in ("auto", "never"):
        # Noted before the first checkpoint: until there is one, the same command begins at the named one again.
        run_folder.note_checkpoint(run.run_dir, Path(resume.resume))
    if saved is not None and is_from_elsewhere:  # the run no longer needs the other folder
        point = dataclasses.replace(point, run_id=uuid.uuid4().hex)
        everyones, size = saved.snapshot.of_ranks(), point.saved_by
        files.write(run.checkpoints, snapshot(run, point, point.step, everyones, point.progress, size))
    return dataclasses.replace(point, lock=held, remarks=[*(held.remarks if held else ()), *point.remarks])
