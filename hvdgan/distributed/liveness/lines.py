"""What ranks say to each other beside Horovod: messages over a connection between two of them."""

import dataclasses
import secrets
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hvdgan.distributed.liveness.activity import Pulse

# The run's token, the kind of message, the rank that it is about, two numbers, and the bytes of text that follow.
_HEADER = struct.Struct("!16scIQQH")
_TEXT_BYTES = 1000
ALIVE, GOODBYE, DEAD = b"a", b"g", b"d"
FAILED, ENDED, SILENT, STANDING, STALLED = b"f", b"e", b"s", b"w", b"n"


class Message(NamedTuple):
    """A kind, the rank that it is about, and for that rank its pulse."""

    kind: bytes
    rank: int
    pulse: Pulse


@dataclasses.dataclass(frozen=True)
class Member:
    """What the others know of a rank: its host's name, and what hosts.process_id and hosts.network_id say."""

    rank: int
    host: str
    process: tuple[int, str, int]
    network: str


@dataclasses.dataclass(frozen=True)
class Meeting:
    """What all ranks know.

    members: who they are, by rank.
    addresses, port: where rank 0 listens.
    token: 16 bytes that only they know.
    seconds: of silence after which a rank counts as dead.
    stall_seconds: after which a rank that is alive and does not move counts as standing still; 0: never.
    """

    members: Sequence[Member]
    addresses: Sequence[str]
    port: int
    token: bytes
    seconds: float
    stall_seconds: float = 0.0

    @property
    def interval(self) -> float:
        """Seconds between two heartbeats of a rank."""
        return min(1.0, self.seconds / 5)

    def name(self, rank: int) -> str:
        """A rank in words."""
        member = self.members[rank]
        return f"rank {rank} (host {member.host}, pid {member.process[0]})"

    def describe(self, rank: int, kind: bytes) -> str:
        """What has happened to a rank, or with STALLED to all of them."""
        if kind == STALLED:
            return (
                f"no rank has moved for {self.stall_seconds:g} s, and none is behind the others, so that none can be "
                "named"
            )
        words = {
            FAILED: "has stopped with an error of its own",
            ENDED: "has ended without a word",
            STANDING: f"is alive and has not moved for {self.stall_seconds:g} s, while others wait for it",
            SILENT: f"has been silent for {self.seconds:g} s: it is dead, frozen or cut off",
        }
        return f"{self.name(rank)} {words[kind]}"


class Line:
    """A connection to one rank; whatever is not a message with the token closes it."""

    def __init__(self, connection: socket.socket, token: bytes) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = connection
        self.is_open = True
        self._token = token
        self._received = b""

    def send(self, kind: bytes, rank: int, pulse: Pulse | None = None) -> None:
        """Say something of a rank; where it does not go out the other one is frozen or gone, which shows by itself."""
        pulse = pulse or Pulse()
        text = pulse.where.encode(errors="backslashreplace")[:_TEXT_BYTES]
        message = _HEADER.pack(self._token, kind, rank, pulse.reached, pulse.moves, len(text)) + text
        try:
            sent = self.connection.send(message)
        except BlockingIOError:
            return
        except OSError:
            self.is_open = False
            return
        self.is_open = self.is_open and sent == len(message)

    def receive(self) -> Iterator[Message]:
        """What has arrived, up to the end where the other side has closed the connection."""
        while self.is_open:
            try:
                data = self.connection.recv(65536)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            self.is_open = bool(data)
            yield from self._messages(data)

    def _messages(self, data: bytes) -> Iterator[Message]:
        self._received += data
        if not secrets.compare_digest(self._received[: len(self._token)], self._token[: len(self._received)]):
            self.is_open = False
            return
        while len(self._received) >= _HEADER.size:
            token, kind, rank, reached, moves, length = _HEADER.unpack_from(self._received)
            if not secrets.compare_digest(token, self._token):
                self.is_open = False
                return
            end = _HEADER.size + length
            if len(self._received) < end:
                return
            where = self._received[_HEADER.size : end].decode(errors="backslashreplace")
            self._received = self._received[end:]
            yield Message(kind, rank, Pulse(reached, moves, where))
