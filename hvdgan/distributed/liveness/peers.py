"""Rank 0 and the other ranks as they watch each other: who is alive, has left, has died, is silent or stands still."""

import dataclasses
import errno
import selectors
import socket
import time

from hvdgan.distributed.liveness.activity import Activity, Pulse
from hvdgan.distributed.liveness.lines import (
    ALIVE,
    DEAD,
    ENDED,
    FAILED,
    GOODBYE,
    SILENT,
    STALLED,
    STANDING,
    Line,
    Meeting,
    Member,
    Message,
)
from hvdgan.distributed.liveness.progress import Progress, all_stand, who_stands
from hvdgan.distributed.liveness.watch import Watch, Words

__all__ = ["ENDED", "FAILED", "SILENT", "STALLED", "STANDING", "Hub", "Meeting", "Member", "Spoke", "Words"]


# Ranks that are named where all stand still.
_NAMED = 8
# After which a connection that could not be taken, at the limit of open files, is tried again.
_FULL_SECONDS = 1.0


@dataclasses.dataclass
class _Peer:
    """What rank 0 knows of another rank: its connection, when it was heard, since when it is gone, how it left, and its
    progress."""

    line: Line | None = None
    heard: float | None = None
    gone: float | None = None
    goodbye: bytes | None = None
    progress: Progress = dataclasses.field(default_factory=lambda: Progress(time.monotonic()))


class Hub(Watch):
    """Rank 0's watch over all others; it tells each what it finds of the rest."""

    def __init__(
        self, listener: socket.socket, meeting: Meeting, words: Words, activity: Activity | None = None
    ) -> None:
        super().__init__(meeting, words, 0, activity)
        listener.setblocking(False)
        self._listener = listener
        self._lines: dict[socket.socket, tuple[Line, int | None]] = {}
        self._peers = {member.rank: _Peer() for member in meeting.members[1:]}
        self._progress = Progress(time.monotonic())
        self._accepts_again: float | None = None
        self._said_full = False
        self._give_up: float | None = time.monotonic() + meeting.seconds
        self._selector.register(listener, selectors.EVENT_READ)

    def _hear(self, source: socket.socket, now: float) -> None:
        if source is self._listener:
            self._accept(now)
            return
        if source not in self._lines:  # closed a moment ago, for a newer connection of the same rank
            return
        line, known = self._lines[source]
        for message in line.receive():
            if message.rank in self._peers:
                self._take(line, message, now)
        if not line.is_open:
            self._drop(line, now, waited=known is None)

    def _accept(self, now: float) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._pause_accepting(now, error)
            return
        self._lines[connection] = Line(connection, self._meeting.token), None
        self._selector.register(connection, selectors.EVENT_READ)

    def _pause_accepting(self, now: float, error: OSError) -> None:
        """Look away from the listener for a while: what waits there would wake this thread again at once."""
        self._selector.unregister(self._listener)
        self._accepts_again = now + _FULL_SECONDS
        if not self._said_full:
            self._said_full = True
            self._words.say(
                f"rank 0 cannot take the heartbeat of another rank: {error.strerror}; raise the limit of open files "
                "(ulimit -n); it tries again every second"
            )

    def _take(self, line: Line, message: Message, now: float) -> None:
        kind, rank, pulse = message
        peer = self._peers[rank]
        if line is not peer.line:  # the first message of a connection
            if peer.line:
                self._close(peer.line)
            peer.line = line
            self._lines[line.connection] = line, rank
            self._find(rank)
            self._tell(ALIVE, rank, Pulse(self._together))
        peer.heard, peer.gone = now, None
        if kind in (GOODBYE, FAILED):
            peer.goodbye = kind
        else:
            peer.progress.add(pulse, now)
        before = self._together
        self._gather_all(now)
        if self._together == before:  # else it has been told
            line.send(ALIVE, 0, Pulse(self._together))

    def _report(self, now: float) -> None:
        self._progress.add(self._activity.sample(), now)
        self._gather_all(now)

    def _is_deaf(self) -> bool:
        return False

    def _gather_all(self, now: float) -> None:
        """Tell all ranks which point everybody has reached."""
        heard = [peer for peer in self._peers.values() if peer.heard is not None]
        if now < self._greeted and len(heard) < len(self._peers):
            return
        reached = min([self._progress.reached, *(peer.progress.reached for peer in heard if not peer.goodbye)])
        if reached > self._together:
            self._meet(reached)
            self._tell(ALIVE, 0, Pulse(reached))

    def _drop(self, line: Line, now: float, *, waited: bool) -> None:
        """Close a connection, and say whose it was.

        Args:
            line: closed by the other side.
            now: in seconds.
            waited: whether it was closed before this rank took it. Its rank may have given up waiting for an answer and
                have called again, so this is a death only if no newer connection is found before it is judged.
        """
        rank = self._close(line)
        if rank is None:
            return
        peer = self._peers[rank]
        peer.line = None
        if peer.goodbye == GOODBYE:
            return
        peer.gone = now
        if peer.goodbye or not waited:
            kind = peer.goodbye or ENDED
            self._tell(kind, rank)
            self._miss(rank, kind, aloud=kind == ENDED)

    def _close(self, line: Line) -> int | None:
        _, rank = self._lines.pop(line.connection)
        self._selector.unregister(line.connection)
        line.connection.close()
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
            if now - peer.heard > self._meeting.seconds:
                return self._end(SILENT, rank)
        return self._judge_progress(now)

    def _judge_progress(self, now: float) -> None:
        """End the run if a rank stands still while others wait for it, or if all do."""
        present = {rank: peer for rank, peer in self._peers.items() if not peer.goodbye}
        recently = now - 3 * self._interval
        everyones = {0: self._progress}
        for rank, peer in present.items():
            if peer.gone is None and peer.heard is not None and peer.heard > recently:
                everyones[rank] = peer.progress
        seconds = self._meeting.stall_seconds
        if standing := who_stands(everyones, now, seconds):
            for rank in standing:
                self._miss(rank, STANDING, everyones[rank].where, aloud=True)
                self._tell(STANDING, rank, Pulse(where=everyones[rank].where))
            self._end(STANDING, standing[0])
        elif len(everyones) == 1 + len(present) and all_stand(everyones, now, seconds):
            where = "; ".join(f"rank {rank}: {each.where}" for rank, each in list(everyones.items())[:_NAMED])
            self._miss(0, STALLED, where, aloud=True)
            self._end(STALLED, 0)

    def _name_the_unheard(self) -> None:
        if unheard := [self._meeting.name(rank) for rank, peer in self._peers.items() if peer.heard is None]:
            self._words.say(
                f"not heard at {', '.join(self._meeting.addresses)}, port {self._meeting.port} (a firewall?): "
                f"{', '.join(unheard)}; this run goes on, and will not notice if they freeze"
            )

    def _end(self, kind: bytes, rank: int) -> None:
        self._tell(kind, rank, Pulse(where=self._details.get(rank, "")))
        self._tell(DEAD, rank)
        super()._end(kind, rank)

    def _excuse(self, pause: float) -> None:
        for peer in self._peers.values():
            peer.heard = None if peer.heard is None else peer.heard + pause
            peer.progress.moved += pause
        self._progress.moved += pause

    def _say_goodbye(self, kind: bytes) -> None:
        self._tell(kind, 0)

    def _tell(self, kind: bytes, rank: int, pulse: Pulse | None = None) -> None:
        for peer in self._peers.values():
            if peer.line:
                peer.line.send(kind, rank, pulse)


