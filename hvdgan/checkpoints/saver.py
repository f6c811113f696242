"""Writes checkpoints in a background thread, so that the loop waits only for the copy to memory."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from hvdgan.checkpoints import checkpoint
from hvdgan.checkpoints.retention import Retention
from hvdgan.cli.errors import RunError
from hvdgan.cli.events import Checkpoint, Event


class Saver:
    """Writes one snapshot at a time. Only rank 0 writes; on the other ranks each method does nothing.

    Args:
        folder: path of RUN_DIR/checkpoints.
        retention: rule that chooses the older checkpoints to keep.
        say: function that logs a line.
        tell: function that logs an event.
        join: function that waits for a thread.
        first: function that the thread calls before it writes.
        is_root: True on rank 0.
    """

    def __init__(
        self,
        folder: Path,
        retention: Retention,
        say: Callable[[str], None],
        tell: Callable[[Event], None] = lambda _: None,
        join: Callable[[threading.Thread], None] = threading.Thread.join,
        first: Callable[[], None] = lambda: None,
        *,
        is_root: bool = True,
    ) -> None:
        self._folder = folder
        self._retention = retention
        self._say = say
        self._tell = tell
        self._join = join
        self._first = first
        self._is_root = is_root
        self._thread: threading.Thread | None = None
        self._failure: RunError | None = None
        self.failed: set[int] = set()
        """steps whose checkpoints could not be written"""
        self._unremoved: list[str] = []
        self._took: Checkpoint | None = None

    def save(self, take: Callable[[], checkpoint.Snapshot]) -> None:
        """Start to write a snapshot, after the previous one is written.

        A failure to write does not end the run: it is logged, and the next checkpoint is another try.

        Args:
            take: function that copies the variables to memory; called on rank 0 only.
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
        self.settle()
        if self._failure:
            self._say(f"warning: {self._failure}; the run continues, and tries again with this checkpoint")
            self._failure = None
        # Not a daemon thread: an exit in the middle of a write would waste it.
        self._thread = threading.Thread(
            target=self._write, args=(snapshot, time.perf_counter() - begin), name="checkpoint"
        )
        self._thread.start()

    def report(self) -> None:
        """Log soon that the last write has failed."""
        if self._thread and not self._thread.is_alive():
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
            self._first()
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
