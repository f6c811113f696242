"""Restores a run on every rank: from its last commit in memory, from its folder, or from another checkpoint."""

import itertools
import re
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hvdgan.checkpoints import checkpoint, files
from hvdgan.data.training_data import KnownMaps
from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import RunError, UserError, shared_errors
from hvdgan.files.outputs import write_json
from hvdgan.settings.config import Config
from hvdgan.settings.file import read_settings
from hvdgan.training import run_folder
from hvdgan.training.build import Run, folder_of
from hvdgan.training.changes import check_checkpoint, drop_incomparable
from hvdgan.training.command import Resume
from hvdgan.training.resume_point import Commits, ResumePoint
from hvdgan.training.saving import snapshot
from hvdgan.training.state import copies_of
from hvdgan.values import sample_values

# The fields that every rank needs, because any of them may be rank 0 of an elastic run later.
_SHARED = ("step", "position", "run_id", "progress", "recovered")
# For each setting that adds tensors to a checkpoint: their kind, its name in messages, and their first values in a run
# whose checkpoint lacks them.
_TENSORS_OF = {
    "ema_decay": ("ema", "averages", "the weights"),
    "precision": ("loss_scales", "loss scales", "their first value"),
}


def restore(run: Run, resume: Resume, commits: Commits) -> ResumePoint:
    """Restore on one rank, and give all ranks its values; every rank calls this.

    An elastic run resumes from its last commit if any rank has one.

    Raises:
        UserError: the run cannot use the folder or the checkpoint.
        RunError: no checkpoint can be read, or the folder cannot be written.
    """
    ranks = run.ranks
    mine = -1 if commits.last is None else commits.last.step
    steps = ranks.gather(mine, "commits") if commits.every else [-1]
    root = steps.index(max(steps))  # rank 0 if no rank has a commit
    resume_point = ResumePoint()

    def read() -> dict[str, Any] | None:
        nonlocal resume_point
        if ranks.rank != root:
            return None
        resume_point = from_disk(run, resume) if steps[root] < 0 else _from_commit(run, commits)
        saved_by = 1 if resume_point.statistics is None else len(resume_point.statistics)
        return {**{name: getattr(resume_point, name) for name in _SHARED}, "saved_by": saved_by}

    shared = shared_errors.from_all(read, ranks, "restore")[root]
    for name in _SHARED:
        setattr(resume_point, name, shared[name])
    run.schedule.restore(resume_point.progress)
    drop_incomparable(run, resume_point)
    ranks.broadcast(list(run.state.tensors().values()), root)
    if resume_point.step:
        run.state.recipe_state.take(resume_point.rank_parts, root)
        run.state.local.take(resume_point.rank_parts, root)
    if ranks.size > 1 and shared["saved_by"] == ranks.size:  # else all ranks resume with the means
        own = run.state.statistics.read()
        everyones = np.zeros((ranks.size, len(own)), own.dtype)
        if resume_point.statistics is not None:  # on the root
            everyones = resume_point.statistics.astype(own.dtype)
        run.state.statistics.write(ranks.broadcast_array(everyones, root)[ranks.rank])
    if resume_point.recovered:
        # The previous rank 0, which may have run on this host, may still be about to end.
        shared_errors.from_root(lambda: run_folder.lock(run, resume_point, living=True), ranks, "run folder")
    return resume_point


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


def from_disk(run: Run, resume: Resume) -> ResumePoint:
    """Take the run folder and restore its checkpoint, or the one that the command names; only one rank calls this."""
    if unknown := set(resume.allow_changed) - run.settings().keys() - {"frozen"}:
        raise UserError(
            f"--allow-changed {','.join(resume.allow_changed)}: there is no setting {', '.join(sorted(unknown))}; "
            "expected names as in config.json"
        )
    if resume.init_networks and resume.init_from is None:
        raise UserError(f"--init-networks {','.join(resume.init_networks)}: name the run with --init-from")
    resume_point = ResumePoint(run_id=uuid.uuid4().hex)
    try:
        _from_disk(run, resume, resume_point)
    except BaseException as error:
        if resume_point.lock is not None:
            resume_point.lock.close()
        if isinstance(error, OSError):
            raise UserError(f"--run-dir {run.run_dir}, --resume {resume.resume}: {error}") from error
        raise
    return resume_point


