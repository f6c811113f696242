"""Keeps a checkpoint of an elastic run in each rank's memory, from which it resumes when a rank is lost."""

import dataclasses
import json
from collections.abc import Callable

from hvdgan.checkpoints.checkpoint import Snapshot


class HostsChanged(Exception):
    """The ranks are about to change, and nothing is lost."""


class Commits:
    """The last commit of this rank; it outlives the set of ranks that made it.

    It is complete on every rank, with the statistics of all ranks, so that any remaining rank can restore the run.

    Args:
        every: number of steps between two commits; 0: none, because the run is not elastic.
        hosts_changed: function that checks whether hosts come or go, with the same answer on every rank; every rank
            calls it.
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
        """Leave the loop if other ranks are to take part; every rank calls this after a commit.

        Raises:
            HostsChanged: on every rank.
        """
        if self._hosts_changed():
            raise HostsChanged
