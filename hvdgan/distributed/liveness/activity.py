"""Records the progress of this rank's main thread, which its heartbeats report to rank 0.

Rank 0 compares the reports to distinguish a rank that works from a straggler that the others wait for.
"""

import contextlib
import dataclasses
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Protocol

_PACKAGE = str(Path(__file__).parents[2])


@dataclasses.dataclass(frozen=True)
class Pulse:
    """The progress that a heartbeat reports.

    Attributes:
        reached: number of meeting points (a step, a collective) that the rank has reached; all ranks reach the same
            ones in the same order.
        moves: counter that changes whenever the rank was seen to move.
        where: place of its main thread in the code, if it has not moved since the last heartbeat.
    """

    reached: int = 0
    moves: int = 0
    where: str = ""


class Waits(Protocol):
    """An object that knows the progress of the other ranks."""

    def wait_for_all(self, reached: int) -> None:
        """Return when every rank has reached this number of meeting points, or when that can no longer be known."""


class Activity:
    """Counts the meeting points that the main thread reaches, and samples the thread between them.

    A rank moves if it reaches or leaves a meeting point or, between two of them, if its main thread uses the processor.
    So any computation, reading or download counts, without a line of code to report it.
    """

    def __init__(self) -> None:
        self._thread = threading.main_thread()
        self._reached = 0
        self._within: str | None = None
        self._signs: list[Callable[[], object]] = []
        self._seen: object = None
        self._moves = 0
        self._waits: Waits | None = None

    @property
    def reached(self) -> int:
        """The number of meeting points that the main thread has reached."""
        return self._reached

    @contextlib.contextmanager
    def at(self, point: str) -> Iterator[None]:
        """Be at a meeting point; every rank reaches it."""
        self._reached += 1
        self._within = point
        try:
            yield
        finally:
            self._within = None

    def wait_for_all(self) -> None:
        """Wait at a meeting point until all ranks have reached it.

        No Horovod collective is pending during the wait. Horovod would end a pending one as stalled after some minutes,
        even if the missing rank still works.
        """
        if self._waits:
            self._waits.wait_for_all(self._reached)

    @contextlib.contextmanager
    def watched_by(self, waits: Waits) -> Iterator[None]:
        """Let wait_for_all() use this object, which knows the progress of the other ranks."""
        self._waits = waits
        try:
            yield
        finally:
            self._waits = None

    @contextlib.contextmanager
    def beside(self, sign: Callable[[], object]) -> Iterator[None]:
        """Count another sign of work as a move, while the main thread only waits for that work."""
        self._signs.append(sign)
        try:
            yield
        finally:
            self._signs.remove(sign)

    def join(self, thread: threading.Thread) -> None:
        """Wait for a thread, and count its work as a move of the main thread."""
        with self.beside(lambda: _processor_time(thread)):
            thread.join()

    def sample(self) -> Pulse:
        """Look at the main thread; the heartbeat's thread calls it."""
        busy = () if self._within else (_processor_time(self._thread), *(sign() for sign in list(self._signs)))
        now = (self._reached, self._within, busy)
        moved, self._seen = now != self._seen, now
        self._moves += moved
        return Pulse(self._reached, self._moves, "" if moved else self._where())

    def _where(self) -> str:
        # Not public; tests/distributed/test_standing.py checks the line of code that is named.
        frame = sys._current_frames().get(self._thread.ident or 0)
        return f"{self._within or 'between two meetings'}, {_place(frame)}" if frame else ""


def _place(frame: FrameType) -> str:
    """The innermost line of Python, and the line of hvdgan that called it."""
    own: FrameType | None = frame
    while own and not own.f_code.co_filename.startswith(_PACKAGE):
        own = own.f_back
    inner = _line(frame)
    return inner if own is None or own is frame else f"{inner}, called by {_line(own)}"


def _line(frame: FrameType) -> str:
    path = Path(frame.f_code.co_filename)
    name = path.relative_to(Path(_PACKAGE).parent) if path.is_relative_to(_PACKAGE) else path.name
    return f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"


def _processor_time(thread: threading.Thread) -> str:
    """The processor time that a thread of this process has used; empty if the thread has ended."""
    folder = Path("/proc/self/task") / str(thread.native_id)
    try:
        return (folder / "schedstat").read_text().split()[0]  # in nanoseconds
    except OSError:
        pass
    try:
        return " ".join((folder / "stat").read_text().rpartition(")")[2].split()[11:13])  # in clock ticks
    except OSError:
        return ""