def _from_disk(run: Run, resume: Resume, resume_point: ResumePoint) -> None:
    # A folder that exists is locked before it is read. A new one is made only when nothing is refused any more.
    is_new = run_folder.is_new(run)
    if not is_new:
        run_folder.lock(run, resume_point)
        files.remove_partial(run.checkpoints)
    named = run_folder.named_checkpoint(run, resume.resume)
    if named is not None:
        _restore(run, named, resume, resume_point)
    elif candidates := files.newest_first(run.checkpoints):
        _restore_newest(run, candidates, resume, resume_point)
    elif run.config_path.is_file() and read_settings(run.config_path).get("recipe") != run.config.recipe:
        raise UserError(
            f"{run.config_path} is not of this recipe, {run.config.recipe}, and there is no checkpoint; name another "
            "--run-dir"
        )
    if not resume_point.step and resume.init_from is not None:
        resume_point.remarks.append(_take_networks(run, resume.init_from, resume.init_networks))
    is_from_elsewhere = named is not None and named.parent.resolve() != run.checkpoints.resolve()
    if resume_point.step > run.schedule.total_steps:
        what = f"--resume {named}: it" if named is not None else f"--resume: the newest checkpoint of {run.run_dir}"
        raise UserError(
            f"{what} is of step {resume_point.step}, and this run ends at step {run.schedule.total_steps}; "
            f"give its stages more steps{', or name an earlier checkpoint' if is_from_elsewhere else ''}"
        )
    if is_from_elsewhere or resume_point.step < run.last_step:
        if is_new:
            run_folder.lock(run, resume_point)
        run_folder.check_progress(run.run_dir, resume_point.step)
        run_folder.note_launch(run.run_dir, new=is_new)
        write_json(run.config_path, run.settings(), indent=2)
    if named is not None:
        # Noted before the first checkpoint: until there is one, the same command begins at the named one again.
        run_folder.note_checkpoint(run.run_dir, named)
    if is_from_elsewhere:
        _begin_own_folder(run, resume_point)


def _restore_newest(run: Run, candidates: list[Path], resume: Resume, resume_point: ResumePoint) -> None:
    """Restore the newest checkpoint that is not damaged, and log the damaged ones."""
    damaged = []
    for candidate in candidates:
        try:
            _restore(run, candidate, resume, resume_point)
        except files.DamagedCheckpoint as error:
            damaged.append(error.what)
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
    remarks = check_checkpoint(run, source, manifest, resume.allow_changed)
    rank_parts = {**run.state.recipe_state.whole_variables(), **run.state.local.whole_variables(manifest["tensors"])}
    resume_point.statistics, of_tensors = _restore_tensors(run, source, manifest, resume.allow_changed, rank_parts)
    saved = {name: each for name, each in rank_parts.items() if name in manifest["tensors"]}
    resume_point.rank_parts = copies_of(saved)
    resume_point.remarks += [*remarks, *of_tensors]
    resume_point.step, resume_point.position = manifest["step"], manifest["samples_seen"]
    resume_point.run_id, resume_point.progress = manifest["run_id"], manifest["progress"]
    run.schedule.restore(resume_point.progress)


def _restore_tensors(
    run: Run, source: Path, manifest: dict[str, Any], allow_changed: Iterable[str], rank_parts: checkpoint.Tensors
) -> tuple[np.ndarray | None, list[str]]:
    """Restore all tensors, except for kinds that only the checkpoint or only the run has, where that is allowed."""
    tensors = {**run.state.tensors(), **rank_parts}
    theirs, own = ({_kind(name) for name in names} for names in (manifest["tensors"], tensors))
    skipped, remarks = set(), []
    for setting, (kind, what, first) in _TENSORS_OF.items():
        if setting in allow_changed and kind in theirs ^ own:
            skipped |= {kind, f"local/{kind}"}
            then = "are dropped" if kind in theirs else f"are not there, and begin at {first}"
            remarks.append(f"warning: the {what} of {source} {then}")
    only = tuple(f"{kind}/" for kind in sorted((theirs | own) - skipped))
    wanted = {name: variable for name, variable in tensors.items() if name.startswith(only)}
    saved = checkpoint.restore(source, manifest, wanted, only)
    statistics = saved
    if saved is not None and saved.shape[1] != len(run.state.statistics.read()):
        statistics = None
        remarks.append(
            f"warning: {source} was made with other statistics of each rank; all ranks resume with their means"
        )
    if "ema" in skipped:
        _begin_averages(run, run.state.ema)
    return statistics, remarks


