"""Restores a run on every rank: from its last commit in memory, or from its folder or another checkpoint."""

from typing import Any

import numpy as np

from hvdgan.checkpoints.checkpoint import put_back
from hvdgan.cli import shared_errors
from hvdgan.cli.errors import unwritable
from hvdgan.training import other_distances, run_folder
from hvdgan.training.command import Resume
from hvdgan.training.commits import Commits
from hvdgan.training.resume_point import ResumePoint
from hvdgan.training.run import Run

# The fields that every rank needs, because any of them may be rank 0 of an elastic run later.
_SHARED = ("step", "position", "run_id", "progress", "recovered")


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
    ranks = run.ranks
    mine = -1 if commits.last is None else commits.last.step
    steps = ranks.gather(mine, "commits") if commits.every else [-1]
    root = steps.index(max(steps))  # rank 0 if no rank has a commit
    resume_point = ResumePoint()

    def read() -> dict[str, Any] | None:
        nonlocal resume_point
        if ranks.rank != root:
            return None
        resume_point = run_folder.take(run, resume) if steps[root] < 0 else _from_commit(run, commits)
        saved_by = 1 if resume_point.statistics is None else len(resume_point.statistics)
        return {**{name: getattr(resume_point, name) for name in _SHARED}, "saved_by": saved_by}

    shared = shared_errors.from_all(read, ranks, "restore")[root]
    for name in _SHARED:
        setattr(resume_point, name, shared[name])
    run.schedule.restore(resume_point.progress)
    other_distances.begin_anew(run, resume_point)
    ranks.broadcast(list(run.state.tensors().values()), root)
    if shared["saved_by"] == ranks.size > 1:  # else all ranks resume with the means
        _share_statistics(run, resume_point.statistics, root)
    if resume_point.recovered:
        shared_errors.from_root(lambda: _lock(run, resume_point), ranks, "run folder")
    return resume_point


def _from_commit(run: Run, commits: Commits) -> ResumePoint:
    """Give this rank's variables the values of its last commit."""
    assert commits.last is not None
    statistics = put_back(run.state.tensors(), commits.last)
    facts = commits.last.facts
    position, run_id, progress = facts["data"]["position"], facts["run_id"], facts["progress"]
    return ResumePoint(commits.last.step, position, run_id, statistics, progress, recovered=True)


def _share_statistics(run: Run, everyones: np.ndarray | None, root: int) -> None:
    """Give each rank its own statistics; `everyones`, (size, n), is known on rank `root` alone."""
    mine = run.state.statistics.read()
    sent = np.zeros((run.ranks.size, len(mine)), mine.dtype) if everyones is None else everyones.astype(mine.dtype)
    run.state.statistics.write(run.ranks.broadcast_array(sent, root)[run.ranks.rank])


def _lock(run: Run, resume_point: ResumePoint) -> None:
    try:
        # The previous rank 0, which may have run on this host, may still be about to end.
        run_folder.lock(run, resume_point, living=True)
    except OSError as error:
        raise unwritable(run.run_dir, error) from error
