"""Keeps report.html of a run up to date by a process beside the training, which no step waits for."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
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
LEEWAY = 2.0
"""seconds that the other ranks of a stopped or failed run wait longer, because rank 0 may begin its page later"""
_POLL, _LOOK = 0.02, 0.25
"""seconds between two looks at a process, and at a file on a disk that many ranks share"""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


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
    """The page of a run, which rank 0 writes.

    Leave it as a context manager after the run folder is unlocked and the ranks have parted: then rank 0 writes the
    last page, also of a run that has failed.

    Args:
        when: never, at the end, or also after each checkpoint.
    """

    def __init__(self, when: When) -> None:
        self._when = when
        self._run_dir: Path | None = None
        self._awaited: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._began = -PAUSE
        self.is_finished = False
        """True if the run has reached its last step"""

    def follow(self, run_dir: Path | None, *, is_root: bool = True) -> None:
        """Write the page of a run from now on, or wait for it at the end.

        Args:
            run_dir: run folder; None if this process belongs to no run, or no longer.
            is_root: True on rank 0, which writes it.
        """
        self._run_dir, self._awaited = (run_dir, None) if is_root else (None, run_dir)

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
            self._end_renewal()
            self._process = start(self._run_dir, idle=False, silent=True)

    def _end_renewal(self) -> None:
        """End the process of a checkpoint: it does not know the end of the run, whose page the next one writes."""
        if self._process and self._process.poll() is None:
            self._process.kill()

    def __enter__(self) -> "Page":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write the page a last time, and wait for it.

        Ctrl-C, SIGTERM, SIGUSR1 and SIGUSR2 end the wait, and not this process: its exit code stays that of the run.
        """
        if self._run_dir is None or self._when == "never":
            return
        with _noting_signals() as noted, _tolerant(self._run_dir):
            self._write_last(self._run_dir, noted)

    def wait_for_rank_0(self) -> None:
        """Wait on the other ranks until rank 0 has written the last page, unless the run has finished.

        A launcher ends rank 0 once another rank has left with an exit code other than 0. Call this as the last thing,
        when an error of this rank is printed. The wait has a bound, and signals end it as that of rank 0.
        """
        if self._awaited is None or self._when == "never" or self.is_finished:
            return
        seconds = LITTLE_PATIENCE + LEEWAY
        # A thread looks at the disk, which may be dead, and would hold this one.
        look = threading.Thread(target=_look_for_page, args=(self._awaited, time.monotonic() + seconds), daemon=True)
        with _noting_signals() as noted:
            look.start()
            _wait(lambda: not look.is_alive(), seconds, noted)

    def _write_last(self, run_dir: Path, noted: list[int]) -> None:
        """Write the last page, wait for it, and print where it is."""
        patience = PATIENCE if self.is_finished else LITTLE_PATIENCE
        page = run_dir / "report.html"
        verify = self.is_finished and _are_small(run_dir)
        self._end_renewal()
        before = _version(page)
        process = self._process = start(run_dir, idle=False, verify=verify)
        if not (is_over := _wait(lambda: process.poll() is not None, patience, noted)):
            process.kill()  # without another wait: a dead disk may hold it
        if is_over and process.returncode == 0:
            text = f"report in {page}"
        elif _version(page) not in (None, before):
            within = "" if is_over or noted else f" within {patience:.0f} s"
            missing = f", which has not verified the checkpoints{within}" if verify else ""
            text = f"report in {page}{missing}"
        else:
            text = f"warning: no report was written; python -m hvdgan.report {run_dir} is another try"
        print(f"hvdgan: {text}", file=sys.stderr, flush=True)


def _are_small(run_dir: Path) -> bool:
    """Check whether the checkpoints of a run can be verified in a short time."""
    return sum(path.lstat().st_size for path in (run_dir / "checkpoints").rglob("*")) <= MOST_VERIFIED


def _version(path: Path) -> tuple[int, int] | None:
    """Return what changes whenever a file is replaced or written; None if there is none that can be seen."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _look_for_page(run_dir: Path, end: float) -> None:
    """Return when report.html has changed, or at this time; at once if rank 0's run folder is not on this host."""
    page = run_dir / "report.html"
    before = _version(page)
    while _version(run_dir / "log.txt") and _version(page) == before and time.monotonic() < end:
        time.sleep(_LOOK)


def _wait(is_over: Callable[[], bool], seconds: float, noted: list[int]) -> bool:
    """Wait until something is over, a signal is noted or the time is up; returns whether it is over."""
    end = time.monotonic() + seconds
    while not (over := is_over()) and not noted and time.monotonic() < end:
        time.sleep(_POLL)
    return over


@contextlib.contextmanager
def _noting_signals() -> Iterator[list[int]]:
    """Note the signals that would otherwise end this process, unless they are ignored anyway."""
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)

    ending = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    handlers = {number: signal.signal(number, note) for number in ending}
    try:
        yield noted
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _tolerant(run_dir: Path) -> Iterator[None]:
    """Let the run continue if no process can be started."""
    try:
        yield
    except OSError as error:
        print(f"hvdgan: warning: {run_dir / 'report.html'} cannot be written: {error}", file=sys.stderr, flush=True)