def _kind(name: str) -> str:
    """What a tensor is, by its name: networks, optimizers, ema, ...; local/ema, ... if each rank has one of its own."""
    words = name.split("/")
    return "/".join(words[:2]) if words[0] == "local" else words[0]


def _take_networks(run: Run, source: Path, names: tuple[str, ...]) -> str:
    """Give networks of a new run, and their averages, the values of another run's networks."""
    where = f"--init-from {source}"
    try:
        source = files.find(source)
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
    own, saved, moved = run.state.tensors(), manifest["tensors"], dict[str, str]()
    for kind in ("networks", "ema"):
        wanted = dict[str, Any]()
        for name in sorted(chosen):
            wanted |= _by_their_names(where, own, saved, f"{kind}/{name}/", moved)
        if kind == "ema":
            _begin_averages(run, chosen & run.state.ema.keys())  # which stay where the other run has none
        checkpoint.restore(source, manifest, wanted, only=tuple(wanted))
    run.state.reset_optimizers(run.recipe, chosen)  # some keep a copy of the weights, as ScheduleFreeAdamW
    remarks = [f"; the layers of {name} have moved, and are taken {how}" for name, how in moved.items()]
    return f"{', '.join(sorted(chosen))} taken from {source}{''.join(remarks)}"


def _by_their_names(
    where: str, own: checkpoint.Tensors, saved: Mapping[str, Any], folder: str, moved: dict[str, str]
) -> checkpoint.Tensors:
    """The variables of a folder by their names in another run, where Keras may have numbered the layers otherwise."""
    mine, theirs = ([key for key in some if key.startswith(folder)] for some in (own, saved))
    if not (mine and theirs):
        return {}
    if mine != theirs:
        moved[folder.split("/")[1]], mine = ("in order", mine) if {*mine} ^ {*theirs} else ("by name", theirs)
    for here, there in itertools.zip_longest(mine, theirs, fillvalue=""):
        now = here and f"{own[here].dtype} {tuple(own[here].shape)}"
        was = there and f"{saved[there]['dtype']} {tuple(saved[there]['shape'])}"
        words = [re.sub(r"_\d+$", "", key.rpartition("/")[2]) for key in (here, there)]  # such as kernel
        if now != was or words[0] != words[1]:
            it = f"it has {there or 'nothing'} {was} where this run has {here or 'nothing'} {now}"
            raise UserError(f"{where}: {it}; take other networks with --init-networks")
    return dict(zip(theirs, (own[key] for key in mine), strict=True))


def _begin_averages(run: Run, networks: Iterable[str]) -> None:
    """Set the averages of these networks to their weights, as in a new run."""
    pairs = run.state.sampling_values()
    for variable, average in (pair for name in networks for pair in pairs[name]):
        average.assign(variable)


def _begin_own_folder(run: Run, resume_point: ResumePoint) -> None:
    """Write the restored checkpoint to the run's own folder, so that the run no longer needs the other one."""
    resume_point.run_id = uuid.uuid4().hex
    everyones = run.state.statistics.read()[None] if resume_point.statistics is None else resume_point.statistics
    files.write(
        run.checkpoints,
        snapshot(
            run,
            resume_point.step,
            resume_point.position,
            resume_point.run_id,
            (everyones, resume_point.rank_parts),
            resume_point.progress,
        ),
    )


def _from_commit(run: Run, commits: Commits) -> ResumePoint:
    """Give this rank's variables the values of its last commit."""
    assert commits.last is not None
    statistics = checkpoint.put_back(run.state.tensors(), commits.last)
    facts = commits.last.facts
    position, run_id, progress = facts["samples_seen"], facts["run_id"], facts["progress"]
    rank_parts = {name: commits.last.values[name] for name in (*run.state.recipe_state.own(), *run.state.local.own())}
    return ResumePoint(commits.last.step, position, run_id, statistics, progress, recovered=True, rank_parts=rank_parts)
