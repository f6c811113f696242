"""Rank 0's monitor: receives the heartbeats of all other ranks, judges them, and reports lost ranks to the rest."""

import dataclasses
import errno
import selectors
import socket
import time

from hvdgan.distributed.liveness.activity import Activity, Pulse
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
from hvdgan.distributed.liveness.stragglers import Progress, all_stand, compare, stragglers

# Number of ranks whose place is named if no rank moves.
_NAMED = 8
# Seconds until rank 0 accepts connections again after it reached the limit of open files.
_FULL_SECONDS = 1.0


@dataclasses.dataclass
class _Peer:
    """Rank 0's knowledge of another rank.

    Attributes:
        connection: its connection.
        heard: time of its latest heartbeat.
        gone: time at which its connection was closed.
        goodbye: GOODBYE or FAILED once it has left.
        progress: its progress.
    """

    connection: Connection | None = None
    heard: float | None = None
    gone: float | None = None
    goodbye: bytes | None = None
    progress: Progress = dataclasses.field(default_factory=lambda: Progress(time.monotonic()))


class RootMonitor(Monitor):
    """Monitors all ranks but rank 0, on which it runs, and reports a lost rank to the others."""

    def __init__(
        self, listener: socket.socket, group: Group, reactions: Reactions, activity: Activity | None = None
    ) -> None:
        super().__init__(group, reactions, 0, activity)
        listener.setblocking(False)
        self._listener = listener
        self._connections: dict[socket.socket, tuple[Connection, int | None]] = {}
        self._peers = {member.rank: _Peer() for member in group.members[1:]}
        self._progress = Progress(time.monotonic())
        self._accepts_again: float | None = None
        self._said_full = False
        self._give_up: float | None = time.monotonic() + group.seconds
        self._selector.register(listener, selectors.EVENT_READ)

    def last_heard(self, rank: int) -> float | None:
        return self._peers[rank].heard if rank in self._peers else None

    def _hear(self, source: socket.socket, now: float) -> None:
        if source is self._listener:
            self._accept(now)
            return
        if source not in self._connections:  # closed a moment ago, for a newer connection of the same rank
            return
        connection, known = self._connections[source]
        for message in connection.receive():
            if message.rank in self._peers:
                self._take(connection, message, now)
        if not connection.is_open:
            self._drop(connection, now, waited=known is None)

    def _accept(self, now: float) -> None:
        try:
            accepted, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._pause_accepting(now, error)
            return
        self._connections[accepted] = Connection(accepted, self._group.token), None
        self._selector.register(accepted, selectors.EVENT_READ)

    def _pause_accepting(self, now: float, error: OSError) -> None:
        """Ignore the listener for a while, because a waiting connection would wake this thread again at once."""
        self._selector.unregister(self._listener)
        self._accepts_again = now + _FULL_SECONDS
        if not self._said_full:
            self._said_full = True
            self._reactions.say(
                f"rank 0 cannot take the heartbeat of another rank: {error.strerror}; raise the limit of open files "
                "(ulimit -n); it tries again every second"
            )

    def _take(self, connection: Connection, message: Message, now: float) -> None:
        kind, rank, pulse = message
        peer = self._peers[rank]
        if connection is not peer.connection:  # the first message of a connection
            if peer.connection:
                self._close(peer.connection)
            peer.connection = connection
            self._connections[connection.socket] = connection, rank
            self._find(rank)
            self._tell(ALIVE, rank, Pulse(self._together))
        peer.heard, peer.gone = now, None
        if kind in (GOODBYE, FAILED):
            peer.goodbye = kind
        else:
            peer.progress.add(pulse, now)
        before = self._together
        self._gather_all(now)
        if self._together == before:  # else _gather_all has sent it
            connection.send(ALIVE, 0, Pulse(self._together))

    def _report(self, now: float) -> None:
        self._progress.add(self._activity.sample(), now)
        self._gather_all(now)

    def _is_deaf(self) -> bool:
        return False

    def _gather_all(self, now: float) -> None:
        """Report to all ranks the meeting point that every rank has reached."""
        heard = [peer for peer in self._peers.values() if peer.heard is not None]
        if now < self._greeted and len(heard) < len(self._peers):
            return
        reached = min([self._progress.reached, *(peer.progress.reached for peer in heard if not peer.goodbye)])
        if reached > self._together:
            self._meet(reached)
            self._tell(ALIVE, 0, Pulse(reached))

    def _drop(self, connection: Connection, now: float, *, waited: bool) -> None:
        """Close a connection, and record its rank as lost unless the rank has left in order."""
        rank = self._close(connection)
        if rank is None:
            return
        peer = self._peers[rank]
        peer.connection = None
        if peer.goodbye == GOODBYE:
            return
        peer.gone = now
        if peer.goodbye or not waited:
            kind = peer.goodbye or ENDED
            self._tell(kind, rank)
            self._miss(rank, kind, aloud=kind == ENDED)

    def _close(self, connection: Connection) -> int | None:
        _, rank = self._connections.pop(connection.socket)
        self._selector.unregister(connection.socket)
        connection.socket.close()
        return rank

    def _beat(self, now: float) -> None:
        self._report(now)
        if self._accepts_again and now >= self._accepts_again:
            self._accepts_again = None
            self._selector.register(self._listener, selectors.EVENT_READ)
        if self._give_up and now > self._give_up:
            self._give_up = None
            self._name_the_unheard()
        for rank, peer in self._peers.items():
            if peer.goodbye == GOODBYE or peer.heard is None:
                continue
            if peer.gone is not None and now - peer.gone > self._grace:
                return self._end(peer.goodbye or ENDED, rank)
            if now - peer.heard > self._group.seconds:
                return self._end(SILENT, rank)
        return self._judge_progress(now)

    def _judge_progress(self, now: float) -> None:
        """End the run if there is a straggler, or if no rank moves."""
        present = {rank: peer for rank, peer in self._peers.items() if not peer.goodbye}
        recently = now - 3 * self._interval
        everyones = {0: self._progress}
        for rank, peer in present.items():
            if peer.gone is None and peer.heard is not None and peer.heard > recently:
                everyones[rank] = peer.progress
        compare(everyones, now)
        seconds = self._group.stall_seconds
        if standing := stragglers(everyones, now, seconds):
            for rank in standing:
                self._miss(rank, STANDING, everyones[rank].where, aloud=True)
                self._tell(STANDING, rank, Pulse(where=everyones[rank].where))
            self._end(STANDING, standing[0])
        elif len(everyones) == 1 + len(present) and all_stand(everyones, now, seconds):
            where = "; ".join(f"rank {rank}: {each.where}" for rank, each in list(everyones.items())[:_NAMED])
            self._miss(0, STALLED, where, aloud=True)
            self._end(STALLED, 0)

    def _name_the_unheard(self) -> None:
        if unheard := [self._group.name(rank) for rank, peer in self._peers.items() if peer.heard is None]:
            self._reactions.say(
                f"no heartbeat at {', '.join(self._group.addresses)}, port {self._group.port} from "
                f"{', '.join(unheard)} (does a firewall block it?); the run continues, and cannot detect if they freeze"
            )

    def _end(self, kind: bytes, rank: int) -> None:
        self._tell(kind, rank, Pulse(where=self._details.get(rank, "")))
        self._tell(DEAD, rank)
        super()._end(kind, rank)

    def _excuse(self, pause: float) -> None:
        for peer in self._peers.values():
            peer.heard = None if peer.heard is None else peer.heard + pause
            peer.progress.excuse(pause)
        self._progress.excuse(pause)

    def _say_goodbye(self, kind: bytes) -> None:
        self._tell(kind, 0)

    def _tell(self, kind: bytes, rank: int, pulse: Pulse | None = None) -> None:
        for peer in self._peers.values():
            if peer.connection:
                peer.connection.send(kind, rank, pulse)
