"""Rank 0 and the other ranks as they watch each other: who is alive, who has left, who has died, who is silent."""

import dataclasses
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Protocol

# The run's token, what is said, and of which rank.
_MESSAGE = struct.Struct("!16scI")
_ALIVE, _GOODBYE, _DEAD = b"a", b"g", b"d"
FAILED, ENDED, SILENT = b"f", b"e", b"s"
# A connection can break between two healthy processes: they have so long to find each other again.
_GRACE_SECONDS = 10.0


@dataclasses.dataclass(frozen=True)
class Member:
    """What the others know of a rank: its host's name, and what hosts.process_id and hosts.network_id say."""

    rank: int
    host: str
    process: tuple[int, str, int]
    network: str


@dataclasses.dataclass(frozen=True)
class Meeting:
    """What all ranks know: who they are, where rank 0 listens, 16 bytes that only they know, and seconds of silence."""

    members: Sequence[Member]
    addresses: Sequence[str]
    port: int
    token: bytes
    seconds: float

    def name(self, rank: int) -> str:
        """A rank in words."""
        member = self.members[rank]
        return f"rank {rank} (host {member.host}, pid {member.process[0]})"

    def describe(self, rank: int, kind: bytes) -> str:
        """What has happened to a rank: FAILED, ENDED or SILENT."""
        words = {
            FAILED: "has stopped with an error of its own",
            ENDED: "has ended without a word",
            SILENT: f"has been silent for {self.seconds:g} s: it is dead, frozen or cut off",
        }
        return f"{self.name(rank)} {words[kind]}"


class Words(Protocol):
    """What a watch does with what it finds."""

    def say(self, text: str) -> None:
        """Tell people."""

    def end(self, kind: bytes, rank: int) -> None:
        """End this process, since that rank is dead."""


class _Line:
    """A connection to one rank; whatever is not a message with the token closes it."""

    def __init__(self, connection: socket.socket, token: bytes) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = connection
        self.is_open = True
        self._token = token
        self._received = b""

    def send(self, kind: bytes, rank: int) -> None:
        """Say something of a rank; where it does not go out the other one is frozen or gone, which shows by itself."""
        try:
            sent = self.connection.send(_MESSAGE.pack(self._token, kind, rank))
        except BlockingIOError:
            return
        except OSError:
            self.is_open = False
            return
        self.is_open = self.is_open and sent == _MESSAGE.size

    def receive(self) -> Iterator[tuple[bytes, int]]:
        """What has arrived: (kind, rank)."""
        try:
            data = self.connection.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.is_open = self.is_open and bool(data)
        self._received += data
        while len(self._received) >= _MESSAGE.size:
            token, kind, rank = _MESSAGE.unpack_from(self._received)
            if not secrets.compare_digest(token, self._token):
                self.is_open = False
                return
            self._received = self._received[_MESSAGE.size :]
            yield kind, rank


class _Watch:
    """The thread and its clock; whom it watches is for Hub and Spoke to say.

    Args:
        meeting: what all ranks know.
        words: what it says, and how it ends the process.
    """

    def __init__(self, meeting: Meeting, words: Words) -> None:
        self._meeting = meeting
        self._words = words
        self._interval = min(1.0, meeting.seconds / 5)
        self._grace = min(_GRACE_SECONDS, meeting.seconds / 2)
        self._selector = selectors.DefaultSelector()
        self._goodbye: bytes | None = None
        self._missing: dict[int, bytes] = {}
        self._news = threading.Condition()
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self, *, failed: bool = False) -> None:
        """Leave with a word to the others: from now on this rank's silence means nothing."""
        self._goodbye = FAILED if failed else _GOODBYE
        self._wake.send(b"x")
        self._thread.join()
        self._wake.close()
        self._woken.close()

    def opinion(self, seconds: float) -> str | None:
        """The first rank that is gone, waited for so long."""
        with self._news:
            self._news.wait_for(lambda: self._missing, timeout=seconds)
            return next((self._meeting.describe(rank, kind) for rank, kind in self._missing.items()), None)

    def has_failed(self) -> bool:
        """Whether a rank has stopped with an error of its own."""
        with self._news:
            return FAILED in self._missing.values()

    def _miss(self, rank: int, kind: bytes, *, aloud: bool = False) -> None:
        with self._news:
            if self._missing.get(rank) != FAILED:
                self._missing[rank] = kind
            self._news.notify_all()
        if aloud:
            self._words.say(self._meeting.describe(rank, kind))  # at once: a launcher may end this process next

    def _find(self, rank: int) -> None:
        with self._news:
            self._missing.pop(rank, None)

    def _end(self, kind: bytes, rank: int) -> None:
        self._words.end(kind, rank)
        self._goodbye = _GOODBYE  # where it comes back at all, this rank goes on

    def _run(self) -> None:
        before, next_beat = time.monotonic(), 0.0
        while not self._goodbye:
            ready = self._selector.select(max(0.0, min(self._interval, next_beat - time.monotonic())))
            now = time.monotonic()
            if (pause := now - before) > 2 * self._interval:
                self._excuse(pause)  # this process was stopped or starved: that it heard nothing means nothing
            before = now
            for key, _ in ready:
                if isinstance(key.fileobj, socket.socket) and key.fileobj is not self._woken:
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

    def _beat(self, now: float) -> None:
        """Say that this rank is alive, and judge the others."""
        raise NotImplementedError

    def _excuse(self, pause: float) -> None:
        """Let silence count for so many seconds less."""
        raise NotImplementedError

    def _say_goodbye(self, kind: bytes) -> None:
        """Tell the others that this rank leaves."""
        raise NotImplementedError


