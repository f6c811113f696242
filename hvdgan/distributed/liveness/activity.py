"""The progress of this rank's main thread, which its heartbeats report, and of all ranks, as rank 0 hears of it."""

import contextlib
import dataclasses
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import FrameType
from typing import NamedTuple, TypeVar

T = TypeVar("T")
_PACKAGE = str(Path(__file__).parents[2])


class Pulse(NamedTuple):
    """The progress that a heartbeat reports."""

    reached: int = 0  # meeting points (steps, collectives) so far; all ranks reach the same ones in the same order
    moves: int = 0  # changes whenever the rank was seen to move
    where: str = ""  # place of its main thread in the code, if it has not moved since the last heartbeat


class Activity:
    """Counts the meeting points of the main thread and, as moves, its use of the processor between them."""

    def __init__(self) -> None:
        self._thread = threading.main_thread()
        self._reached = 0
        self._within = ""
        self._signs: list[Callable[[], object]] = []
        self._seen: object = None
        self._moves = 0
        self.wait: Callable[[int], None] = lambda reached: None
        """a function that waits until all ranks have reached a number of meeting points, while a monitor runs"""
        self.doing: Callable[[str], object] = lambda what: None
        """a function that shows what this rank begins to do, in words, while someone looks"""

    @contextlib.contextmanager
    def at(self, point: str) -> Iterator[None]:
        """Be at a meeting point; every rank reaches it."""
        self._reached += 1
        self._within = point
        try:
            yield
        finally:
            self._within = ""

    def wait_for_all(self) -> None:
        """Wait until all ranks are here, because Horovod would end a pending collective as stalled."""
        self.wait(self._reached)

    @contextlib.contextmanager
    def beside(self, sign: Callable[[], object]) -> Iterator[None]:
        """Count another sign of work as a move, while the main thread only waits for that work."""
        self._signs.append(sign)
        try:
            yield
        finally:
            self._signs.remove(sign)

    def result(self, thread: threading.Thread, work: Future[T]) -> T:
        """Wait for the result of a thread's work, and count that work as a move of the main thread."""
        with self.beside(lambda: _processor_time(thread)):
            return work.result()

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
    try:
        fields = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return " ".join(fields[11:13])  # in clock ticks: of the user and of the system


@dataclasses.dataclass
class Peer:
    """A rank as another knows it from its heartbeats."""

    moved: float  # when it was last seen to move
    behind: float | None = None  # since when another rank has been ahead of it
    heard: float | None = None  # when its latest heartbeat arrived
    gone: float | None = None  # when its connection was closed
    pulse: Pulse = dataclasses.field(default_factory=Pulse)
    connection: tuple[bytes, int] = b"", -1  # ZeroMQ's name of it, on rank 0, and its file descriptor

    def add(self, pulse: Pulse, now: float) -> None:
        """Record the pulse of a heartbeat."""
        if pulse.moves != self.pulse.moves:
            self.moved = now
        self.pulse = pulse

    def excuse(self, pause: float) -> None:
        """Do not count `pause` seconds, in which no heartbeat could be received."""
        self.moved += pause
        self.behind = None if self.behind is None else self.behind + pause
        self.heard = None if self.heard is None else self.heard + pause

    def stands(self, now: float, seconds: float) -> bool:
        """Whether it has not moved for this long, or since it fell behind: before, it may have waited; 0: never."""
        return 0 < seconds < now - max(self.moved, self.behind or self.moved)


def stragglers(everyones: Mapping[int, Peer], now: float, seconds: float) -> list[int]:
    """The ranks that have been behind for this long and stand, so that others wait; called at every heartbeat."""
    furthest = max(each.pulse.reached for each in everyones.values())
    for each in everyones.values():
        each.behind = None if each.pulse.reached == furthest else each.behind or now
    return [rank for rank, each in everyones.items() if each.behind and each.stands(now, seconds)]
