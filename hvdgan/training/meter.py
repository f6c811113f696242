"""Averages a run's metrics over steps and ranks, and logs them."""

import math
from collections.abc import Sequence
from typing import Any

from hvdgan.cli.config import Config
from hvdgan.cli.errors import RunError
from hvdgan.data import BadFile
from hvdgan.distributed.ranks import Ranks
from hvdgan.recipe.schedule import Position, is_due
from hvdgan.training.bad_files import BadFiles
from hvdgan.training.record import Record
from hvdgan.training.window import Window


class Meter:
    """Collects the metrics of each step and logs their means.

    Args:
        ranks: ranks over which means are taken.
        config: configuration; log_every and global_batch_size are used.
        record: record of the run.
        bad_files: broken files; reported with each log line.
        state: return value of state() from which to resume; None: an empty window.
    """

    def __init__(
        self, ranks: Ranks, config: Config, record: Record, bad_files: BadFiles, state: dict[str, list[float]] | None
    ) -> None:
        self._ranks = ranks
        self._config = config
        self._record = record
        self._bad_files = bad_files
        self._window = Window(state)

    def add(self, values: dict[str, Any]) -> None:
        """Add one step's metrics by name."""
        self._window.add(values)

    def state(self) -> dict[str, list[float]]:
        """Return what a resumed run needs of the steps since the last log line, as JSON types."""
        return self._window.state()

    def log(self, done: int, at: Position, bad_files: Sequence[BadFile]) -> dict[str, float]:
        """Log the means since the last log line; every rank calls this after the same step.

        Args:
            done: number of steps done.
            at: position of the last step.
            bad_files: broken files that this rank has met.

        Returns:
            The means by name.

        Raises:
            RunError: the ranks have different metrics, a loss is not finite, or too many files are broken.
        """
        own = self._window.means()
        if is_due(done, self._config.log_every):  # a record at the end of the run leaves the window to a resumed run
            self._window = Window()
        everyones = self._ranks.gather(own, "metrics")
        if any(each.keys() != own.keys() for each in everyones):
            raise RunError(f"step {done}: the ranks have different metrics: {[sorted(each) for each in everyones]}")
        weighted = list(zip(self._ranks.weights(self._config.global_batch_size), everyones, strict=True))
        values = {name: sum(weight * each[name] for weight, each in weighted) / self._ranks.size for name in own}
        if bad := [name for name, value in values.items() if name.endswith("/loss") and not math.isfinite(value)]:
            raise RunError(f"step {done}, stage {at.stage.name}: {bad[0]} is not finite")
        images_per_sec = self._config.global_batch_size / values["step_seconds"]
        self._bad_files.report(bad_files)
        extra = {"images_per_sec": images_per_sec, "bad_files": len(self._bad_files.known), **_longest_wait(everyones)}
        self._record.write(done, at.stage.name, at.stage_step + 1, {**extra, **values})
        return values


def _longest_wait(everyones: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the rank that waits longest for its images, and its seconds per step; nothing of a single rank."""
    waits = [each["wait_seconds"] for each in everyones]
    longest = max(waits)
    return {"wait_seconds_max": longest, "wait_rank": waits.index(longest)} if len(waits) > 1 else {}
