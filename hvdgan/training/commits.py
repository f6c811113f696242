"""What an elastic run goes back to when a rank is lost: a checkpoint in each rank's memory."""

import dataclasses
import json
from collections.abc import Callable

import numpy as np

from hvdgan.checkpoints.checkpoint import Snapshot, put_back
from hvdgan.training.resuming.claim import Found
from hvdgan.training.run import Run


class HostsChanged(Exception):
    """The ranks are to be other ones from here on; nothing is lost."""


class Commits:
    """Keeps the last commit of this rank, from one set of ranks to the next.

    It is whole on every rank, the others' statistics included: whoever remains has the numbers of those that do not.

    Args:
        every: steps between two commits.
        hosts_changed: whether some rank has heard of hosts that come or go; every rank calls it and gets the same.
    """

    def __init__(self, every: int, hosts_changed: Callable[[], bool]) -> None:
        self.every = every
        self.last: Snapshot | None = None
        self._hosts_changed = hosts_changed

    def take(self, snapshot: Snapshot) -> None:
        """Keep what every rank has copied after the same step."""
        # As JSON, so that nothing in it can change later.
        self.last = dataclasses.replace(snapshot, facts=json.loads(json.dumps(snapshot.facts)))

    def leave_if_hosts_changed(self) -> None:
        """End the loop here where others are to take part; every rank calls it after a commit.

        Raises:
            HostsChanged: on every rank alike.
        """
        if self._hosts_changed():
            raise HostsChanged

    def restore(self, run: Run) -> Found | None:
        """Go back to the newest commit of any rank; every rank calls it, those that are new too.

        Args:
            run: its variables receive the values.

        Returns:
            Where the run goes on, without the lock; None where no rank has a commit.
        """
        ranks, last = run.ranks, self.last
        steps = ranks.gather(-1 if last is None else last.step, "commits")
        root = steps.index(max(steps))
        if steps[root] < 0:
            return None
        mine, statistics = None, np.zeros((1, 0), np.float32)
        if ranks.rank == root and last is not None:
            statistics = put_back(run.state.tensors(), last)
            mine = {"facts": last.facts, "shape": statistics.shape, "dtype": str(statistics.dtype)}
        said = ranks.gather(mine, "last commit")[root]
        ranks.broadcast(list(run.state.tensors().values()), root)
        everyones = statistics if mine else np.zeros(said["shape"], said["dtype"])
        everyones = ranks.broadcast_array(everyones, root)
        if len(everyones) == ranks.size > 1:
            # With as many ranks as before each goes on with those of one; else all go on with the means.
            run.state.write_statistics(everyones[ranks.rank])
        facts = said["facts"]
        run.schedule.restore(facts["progress"])
        position, run_id = facts["data"]["position"], facts["run_id"]
        return Found(steps[root], position, run_id, everyones, facts["progress"], recovered=True)
