"""The TCP connection between rank 0 and another rank, and the messages on it: heartbeats, goodbyes and deaths."""

import secrets
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

from hvdgan.distributed.liveness.activity import Pulse

# The run's token, the kind of the message, its rank, two numbers, and the length in bytes of the text that follows.
_HEADER = struct.Struct("!16scIQQH")
_TEXT_BYTES = 1000

ALIVE, GOODBYE, DEAD = b"a", b"g", b"d"
"""heartbeat; the rank leaves in order; the rank is dead, so every rank ends"""
FAILED, ENDED, SILENT, STANDING, STALLED = b"f", b"e", b"s", b"w", b"n"
"""the rank leaves with an error; its connection is closed; it sends no heartbeats; it is a straggler; no rank moves"""


class Message(NamedTuple):
    """A kind, the rank that the message is about, and that rank's pulse."""

    kind: bytes
    rank: int
    pulse: Pulse


class Connection:
    """A non-blocking connection to one rank; bytes that are no message with the run's token close it."""

    def __init__(self, peer: socket.socket, token: bytes) -> None:
        peer.setblocking(False)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = peer
        self.is_open = True
        self._token = token
        self._received = b""

    def send(self, kind: bytes, rank: int, pulse: Pulse | None = None) -> None:
        """Send a message about a rank; one that cannot be sent is dropped, because the next heartbeat replaces it."""
        pulse = pulse or Pulse()
        text = pulse.where.encode(errors="backslashreplace")[:_TEXT_BYTES]
        message = _HEADER.pack(self._token, kind, rank, pulse.reached, pulse.moves, len(text)) + text
        try:
            sent = self.socket.send(message)
        except BlockingIOError:
            return
        except OSError:
            self.is_open = False
            return
        self.is_open = self.is_open and sent == len(message)

    def receive(self) -> Iterator[Message]:
        """The messages that have arrived; is_open is False afterwards if the other side has closed the connection."""
        while self.is_open:
            try:
                data = self.socket.recv(65536)
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
