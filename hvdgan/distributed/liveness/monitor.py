"""The heartbeat thread that every rank runs: its clock, the ranks that it has lost, and the end of the process."""

import contextlib
import selectors
import socket
import threading
import time
from typing import Protocol

from hvdgan.distributed.liveness.activity import Activity
from hvdgan.distributed.liveness.connections import FAILED, GOODBYE, STALLED, STANDING
from hvdgan.distributed.liveness.members import Group

# Seconds in which two healthy processes connect again after their connection broke.
_GRACE_SECONDS = 10.0
# Seconds for which ranks at a meeting point wait for a rank that has sent no heartbeat yet.
_GREETING_SECONDS = 10.0


class Reactions(Protocol):
    """The actions of a monitor that has found a lost rank."""

    def say(self, text: str) -> None:
        """Log a line."""

    def lose(self, kind: bytes, rank: int, text: str, *, aloud: bool) -> None:
        """Log that a rank is lost; only among the events unless `aloud`."""

    def end(self, kind: bytes, rank: int) -> None:
        """End this process, because that rank is dead or stands still."""

    def show_stacks(self) -> None:
        """Print the stacks of all threads of this process."""


class Monitor:
    """A thread that sends heartbeats and judges those of other ranks; RootMonitor and MemberMonitor say which ranks."""

    def __init__(self, group: Group, reactions: Reactions, rank: int, activity: Activity | None) -> None:
        self._group = group
        self._reactions = reactions
        self._rank = rank
        self._activity = activity or Activity()
        self._together = 0
        """number of meeting points that every rank has reached"""
        self._interval = group.interval
        self._grace = min(_GRACE_SECONDS, group.seconds / 2)
        self._selector = selectors.DefaultSelector()
        self._goodbye: bytes | None = None
        self._missing: dict[int, bytes] = {}
        self._details: dict[int, str] = {}
        self._is_over = False
        self._greeted = time.monotonic() + _GREETING_SECONDS
        self._news = threading.Condition()
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self, seconds: float | None = None) -> bool:
        """Wait until the thread ends, for at most `seconds`; returns whether it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def stop(self, *, failed: bool = False) -> None:
        """Leave the group: tell the others that this rank will be silent from now on, and end the thread."""
        self._goodbye = FAILED if failed else GOODBYE
        with contextlib.suppress(BlockingIOError):
            self._wake.send(b"x")
        self.join()
        self._wake.close()
        self._woken.close()

    def last_heard(self, rank: int) -> float | None:
        """The time.monotonic() of a rank's latest heartbeat; None if none has arrived, or if none is expected."""
        raise NotImplementedError

    def wait_for_all(self, reached: int) -> None:
        """Wait until every rank has reached this number of meeting points, or a rank is lost or cannot be heard."""
        with contextlib.suppress(BlockingIOError):
            self._wake.send(b"x")  # report at once
        with self._news:
            while not (self._together >= reached or self._missing or self._is_over or self._is_deaf()):
                self._news.wait(self._interval)

    def explanation(self, seconds: float) -> str | None:
        """A sentence about the first lost rank; None if none is lost within `seconds`."""
        with self._news:
            self._news.wait_for(lambda: self._missing, timeout=seconds)
            return next((self._describe(rank, kind) for rank, kind in self._missing.items()), None)

    def has_failed(self) -> bool:
        """Whether some rank has failed and reported its error."""
        with self._news:
            return FAILED in self._missing.values()

    def _describe(self, rank: int, kind: bytes) -> str:
        details = self._details.get(rank)
        return self._group.describe(rank, kind) + (f": {details}" if details else "")

    def _miss(self, rank: int, kind: bytes, details: str = "", *, aloud: bool = False) -> None:
        """Record a lost rank, and log it, also for people if `aloud`."""
        with self._news:
            if self._missing.get(rank) != FAILED:
                self._missing[rank], self._details[rank] = kind, details
            self._news.notify_all()
        # At once, because a launcher may kill this process next.
        self._reactions.lose(kind, rank, self._describe(rank, kind), aloud=aloud)

    def _meet(self, reached: int) -> None:
        """Record that every rank has reached this number of meeting points."""
        with self._news:
            self._together = max(self._together, reached)
            self._news.notify_all()

    def _find(self, rank: int) -> None:
        """Record that a rank is not lost after all."""
        with self._news:
            self._missing.pop(rank, None)

    def _end(self, kind: bytes, rank: int) -> None:
        if kind == STALLED or (kind == STANDING and rank == self._rank):
            self._reactions.show_stacks()
        if rank not in self._missing:
            self._miss(rank, kind)
        self._reactions.end(kind, rank)
        self._goodbye = GOODBYE  # in an elastic run end() returns, and this rank leaves the group

    def _run(self) -> None:
        try:
            self._look()
        finally:
            with self._news:
                self._is_over = True
                self._news.notify_all()

    def _look(self) -> None:
        before, next_beat = time.monotonic(), 0.0
        while not self._goodbye:
            ready = self._selector.select(max(0.0, min(self._interval, next_beat - time.monotonic())))
            now = time.monotonic()
            if (pause := now - before) > 2 * self._interval:
                self._excuse(pause)  # this process was stopped or starved, so the others may have sent heartbeats
            before = now
            for key, _ in ready:
                if key.fileobj is self._woken:
                    self._woken.recv(4096)
                    self._report(now)
                elif isinstance(key.fileobj, socket.socket):
                    self._hear(key.fileobj, now)
            if now >= next_beat and not self._goodbye:
                next_beat = now + self._interval
                self._beat(now)
        self._say_goodbye(self._goodbye)
        for key in list(self._selector.get_map().values()):
            self._selector.unregister(key.fileobj)
            if isinstance(key.fileobj, socket.socket) and key.fileobj is not self._woken:
                key.fileobj.close()
        self._selector.close()

    def _hear(self, source: socket.socket, now: float) -> None:
        """Handle data at one of the selector's sockets."""
        raise NotImplementedError

    def _report(self, now: float) -> None:
        """Report the progress of this rank."""
        raise NotImplementedError

    def _is_deaf(self) -> bool:
        """Whether the progress of the others cannot be known."""
        raise NotImplementedError

    def _beat(self, now: float) -> None:
        """Send a heartbeat, and judge the other ranks."""
        raise NotImplementedError

    def _excuse(self, pause: float) -> None:
        """Do not count `pause` seconds, during which this process did not run, as silence of the others."""
        raise NotImplementedError

    def _say_goodbye(self, kind: bytes) -> None:
        """Tell the others that this rank leaves."""
        raise NotImplementedError
