"""Checkpoints in the background: the loop waits for the copy to memory only, a thread brings it to the disk."""

import threading
from collections.abc import Callable
from pathlib import Path

from hvdgan.checkpoints import checkpoint
from hvdgan.checkpoints.retention import Retention
from hvdgan.cli.errors import RunError


class Saver:
    """Writes one snapshot at a time, on rank 0.

    Args:
        folder: RUN_DIR/checkpoints.
        retention: which of the older ones stay.
        say: called with a line for people.
        join: waits for a thread.
    """

    def __init__(
        self,
        folder: Path,
        retention: Retention,
        say: Callable[[str], None],
        join: Callable[[threading.Thread], None] = threading.Thread.join,
    ) -> None:
        self._folder = folder
        self._retention = retention
        self._say = say
        self._join = join
        self._thread: threading.Thread | None = None
        self._failure: RunError | None = None
        self._unremoved: list[str] = []

    def save(self, snapshot: checkpoint.Snapshot) -> None:
        """Begin to write; what is still being written is waited for.

        A failure to write does not end the training: it is said, and the next checkpoint is another try.
        """
        if self._thread and self._thread.is_alive():
            self._say(f"step {snapshot.step}: waits for the checkpoint before to be written; save less often?")
        self.settle()
        if self._failure:
            self._say(f"warning: {self._failure}; training goes on, this is the next try")
            self._failure = None
        # Not a daemon: an exit in the middle of a write would waste it.
        self._thread = threading.Thread(target=self._write, args=(snapshot,), name="checkpoint")
        self._thread.start()

    def report(self) -> None:
        """Say it soon if the last write has failed."""
        if self._thread and not self._thread.is_alive():
            self.settle()
            if self._failure:
                self._say(f"warning: {self._failure}; training goes on, and tries again at the next checkpoint")

    def settle(self) -> None:
        """Wait for the last write, however it ends; what it could not tidy up is said, and is no failure."""
        if self._thread:
            self._join(self._thread)
            self._thread = None
            for line in self._unremoved:
                self._say(f"warning: {line}")

    def finish(self) -> None:
        """Wait for the last write.

        Raises:
            RunError: it has failed.
        """
        self.settle()
        if self._failure:
            raise self._failure

    def _write(self, snapshot: checkpoint.Snapshot) -> None:
        self._unremoved = []
        try:
            checkpoint.write(self._folder, snapshot)
        except RunError as error:
            self._failure = error
        except Exception as error:  # in a thread it would be lost
            self._failure = RunError(f"checkpoint of step {snapshot.step} cannot be written: {error!r}")
        else:
            self._failure = None
            self._tidy(snapshot)

    def _tidy(self, snapshot: checkpoint.Snapshot) -> None:
        """Delete what need not stay; whatever happens here, the new checkpoint is there."""
        try:
            self._unremoved = self._retention.prune(self._folder, snapshot)
        except Exception as error:
            self._unremoved = [f"old checkpoints cannot be removed: {error!r}; the next save tries again"]
