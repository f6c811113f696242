"""Writes checkpoints beside the training steps, follows the best one, and deletes those that need not stay."""

import dataclasses
import time
from collections.abc import Callable, Collection
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, Literal

from hvdgan.checkpoints import files
from hvdgan.checkpoints.files import Snapshot
from hvdgan.errors import RunError, UserError
from hvdgan.runs.events import Checkpoint, Event

_LARGEST = frozenset({"psnr", "ssim", "precision", "recall", "density", "coverage", "accuracy"})


def mode_of(metric: str) -> Literal["min", "max"]:
    """Return "max" if a metric's largest value is the best, by the last word of its name; "min" if its smallest."""
    name = metric.rpartition("/")[2]
    return "max" if name == "inception_score" or name.rpartition("_")[2] in _LARGEST else "min"


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


def prune(folder: Path, newest: Snapshot, keep: int) -> list[str]:
    """Delete old checkpoints of the run that wrote `newest`, and never those of another run.

    Args:
        folder: RUN_DIR/checkpoints.
        newest: contents of the newest checkpoint.
        keep: number of newest checkpoints that stay, besides the best and the last of each stage; 0: all stay.

    Returns:
        A message for each that cannot be deleted.
    """
    if not keep:
        return []
    mine = {}
    for path in reversed(files.newest_first(folder)):
        try:
            manifest = files.read_manifest(path)
        except RunError:
            continue  # it may be of another run
        if manifest["run_id"] == newest.facts["run_id"]:
            mine[manifest["step"]] = path, manifest["stage_index"]
    last_of_stages = {stage: step for step, (_, stage) in mine.items()}
    best = newest.facts.get("best") or {}
    stay = {*list(mine)[-keep:], *last_of_stages.values(), best.get("step")}
    failures = []
    for step, (path, _) in mine.items():
        if step not in stay and step < newest.step:
            try:
                path.unlink()
            except OSError as error:
                failures.append(f"old checkpoint {path} cannot be removed: {error}; the next save tries again")
    return failures


class Saver:
    """Writes one snapshot at a time, on rank 0; on the other ranks, which save nothing, each method does nothing.

    Args:
        folder: RUN_DIR/checkpoints.
        keep: what prune() keeps after each write.
        executor: the thread that writes.
        wait: function that returns the result of its work.
        say: function that logs a line.
        tell: function that logs an event.
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        executor: Executor,
        wait: Callable[[Future[Any]], Any],
        say: Callable[[str], None],
        tell: Callable[[Event], None],
    ) -> None:
        self._folder, self._keep = folder, keep
        self._executor, self._wait = executor, wait
        self._say, self._tell = say, tell
        self._writing: Future[tuple[Checkpoint, list[str]]] | None = None
        self._failure: RunError | None = None
        """why the last write has failed"""

    def save(self, snapshot: Snapshot, begin: float) -> None:
        """Start to write a snapshot, for which the run has stopped at `begin`, after the previous one is written.

        A failure to write does not end the run: it is logged, and the next checkpoint is another try.
        """
        if self._writing and not self._writing.done():
            self._say(
                f"step {snapshot.step}: the run waits for the previous checkpoint to be written; consider a larger "
                "--checkpoint-every, or a larger --eval-every if --best-metric saves so often"
            )
        self.report(wait=True)
        self._writing = self._executor.submit(self._write, snapshot, time.perf_counter() - begin)

    def report(self, *, wait: bool = False) -> None:
        """Log, once, that the last write has failed, if it has ended."""
        if self._writing and (wait or self._writing.done()):
            self.settle()
            if self._failure:
                self._say(f"warning: {self._failure}; the run continues, and the next checkpoint is another try")

    def settle(self) -> None:
        """Wait for the last write, and log which old checkpoints it could not delete; does not raise."""
        if self._writing is None:
            return
        writing, self._writing, self._failure = self._writing, None, None
        try:
            written, unremoved = self._wait(writing)
        except RunError as error:
            self._failure = error
        else:
            self._tell(written)
            for line in unremoved:
                self._say(f"warning: {line}")

    def finish(self) -> None:
        """Wait for the last write.

        Raises:
            RunError: the last write has failed.
        """
        self.settle()
        if self._failure:
            raise self._failure

    def _write(self, snapshot: Snapshot, waited: float) -> tuple[Checkpoint, list[str]]:
        begin = time.perf_counter()
        try:
            files.write(self._folder, snapshot)
        except RunError:
            raise
        except Exception as error:
            raise RunError(f"checkpoint of step {snapshot.step} cannot be written: {error!r}") from error
        written = Checkpoint(step=snapshot.step, waited=waited, written=time.perf_counter() - begin)
        try:
            return written, prune(self._folder, snapshot, self._keep)
        except Exception as error:  # the new checkpoint is complete
            return written, [f"old checkpoints cannot be removed: {error!r}; the next save tries again"]