@dataclasses.dataclass
class _Peer:
    """What rank 0 knows of another rank: its connection, when it was heard, since when it is gone, and how it left."""

    line: _Line | None = None
    heard: float | None = None
    gone: float | None = None
    goodbye: bytes | None = None


class Hub(_Watch):
    """Rank 0's watch over all others; it tells each what it finds of the rest."""

    def __init__(self, listener: socket.socket, meeting: Meeting, words: Words) -> None:
        super().__init__(meeting, words)
        listener.setblocking(False)
        self._listener = listener
        self._lines: dict[socket.socket, tuple[_Line, int | None]] = {}
        self._peers = {member.rank: _Peer() for member in meeting.members[1:]}
        self._give_up: float | None = time.monotonic() + meeting.seconds
        self._selector.register(listener, selectors.EVENT_READ)

    def _hear(self, source: socket.socket, now: float) -> None:
        if source is self._listener:
            self._accept()
            return
        if source not in self._lines:  # closed a moment ago, for a newer connection of the same rank
            return
        line, _ = self._lines[source]
        for kind, rank in line.receive():
            if rank in self._peers:
                self._take(line, kind, rank, now)
        if not line.is_open:
            self._drop(line, now)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        self._lines[connection] = _Line(connection, self._meeting.token), None
        self._selector.register(connection, selectors.EVENT_READ)

    def _take(self, line: _Line, kind: bytes, rank: int, now: float) -> None:
        peer = self._peers[rank]
        if line is not peer.line:  # the first message of a connection
            if peer.line:
                self._close(peer.line)
            peer.line = line
            self._lines[line.connection] = line, rank
            self._find(rank)
        peer.heard, peer.gone = now, None
        if kind in (_GOODBYE, FAILED):
            peer.goodbye = kind
        line.send(_ALIVE, 0)

    def _drop(self, line: _Line, now: float) -> None:
        rank = self._close(line)
        if rank is None:
            return
        peer = self._peers[rank]
        peer.line = None
        if peer.goodbye != _GOODBYE:
            peer.gone = now
            kind = peer.goodbye or ENDED
            self._tell(kind, rank)
            self._miss(rank, kind, aloud=kind == ENDED)

    def _close(self, line: _Line) -> int | None:
        _, rank = self._lines.pop(line.connection)
        self._selector.unregister(line.connection)
        line.connection.close()
        return rank

    def _beat(self, now: float) -> None:
        if self._give_up and now > self._give_up:
            self._give_up = None
            self._name_the_unheard()
        for rank, peer in self._peers.items():
            if peer.goodbye == _GOODBYE or peer.heard is None:
                continue
            if peer.gone is not None and now - peer.gone > self._grace:
                return self._end(peer.goodbye or ENDED, rank)
            if now - peer.heard > self._meeting.seconds:
                return self._end(SILENT, rank)
        return None

    def _name_the_unheard(self) -> None:
        if unheard := [self._meeting.name(rank) for rank, peer in self._peers.items() if peer.heard is None]:
            self._words.say(
                f"not heard at {', '.join(self._meeting.addresses)}, port {self._meeting.port} (a firewall?): "
                f"{', '.join(unheard)}; this run goes on, and will not notice if they freeze"
            )

    def _end(self, kind: bytes, rank: int) -> None:
        self._tell(kind, rank)
        self._tell(_DEAD, rank)
        super()._end(kind, rank)

    def _excuse(self, pause: float) -> None:
        for peer in self._peers.values():
            peer.heard = None if peer.heard is None else peer.heard + pause

    def _say_goodbye(self, kind: bytes) -> None:
        self._tell(kind, 0)

    def _tell(self, kind: bytes, rank: int) -> None:
        for peer in self._peers.values():
            if peer.line:
                peer.line.send(kind, rank)


class Spoke(_Watch):
    """Another rank's watch over rank 0, which tells it of the rest."""

    def __init__(self, rank: int, meeting: Meeting, words: Words) -> None:
        super().__init__(meeting, words)
        self._rank = rank
        self._candidates = list(meeting.addresses)
        if meeting.members[0].network == meeting.members[rank].network:
            self._candidates = ["127.0.0.1"]
        self._line: _Line | None = None
        self._heard: float | None = None
        self._gone: float | None = None
        self._give_up = time.monotonic() + meeting.seconds
        self._called = 0.0

    def _hear(self, source: socket.socket, now: float) -> None:
        if self._line is None or source is not self._line.connection:
            return
        for kind, rank in self._line.receive():
            if self._heard is None:  # it is rank 0 that is there: look for it nowhere else
                self._candidates = [source.getpeername()[0]]
            self._heard = now
            if self._gone:
                self._gone = None
                self._find(0)
            if self._take(kind, rank):
                return
        if not self._line.is_open:
            self._hang_up()
            if self._heard is not None and self._gone is None:
                self._gone = now
                self._miss(0, ENDED, aloud=0 not in self._missing)

    def _take(self, kind: bytes, rank: int) -> bool:
        """Act on a message; whether it was the last."""
        if kind == _GOODBYE:
            self._goodbye = _GOODBYE
        elif kind == _DEAD and rank in self._missing:
            self._end(self._missing[rank], rank)
        elif kind in (FAILED, ENDED, SILENT) and rank < len(self._meeting.members):
            self._miss(rank, kind)
        return kind in (_GOODBYE, _DEAD)

    def _beat(self, now: float) -> None:
        if self._heard is None and now > self._give_up:
            self._goodbye = _GOODBYE  # there is no way to rank 0, which says so
            return
        if self._line and self._heard is None and now - self._called > 3 * self._interval:
            self._hang_up()  # whoever is there, it is not rank 0
        if self._line is None:
            self._call(now)
        if self._line:
            self._line.send(_ALIVE, self._rank)
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
        self._line = _Line(connection, self._meeting.token)
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
