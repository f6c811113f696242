"""Keeps report.html of a run up to date by a process beside the training, which no step waits for."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Literal

from hvdgan.cli.launcher import unlaunched

When = Literal["never", "end", "checkpoints"]
PAUSE = 120.0
"""seconds between two pages, at least: one takes a second or two of a core, which the training may need"""
PATIENCE = 120.0
"""seconds that a finished run waits for its page; the other ranks have ended by then"""
MOST_VERIFIED = 1 << 31
"""bytes of checkpoints that the last page of a finished run verifies: a slow disk reads them within PATIENCE"""
LITTLE_PATIENCE = 10.0
"""seconds that a stopped or failed run waits for it: the job may have few left, and its exit code asks for a requeue"""


def start(run_dir: Path, *, idle: bool, silent: bool = False, verify: bool = False) -> subprocess.Popen[bytes]:
    """Start python -m hvdgan.report, whose errors appear on the terminal.

    Args:
        run_dir: run folder.
        idle: True to give it only time of the processor that nobody else wants.
        silent: True to hide its errors too: a launcher waits for all that can write to its terminal.
        verify: True to verify all checkpoints.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "hvdgan.report", str(run_dir.absolute()), *["--verify"] * verify],
        env=unlaunched(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL if silent else None,
        start_new_session=True,  # Ctrl-C is for the training
    )
    if idle:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
    return process


class Page:
    """The page of a run; on all ranks but rank 0 each method does nothing.

    Leave it as a context manager after the run folder is unlocked and the ranks have parted: then the last page is
    written, also of a run that has failed.

    Args:
        when: never, at the end, or also after each checkpoint.
    """

    def __init__(self, when: When) -> None:
        self._when = when
        self._run_dir: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._began = -PAUSE
        self.is_finished = False
        """True if the run has reached its last step"""

    def follow(self, run_dir: Path | None) -> None:
        """Write the page of this run from now on; None if this process is not rank 0, or no longer."""
        self._run_dir = run_dir

    def renew(self) -> None:
        """Begin to write the page anew after a checkpoint, unless one was begun less than PAUSE seconds ago.

        One that could not be written ends this until the end of the run, so that its error appears once.
        """
        is_free = self._process is None or self._process.poll() == 0
        is_time = time.monotonic() - self._began >= PAUSE
        if self._when == "checkpoints" and self._run_dir is not None and is_free and is_time:
            self._began = time.monotonic()
            with _tolerant(self._run_dir):
                self._process = start(self._run_dir, idle=True)

    def begin_last(self) -> None:
        """Begin to write the last page, which outlives this process: a lost rank is about to end it."""
        if self._run_dir is None or self._when == "never":
            return
        with _tolerant(self._run_dir):
            self._begin_last(self._run_dir, silent=True)

    def _begin_last(self, run_dir: Path, *, silent: bool = False, verify: bool = False) -> subprocess.Popen[bytes]:
        """Start to write the last page, which replaces what an earlier process has written, whole or not."""
        if self._process and self._process.poll() is None:
            self._process.kill()  # it does not know the end, and both would write the same file
        self._process = start(run_dir, idle=False, silent=silent, verify=verify)
        return self._process

    def __enter__(self) -> "Page":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write the page a last time, and wait for it."""
        if self._run_dir is None or self._when == "never":
            return
        patience = PATIENCE if self.is_finished else LITTLE_PATIENCE
        with _tolerant(self._run_dir):
            page = self._run_dir / "report.html"
            verify = self.is_finished and _are_small(self._run_dir)
            older = page.stat().st_mtime_ns if page.exists() else None
            if _end(self._begin_last(self._run_dir, verify=verify), patience):
                text = f"report in {page}"
            elif verify and page.exists() and page.stat().st_mtime_ns != older:
                text = f"report in {page}, which has not verified the checkpoints within {patience:.0f} s"
            else:
                text = f"warning: no report was written; python -m hvdgan.report {self._run_dir} is another try"
            print(f"hvdgan: {text}", file=sys.stderr, flush=True)


def _are_small(run_dir: Path) -> bool:
    """Check whether the checkpoints of a run can be verified in a short time."""
    return sum(path.lstat().st_size for path in (run_dir / "checkpoints").rglob("*")) <= MOST_VERIFIED


def _end(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for a process, kill it if it takes longer, and return whether it has ended well."""
    try:
        return process.wait(seconds) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        if process.poll() is None:
            process.kill()  # without another wait: a dead disk may hold it


@contextlib.contextmanager
def _tolerant(run_dir: Path) -> Iterator[None]:
    """Let the run continue if no process can be started."""
    try:
        yield
    except OSError as error:
        print(f"hvdgan: warning: {run_dir / 'report.html'} cannot be written: {error}", file=sys.stderr, flush=True)
