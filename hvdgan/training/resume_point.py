"""The point from which a run resumes: a checkpoint, or a commit of an elastic run in memory."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from hvdgan.checkpoints.files import Snapshot
from hvdgan.files.lock import Lock


@dataclasses.dataclass(frozen=True)
class ResumePoint:
    """The point from which a run resumes; step 0 in a new run."""

    step: int = 0
    position: int = 0
    """number of samples seen, which is the position of the next one in the order of all samples"""
    run_id: str = ""
    saved_by: int = 0
    """number of ranks that the run had; 0 if it is new"""
    progress: dict[str, Any] = dataclasses.field(default_factory=dict)
    """state of the loop, as it was given to saving.snapshot()"""
    remarks: list[str] = dataclasses.field(default_factory=list)
    """lines to log"""
    lock: Lock | None = None
    """lock of the run folder; None on the ranks that do not write"""
    recovered: bool = False
    """whether the run resumes from a commit of an elastic run"""

    @staticmethod
    def of(snapshot: Snapshot, progress: dict[str, Any], *, recovered: bool = False) -> "ResumePoint":
        """Where a snapshot was taken, with what a run can use of its progress."""
        position, run_id, saved_by = (snapshot.facts[name] for name in ("samples_seen", "run_id", "ranks"))
        return ResumePoint(snapshot.step, position, run_id, saved_by, progress, recovered=recovered)

    def samples_seen(self, done: int, global_batch_size: int) -> int:
        """Number of samples seen after `done` steps of the run."""
        return self.position + (done - self.step) * global_batch_size


class HostsChanged(Exception):
    """The ranks are about to change, and nothing is lost."""


class Commits:
    """The last commit of this rank; it outlives the set of ranks that made it.

    It is complete on every rank, with the values of all ranks, so that any remaining rank can restore the run.

    every: number of steps between two commits; 0: none, because the run is not elastic.
    hosts_changed: function that checks whether hosts come or go, the same on every rank; every rank calls it.
    """

    def __init__(self, every: int = 0, hosts_changed: Callable[[], bool] = lambda: False) -> None:
        self.every = every
        self.last: Snapshot | None = None
        self._hosts_changed = hosts_changed

    def take(self, snapshot: Snapshot) -> None:
        """Keep a snapshot that every rank has taken after the same step."""
        # A copy through JSON, so that later changes of the facts do not reach it.
        self.last = dataclasses.replace(snapshot, facts=json.loads(json.dumps(snapshot.facts)))

    def leave_if_hosts_changed(self) -> None:
        """Leave the loop by HostsChanged if other ranks are to take part; every rank calls this after a commit."""
        if self._hosts_changed():
            raise HostsChanged
