"""What an elastic run goes back to when a rank is lost: everything as it was some steps ago, in each rank's memory."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from hvdgan.resume import Found
from hvdgan.run import Run


class HostsChanged(Exception):
    """The ranks are to be other ones from here on; nothing is lost."""


@dataclasses.dataclass(frozen=True)
class Commit:
    """A moment of training in host memory, whole on every rank: whoever remains has the numbers of those that do not.

    step: steps done so far.
    values: copies of all variables by name.
    statistics: (size, n) float32, those of each rank.
    facts: the rest, as JSON, so that nothing in it can change later.
    """

    step: int
    values: dict[str, np.ndarray]
    statistics: np.ndarray
    facts: str


class Commits:
    """Keeps the last commit of this rank, from one set of ranks to the next.

    Args:
        every: steps between two commits.
        hosts_changed: whether some rank has heard of hosts that come or go; every rank calls it and gets the same.
    """

    def __init__(self, every: int, hosts_changed: Callable[[], bool]) -> None:
        self.every = every
        self.last: Commit | None = None
        self._hosts_changed = hosts_changed

    def take(
        self, run: Run, step: int, position: int, run_id: str, statistics: np.ndarray, progress: dict[str, Any]
    ) -> None:
        """Copy everything to memory; every rank calls it.

        Args:
            run: its variables are copied.
            step: steps done so far.
            position: samples seen so far.
            run_id: of the run that the folder belongs to.
            statistics: (size, n) float32, those of each rank.
            progress: what the loop needs to go on, expressible in JSON.
        """
        values = {name: np.array(variable.numpy()) for name, variable in run.state.tensors().items()}
        facts = {"position": position, "run_id": run_id, "progress": progress}
        self.last = Commit(step, values, statistics, json.dumps(facts))

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
        is_source = ranks.rank == root and last is not None
        mine = {"facts": last.facts, "shape": last.statistics.shape} if is_source and last else None
        said = ranks.gather(mine, "last commit")[root]
        if is_source and last:
            for name, variable in run.state.tensors().items():
                variable.assign(last.values[name])
        ranks.broadcast(list(run.state.tensors().values()), root)
        everyones = last.statistics if is_source and last else np.zeros(said["shape"], np.float32)
        everyones = ranks.broadcast_array(everyones, root)
        if everyones.size:
            same = len(everyones) == ranks.size
            # With other ranks than before all go on with the means.
            run.state.write_statistics(everyones[ranks.rank] if same else everyones.mean(axis=0, dtype=np.float64))
        facts = json.loads(said["facts"])
        run.schedule.ended.update({int(index): done for index, done in facts["progress"].get("ended", {}).items()})
        return Found(steps[root], facts["position"], facts["run_id"], everyones, facts["progress"])
