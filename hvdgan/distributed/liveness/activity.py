"""What this rank's main thread does: how far it has come, whether it moves, and where it stands.

The heartbeat sends it to rank 0, which can then tell a rank that works from one that keeps the others waiting.
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
    """What one heartbeat says of a rank.

    reached: points at which the ranks meet (a step, a collective) that it has come to; the same ones on every rank.
    moves: changes whenever the rank was seen to move.
    where: the place of its main thread in the code, if it has not moved since the last heartbeat.
    """

    reached: int = 0
    moves: int = 0
    where: str = ""


class Waits(Protocol):
    """Who knows how far the other ranks have come."""

    def wait_for_all(self, reached: int) -> None:
        """Return when every rank has reached so many points, or when that cannot be known any more."""


class Activity:
    """Counts the points that the main thread reaches, and looks at it between them.

    A rank moves if it reaches or leaves such a point, or, between two of them, if its main thread uses the processor:
    whatever it computes, reads or downloads there, it needs no line of its own to be seen at work.
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
        """Points that the main thread has come to."""
        return self._reached

    @contextlib.contextmanager
    def at(self, point: str) -> Iterator[None]:
        """Be at a point at which all ranks meet; every rank comes to it.

        Args:
            point: in words, such as "step 3".
        """
        self._reached += 1
        self._within = point
        try:
            yield
        finally:
            self._within = None

    def wait_for_all(self) -> None:
        """Wait, at a point, until all ranks have come to it.

        No Horovod collective is pending meanwhile, which Horovod would end as stalled after a while, however busy the
        rank that the others wait for is.
        """
        if self._waits:
            self._waits.wait_for_all(self._reached)

    @contextlib.contextmanager
    def watched_by(self, waits: Waits) -> Iterator[None]:
        """Wait through somebody who knows how far the others are."""
        self._waits = waits
        try:
            yield
        finally:
            self._waits = None

    @contextlib.contextmanager
    def beside(self, sign: Callable[[], object]) -> Iterator[None]:
        """Let something else count as a move too, for which the main thread only waits.

        Args:
            sign: its value changes when the work gets on; called by the heartbeat's thread.
        """
        self._signs.append(sign)
        try:
            yield
        finally:
            self._signs.remove(sign)

    def join(self, thread: threading.Thread) -> None:
        """Wait for a thread, whose work counts as the main thread's meanwhile."""
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
        frame = sys._current_frames().get(self._thread.ident or 0)
        return f"{self._within or 'between two meetings'}, {_place(frame)}" if frame else ""


def _place(frame: FrameType) -> str:
    """The innermost line of Python, and the line of hvdgan that has called it."""
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
    """What a thread of this process has used; of one that has ended, nothing."""
    folder = Path("/proc/self/task") / str(thread.native_id)
    try:
        return (folder / "schedstat").read_text().split()[0]  # in nanoseconds
    except OSError:
        pass
    try:
        return " ".join((folder / "stat").read_text().rpartition(")")[2].split()[11:13])  # in clock ticks
    except OSError:
        return ""
