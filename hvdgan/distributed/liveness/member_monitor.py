"""The monitor of every rank but rank 0: sends heartbeats to rank 0, and detects that rank 0 is lost."""

import selectors
import socket
import time

from hvdgan.distributed.liveness.activity import Activity
from hvdgan.distributed.liveness.connections import (
    ALIVE,
    DEAD,
    ENDED,
    FAILED,
    GOODBYE,
    SILENT,
    STALLED,
    STANDING,
    Connection,
    Message,
)
from hvdgan.distributed.liveness.members import Group
from hvdgan.distributed.liveness.monitor import Monitor, Reactions


class MemberMonitor(Monitor):
    """Monitors rank 0 from any other rank; rank 0 reports the loss of further ranks."""

    def __init__(self, rank: int, group: Group, reactions: Reactions, activity: Activity | None = None) -> None:
        super().__init__(group, reactions, rank, activity)
        self._candidates = list(group.addresses)
        if group.members[0].network == group.members[rank].network:
            self._candidates = ["127.0.0.1"]
        self._connection: Connection | None = None
        self._heard: float | None = None
        self._gone: float | None = None
        self._give_up = time.monotonic() + group.seconds
        self._called = 0.0

    def last_heard(self, rank: int) -> float | None:
        return None if rank else self._heard

    def _hear(self, source: socket.socket, now: float) -> None:
        if self._connection is None or source is not self._connection.socket:
            return
        for message in self._connection.receive():
            if self._heard is None:  # rank 0 has answered here, so try no other address
                self._candidates = [source.getpeername()[0]]
            self._heard = now
            if self._gone:
                self._gone = None
                self._find(0)
            if self._take(message):
                return
        if not self._connection.is_open:
            self._hang_up()
            if self._heard is not None and self._gone is None:
                self._gone = now
                self._miss(0, ENDED, aloud=0 not in self._missing)

    def _take(self, message: Message) -> bool:
        """Handle a message; returns whether it was the last one."""
        kind, rank, pulse = message
        if kind == GOODBYE:
            self._goodbye = GOODBYE
        elif kind == DEAD and rank in self._missing:
            self._end(self._missing[rank], rank)
        elif kind == STANDING and rank == self._rank:
            self._miss(rank, kind, pulse.where, aloud=True)
            self._end(kind, rank)
            return True
        elif kind == ALIVE:
            self._find(rank)
            self._meet(pulse.reached)
        elif kind in (FAILED, ENDED, SILENT, STANDING, STALLED) and rank < len(self._group.members):
            self._miss(rank, kind, pulse.where)
        return kind in (GOODBYE, DEAD)

    def _report(self, now: float) -> None:
        if self._connection:
            self._connection.send(ALIVE, self._rank, self._activity.sample())

    def _is_deaf(self) -> bool:
        return self._heard is None and time.monotonic() > self._greeted

    def _beat(self, now: float) -> None:
        if self._heard is None and now > self._give_up:
            self._goodbye = GOODBYE  # rank 0 cannot be reached, and logs so itself
            return
        if self._connection and self._heard is None and now - self._called > 3 * self._interval:
            self._hang_up()  # another process answers here, not rank 0
        if self._connection is None:
            self._call(now)
        self._report(now)
        if self._gone is not None and now - self._gone > self._grace:
            self._end(self._missing.get(0, ENDED), 0)
        elif self._heard is not None and now - self._heard > self._group.seconds:
            self._end(SILENT, 0)

    def _call(self, now: float) -> None:
        self._called = now
        self._candidates.append(address := self._candidates.pop(0))
        try:
            connected = socket.create_connection((address, self._group.port), timeout=self._interval / 2)
        except OSError:
            return
        self._connection = Connection(connected, self._group.token)
        self._selector.register(connected, selectors.EVENT_READ)

    def _hang_up(self) -> None:
        assert self._connection is not None
        self._selector.unregister(self._connection.socket)
        self._connection.socket.close()
        self._connection = None

    def _excuse(self, pause: float) -> None:
        self._heard = None if self._heard is None else self._heard + pause

    def _say_goodbye(self, kind: bytes) -> None:
        if self._connection:
            self._connection.send(kind, self._rank)
