"""Restores a run on all ranks: from the newest commit of an elastic run, else from its folder."""

from typing import Any

import numpy as np

from hvdgan.checkpoints.checkpoint import put_back
from hvdgan.cli import shared_errors
from hvdgan.cli.errors import RunError
from hvdgan.cli.lock import wait_for_lock
from hvdgan.training.building.command import Resume
from hvdgan.training.building.run import Run
from hvdgan.training.resuming.claim import claim
from hvdgan.training.resuming.commits import Commits
from hvdgan.training.resuming.resume_point import ResumePoint

# The fields that every rank needs, because any of them may be rank 0 of an elastic run later.
_SHARED = ("step", "position", "run_id", "progress")


def restore(run: Run, resume: Resume, commits: Commits) -> ResumePoint:
    """Restore on one rank, and give all ranks its values; every rank calls this.

    Args:
        run: run whose variables receive the values.
        resume: settings of the command line that say where to begin.
        commits: commits of an elastic run, from which it resumes if any rank has one.

    Raises:
        UserError: the run cannot use the folder or the checkpoint.
        RunError: no checkpoint can be read, or the folder cannot be written.
    """
    found = _from_commit(run, commits) if commits.every else None
    return found or _from_folder(run, resume)


def _from_folder(run: Run, resume: Resume) -> ResumePoint:
    ranks, state = run.ranks, run.state
    found = ResumePoint()

    def work() -> dict[str, Any]:
        nonlocal found
        found = claim(run, resume)
        saved_by = 1 if found.statistics is None else len(found.statistics)
        return {**{name: getattr(found, name) for name in _SHARED}, "saved_by": saved_by}

    restored = shared_errors.from_root(work, ranks, "restore")
    found.step, found.position, found.run_id, found.progress = (restored[name] for name in _SHARED)
    run.schedule.restore(found.progress)
    ranks.broadcast(list(state.tensors().values()))
    if restored["saved_by"] == ranks.size > 1:
        mine = state.statistics.read()
        everyones = np.zeros((ranks.size, len(mine))) if found.statistics is None else found.statistics
        _take_statistics(run, ranks.broadcast_array(everyones.astype(mine.dtype)))
    return found


def _from_commit(run: Run, commits: Commits) -> ResumePoint | None:
    """Restore the newest commit of any rank, and let rank 0 take the run folder; None if no rank has a commit."""
    ranks, last = run.ranks, commits.last
    steps = ranks.gather(-1 if last is None else last.step, "commits")
    root = steps.index(max(steps))
    if steps[root] < 0:
        return None
    mine, statistics = None, np.zeros((1, 0), np.float32)
    if ranks.rank == root and last is not None:
        statistics = put_back(run.state.tensors(), last)
        mine = {"facts": last.facts, "shape": statistics.shape, "dtype": str(statistics.dtype)}
    committed = ranks.gather(mine, "last commit")[root]
    ranks.broadcast(list(run.state.tensors().values()), root)
    if mine is None:
        statistics = np.zeros(committed["shape"], committed["dtype"])
    statistics = ranks.broadcast_array(statistics, root)
    _take_statistics(run, statistics)
    facts = committed["facts"]
    run.schedule.restore(facts["progress"])
    position, run_id = facts["data"]["position"], facts["run_id"]
    found = ResumePoint(steps[root], position, run_id, statistics, facts["progress"], recovered=True)
    shared_errors.from_root(lambda: _take_lock(run, found), ranks, "run folder")
    return found


def _take_statistics(run: Run, everyones: np.ndarray) -> None:
    """Give this rank its own statistics if there were as many ranks as now; else all ranks keep the means."""
    if len(everyones) == run.ranks.size > 1:
        run.state.statistics.write(everyones[run.ranks.rank])


def _take_lock(run: Run, found: ResumePoint) -> None:
    try:
        # The previous rank 0, which may have run on this host, may still be about to end.
        found.lock = wait_for_lock(run.run_dir, living=True)
    except OSError as error:
        raise RunError(f"{run.run_dir} cannot be written: {error}; free space or rights, then resume") from error
