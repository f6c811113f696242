"""What rank 0 and the other ranks have in common as they watch each other: a thread, its clock, and what it finds."""

import contextlib
import selectors
import socket
import threading
import time
from typing import Protocol

from hvdgan.distributed.liveness.activity import Activity
from hvdgan.distributed.liveness.lines import FAILED, GOODBYE, STALLED, STANDING, Meeting

# Seconds for two healthy processes to connect again after their connection broke.
_GRACE_SECONDS = 10.0
# Seconds that ranks at a meeting point wait for one that has not been heard yet.
_GREETING_SECONDS = 10.0


class Words(Protocol):
    """What a watch does with what it finds."""

    def say(self, text: str) -> None:
        """Tell people."""

    def end(self, kind: bytes, rank: int) -> None:
        """End this process, since that rank is dead or stands still."""

    def show_stacks(self) -> None:
        """Tell people where all threads of this process are."""


class Watch:
    """The thread and its clock; whom it watches is for Hub and Spoke to say.

    Args:
        meeting: what all ranks know.
        words: what it says, and how it ends the process.
        rank: this one.
        activity: of this rank's main thread.
    """

    def __init__(self, meeting: Meeting, words: Words, rank: int, activity: Activity | None) -> None:
        self._meeting = meeting
        self._words = words
        self._rank = rank
        self._activity = activity or Activity()
        self._together = 0
        """points that every rank has reached"""
        self._interval = meeting.interval
        self._grace = min(_GRACE_SECONDS, meeting.seconds / 2)
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
        """Begin to watch."""
        self._thread.start()

    def stop(self, *, failed: bool = False) -> None:
        """Leave with a word to the others: from now on this rank's silence means nothing."""
        self._goodbye = FAILED if failed else GOODBYE
        with contextlib.suppress(BlockingIOError):
            self._wake.send(b"x")
        self._thread.join()
        self._wake.close()
        self._woken.close()

    def wait_for_all(self, reached: int) -> None:
        """Return when every rank has reached so many points; also if one is lost, or cannot be heard."""
        with contextlib.suppress(BlockingIOError):
            self._wake.send(b"x")  # tell at once
        with self._news:
            while not (self._together >= reached or self._missing or self._is_over or self._is_deaf()):
                self._news.wait(self._interval)

    def opinion(self, seconds: float) -> str | None:
        """The first rank that is gone; None if there is no such news within `seconds`."""
        with self._news:
            self._news.wait_for(lambda: self._missing, timeout=seconds)
            return next((self._describe(rank, kind) for rank, kind in self._missing.items()), None)

    def has_failed(self) -> bool:
        """Whether a rank has stopped with an error of its own."""
        with self._news:
            return FAILED in self._missing.values()

    def _describe(self, rank: int, kind: bytes) -> str:
        details = self._details.get(rank)
        return self._meeting.describe(rank, kind) + (f": {details}" if details else "")

    def _miss(self, rank: int, kind: bytes, details: str = "", *, aloud: bool = False) -> None:
        with self._news:
            if self._missing.get(rank) != FAILED:
                self._missing[rank], self._details[rank] = kind, details
            self._news.notify_all()
        if aloud:
            self._words.say(self._describe(rank, kind))  # at once: a launcher may end this process next

    def _meet(self, reached: int) -> None:
        """So many points have been reached by every rank."""
        with self._news:
            self._together = max(self._together, reached)
            self._news.notify_all()

    def _find(self, rank: int) -> None:
        with self._news:
            self._missing.pop(rank, None)

    def _end(self, kind: bytes, rank: int) -> None:
        if kind == STALLED or (kind == STANDING and rank == self._rank):
            self._words.show_stacks()
        self._words.end(kind, rank)
        self._goodbye = GOODBYE  # where it comes back at all, this rank goes on

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
                self._excuse(pause)  # this process was stopped or starved: that it heard nothing means nothing
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
        """Something has arrived at one of the selector's sockets."""
        raise NotImplementedError

    def _report(self, now: float) -> None:
        """Say how far this rank has come."""
        raise NotImplementedError

    def _is_deaf(self) -> bool:
        """Whether the others cannot be waited for."""
        raise NotImplementedError

    def _beat(self, now: float) -> None:
        """Say that this rank is alive, and judge the others."""
        raise NotImplementedError

    def _excuse(self, pause: float) -> None:
        """Do not count `pause` seconds, in which this process did not run, as silence of the others."""
        raise NotImplementedError

    def _say_goodbye(self, kind: bytes) -> None:
        """Tell the others that this rank leaves."""
        raise NotImplementedError