class Spoke(Watch):
    """Another rank's watch over rank 0, which tells it of the rest."""

    def __init__(self, rank: int, meeting: Meeting, words: Words, activity: Activity | None = None) -> None:
        super().__init__(meeting, words, rank, activity)
        self._candidates = list(meeting.addresses)
        if meeting.members[0].network == meeting.members[rank].network:
            self._candidates = ["127.0.0.1"]
        self._line: Line | None = None
        self._heard: float | None = None
        self._gone: float | None = None
        self._give_up = time.monotonic() + meeting.seconds
        self._called = 0.0

    def _hear(self, source: socket.socket, now: float) -> None:
        if self._line is None or source is not self._line.connection:
            return
        for message in self._line.receive():
            if self._heard is None:  # it is rank 0 that is there: look for it nowhere else
                self._candidates = [source.getpeername()[0]]
            self._heard = now
            if self._gone:
                self._gone = None
                self._find(0)
            if self._take(message):
                return
        if not self._line.is_open:
            self._hang_up()
            if self._heard is not None and self._gone is None:
                self._gone = now
                self._miss(0, ENDED, aloud=0 not in self._missing)

    def _take(self, message: Message) -> bool:
        """Act on a message; whether it was the last."""
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
        elif kind in (FAILED, ENDED, SILENT, STANDING, STALLED) and rank < len(self._meeting.members):
            self._miss(rank, kind, pulse.where)
        return kind in (GOODBYE, DEAD)

    def _report(self, now: float) -> None:
        if self._line:
            self._line.send(ALIVE, self._rank, self._activity.sample())

    def _is_deaf(self) -> bool:
        return self._heard is None and time.monotonic() > self._greeted

    def _beat(self, now: float) -> None:
        if self._heard is None and now > self._give_up:
            self._goodbye = GOODBYE  # there is no way to rank 0, which says so
            return
        if self._line and self._heard is None and now - self._called > 3 * self._interval:
            self._hang_up()  # whoever is there, it is not rank 0
        if self._line is None:
            self._call(now)
        self._report(now)
        if self._gone is not None and now - self._gone > self._grace:
            self._end(self._missing.get(0, ENDED), 0)
        elif self._heard is not None and now - self._heard > self._meeting.seconds:
            self._end(SILENT, 0)

    def _call(self, now: float) -> None:
        self._called = now
        self._candidates.append(address := self._candidates.pop(0))
        try:
            connection = socket.create_connection((address, self._meeting.port), timeout=self._interval / 2)
        except OSError:
            return
        self._line = Line(connection, self._meeting.token)
        self._selector.register(connection, selectors.EVENT_READ)

    def _hang_up(self) -> None:
        assert self._line is not None
        self._selector.unregister(self._line.connection)
        self._line.connection.close()
        self._line = None

    def _excuse(self, pause: float) -> None:
        self._heard = None if self._heard is None else self._heard + pause

    def _say_goodbye(self, kind: bytes) -> None:
        if self._line:
            self._line.send(kind, self._rank)
