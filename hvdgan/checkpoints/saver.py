"""Writes checkpoints beside the training steps, and deletes those that need not stay."""

import dataclasses
import shutil
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from hvdgan.checkpoints import checkpoint, files
from hvdgan.checkpoints.direction import mode_of
from hvdgan.errors import RunError, UserError
from hvdgan.runs.events import Checkpoint, Event


@dataclasses.dataclass(frozen=True)
class Best:
    """The best checkpoint so far, by a metric."""

    metric: str  # its name in metrics.jsonl
    mode: str  # min if lower is better, max if higher is
    value: float | None = None  # the metric at the best step; None before the first measurement
    step: int | None = None

    @staticmethod
    def of(metric: str | None, mode: str | None, saved: dict[str, Any] | None) -> "Best | None":
        """Return the best so far from a checkpoint's manifest, or an empty one; None if there is no metric."""
        if metric is None:
            return None
        mode = mode or mode_of(metric)
        same = saved is not None and (saved["metric"], saved["mode"]) == (metric, mode)
        return Best(**saved) if same and saved else Best(metric, mode)

    def after(self, step: int, value: float | None) -> "Best":
        """Return the best after a checkpoint with this value was added; None: the metric was not measured."""
        if value is None or value != value:
            return self
        better = self.value is None or (value < self.value if self.mode == "min" else value > self.value)
        return dataclasses.replace(self, value=value, step=step) if better else self


def check_best_metric(metric: str | None, names: Collection[str]) -> None:
    """Refuse a --best-metric that is not among the names of the run's metrics."""
    if metric is not None and metric not in names:
        raise UserError(f"--best-metric {metric}: the run has {', '.join(sorted(names))}")


@dataclasses.dataclass(frozen=True)
class Retention:
    """Deletes checkpoints of this run that need not stay, and never those of another run."""

    keep: int  # number of newest checkpoints to keep; 0: all

    def prune(self, folder: Path, newest: checkpoint.Snapshot) -> list[str]:
        """Delete old checkpoints of the run that wrote `newest`; returns a message for each that cannot be deleted."""
        if not self.keep:
            return []
        run_id = newest.facts["run_id"]
        mine = [(path, manifest) for path, manifest in _manifests(folder) if manifest["run_id"] == run_id]
        mine.sort(key=lambda each: each[1]["step"])
        stay = {manifest["step"] for _, manifest in mine[-self.keep :]}
        stay |= set({manifest["stage_index"]: manifest["step"] for _, manifest in mine}.values())  # the last of each
        # The best by the newest, or by an older one if the best could not be written.
        there = {manifest["step"] for _, manifest in mine}
        bests = [(manifest.get("best") or {}).get("step") for _, manifest in reversed(mine)]
        stay |= set([step for step in bests if step in there][:1])
        failures = []
        for path, manifest in mine:
            if manifest["step"] not in stay and manifest["step"] < newest.step:
                doomed = path.with_name(f".{path.name}.deleted")
                try:
                    path.rename(doomed)  # atomic, so that no reader finds half a checkpoint
                    shutil.rmtree(doomed)  # checkpoint.write() deletes what a failure leaves here
                except OSError as error:
                    failures.append(f"old checkpoint {path} cannot be removed: {error}; the next save tries again")
        return failures


def _manifests(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    found = []
    for path in files.newest_first(folder):
        try:
            found.append((path, files.read_manifest(path)))
        except RunError:
            continue  # a folder without a readable manifest may not be of this run
    return found


class Saver:
    """Writes one snapshot at a time. Only rank 0 writes; on the other ranks each method does nothing.

    `say` logs a line, `tell` an event, `join` waits for a thread, and the thread calls `before_write`.
    """

    def __init__(
        self,
        folder: Path,
        retention: Retention,
        say: Callable[[str], None],
        tell: Callable[[Event], None] = lambda _: None,
        join: Callable[[threading.Thread], None] = threading.Thread.join,
        before_write: Callable[[], None] = lambda: None,
        *,
        is_root: bool = True,
    ) -> None:
        self._folder = folder
        self._retention = retention
        self._say = say
        self._tell = tell
        self._join = join
        self._before_write = before_write
        self._is_root = is_root
        self._thread: threading.Thread | None = None
        self._failure: RunError | None = None
        self.failed: set[int] = set()
        """steps whose checkpoints could not be written"""
        self._unremoved: list[str] = []
        self._took: Checkpoint | None = None

    def save(self, take: Callable[[], checkpoint.Snapshot]) -> None:
        """Start to write what take() returns, called on rank 0 alone, after the previous snapshot is written.

        A failure to write does not end the run: it is logged, and the next checkpoint is another try.
        """
        if not self._is_root:
            return
        begin = time.perf_counter()
        snapshot = take()
        if self._thread and self._thread.is_alive():
            self._say(
                f"step {snapshot.step}: the run waits for the previous checkpoint to be written; consider a larger "
                "--checkpoint-every, or a larger --eval-every if --best-metric saves so often"
            )
        self.report(wait=True)
        self._failure = None
        # Not a daemon thread: an exit in the middle of a write would waste it.
        self._thread = threading.Thread(
            target=self._write, args=(snapshot, time.perf_counter() - begin), name="checkpoint"
        )
        self._thread.start()

    def report(self, *, wait: bool = False) -> None:
        """Log, once, that the last write has failed, if it has ended."""
        if self._thread and (wait or not self._thread.is_alive()):
            self.settle()
            if self._failure:
                self._say(f"warning: {self._failure}; the run continues, and the next checkpoint is another try")

    def settle(self) -> None:
        """Wait for the last write, and log which old checkpoints it could not delete; does not raise."""
        if self._thread:
            self._join(self._thread)
            self._thread = None
            if self._took:
                self._tell(self._took)
            for line in self._unremoved:
                self._say(f"warning: {line}")

    def finish(self) -> None:
        """Wait for the last write.

        Raises:
            RunError: the last write has failed.
        """
        self.settle()
        if self._failure:
            raise self._failure

    def _write(self, snapshot: checkpoint.Snapshot, waited: float) -> None:
        self._unremoved, self._took = [], None
        try:
            self._before_write()
            begin = time.perf_counter()
            checkpoint.write(self._folder, snapshot)
        except Exception as error:  # an exception that leaves a thread would be lost
            unknown = RunError(f"checkpoint of step {snapshot.step} cannot be written: {error!r}")
            self._failure = error if isinstance(error, RunError) else unknown
            self.failed.add(snapshot.step)
        else:
            self._failure = None
            self._took = Checkpoint(step=snapshot.step, waited=waited, written=time.perf_counter() - begin)
            self._prune(snapshot)

    def _prune(self, snapshot: checkpoint.Snapshot) -> None:
        """Delete old checkpoints; the new one is complete, so that no failure here ends the run."""
        try:
            self._unremoved = self._retention.prune(self._folder, snapshot)
        except Exception as error:
            self._unremoved = [f"old checkpoints cannot be removed: {error!r}; the next save tries again"]
