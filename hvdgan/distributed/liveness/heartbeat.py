"""Detects dead or frozen ranks and stragglers: every rank exchanges heartbeats with rank 0.

Horovod cannot detect them, because its threads block on the socket of a frozen peer. So each rank has a connection to
rank 0, and a thread that answers on it even if the main thread hangs. A process that dies closes its connection, and
one that is frozen or cut off falls silent. A heartbeat also reports the progress of the main thread, so a straggler is
found although its process answers. Nobody gets a connection without rank 0's key, which the ranks gather over Horovod.
"""

import contextlib
import ipaddress
import json
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from hvdgan.distributed.liveness.activity import Activity, Peer, Pulse, stragglers
from hvdgan.distributed.liveness.lost_ranks import ENDED, FAILED, SILENT, STALLED, STANDING, Group, LastWords
from hvdgan.errors import UserError
from hvdgan.launching.hosts import addresses, allow_open_files, network_id, process_id

_ALIVE, _GOODBYE = "alive", "goodbye"
_GRACE_SECONDS = 10.0  # in which two healthy processes connect again after their connection broke
_GREETING_SECONDS = 10.0  # for which ranks at a meeting point wait for one that has no connection yet
_LINGER_MILLISECONDS = 1000  # for which a process that leaves waits until its last messages are sent
_FAILED_LINGER_MILLISECONDS = 50  # the same after an error, which the process has yet to print
_EXPLANATION_SECONDS = 3.0  # for which an error waits for the news of a lost rank
_NAMED = 8  # ranks whose place is named if no rank moves
_EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


class Heartbeat:
    """The watch over the other ranks, in a `with` statement; this one is that of a run of one rank, without any."""

    def __enter__(self) -> "Heartbeat":
        return self

    def __exit__(self, *raised: object) -> None:
        pass

    def explanation(self, seconds: float = _EXPLANATION_SECONDS) -> str | None:
        """A sentence about the first lost rank, which may explain an error; waits some seconds for the news."""
        return None

    def has_failed(self) -> bool:
        """Whether some rank has failed and reported its error."""
        return False


class Monitor(Heartbeat):
    """A thread that sends heartbeats and judges others: what the monitors of the root and of the members share."""

    def __init__(self, words: LastWords, activity: Activity, socket: zmq.Socket[bytes], peers: Iterable[int]) -> None:
        self._words, self.activity, self._group = words, activity, words.group
        now = time.monotonic()
        self._own = Peer(now)
        self.peers = {peer: Peer(now) for peer in peers}
        self._grace = min(_GRACE_SECONDS, self._group.seconds / 2)
        self._greeting_ends = now + min(_GREETING_SECONDS, self._group.seconds)
        self._together = 0  # number of meeting points that every rank has reached
        self._missing: dict[int, tuple[str, str]] = {}  # kind and details of each loss
        self._goodbye = ""
        self._news = threading.Condition()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._socket, self._events = socket, socket.get_monitor_socket(_EVENTS)
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> "Monitor":
        self.activity.wait = self._wait_for_all
        self._thread.start()
        return self

    def __exit__(self, kind: object = None, *raised: object) -> None:
        """Leave the group: tell the others that this rank will be silent from now on, and end the thread."""
        self._goodbye = FAILED if kind else _GOODBYE
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        os.close(self._wake)

    def explanation(self, seconds: float = _EXPLANATION_SECONDS) -> str | None:
        with self._news:
            self._news.wait_for(lambda: self._missing, timeout=seconds)
            return next((self._group.describe(rank, *loss) for rank, loss in self._missing.items()), None)

    def has_failed(self) -> bool:
        with self._news:
            return any(kind == FAILED for kind, _ in self._missing.values())

    def _wait_for_all(self, reached: int) -> None:
        """Wait until every rank has reached this number of meeting points, or a rank is lost or cannot be heard."""
        if self._thread.is_alive():
            os.eventfd_write(self._wake, 1)  # report at once
        with self._news:
            while self._thread.is_alive() and self._together < reached and not self._missing:
                self._news.wait(self._group.interval)

    def _run(self) -> None:
        poller, interval = zmq.Poller(), self._group.interval
        for source in (self._socket, self._events, self._wake):
            poller.register(source, zmq.POLLIN)
        before, next_beat = time.monotonic(), 0.0
        while not self._goodbye:
            poller.poll(math.ceil(1000 * max(0.0, min(interval, next_beat - time.monotonic()))))
            now = time.monotonic()
            if (pause := now - before) > 2 * interval:
                for peer in (self._own, *self.peers.values()):
                    peer.excuse(pause)  # this process was stopped or starved, so the others may have sent heartbeats
            before = now
            self._poll(now)
            if now >= next_beat and not self._goodbye:
                next_beat = now + interval
                self._beat(now)
        self._leave(self._goodbye)

    def _poll(self, now: float) -> None:
        """Take all messages and events that have arrived."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
            self._send_report()
        events: list[Any] = []
        while self._events.poll(0):
            events.append(recv_monitor_message(self._events))
        while not self._goodbye and self._socket.poll(0):
            self._receive(now)
        for event in events:  # after the messages, because a rank says goodbye before it closes its connection
            if not self._goodbye:
                self._on_socket_event(event, now)

    def _beat(self, now: float) -> None:
        """Send a heartbeat, and end if another rank is dead or silent."""
        self._send_report()
        self._broadcast_state()
        for rank, peer in self.peers.items():
            if peer.gone is not None and now - peer.gone > self._grace:
                return self._end(rank, ENDED)
            if peer.heard is not None and now - peer.heard > self._group.seconds:
                return self._end(rank, SILENT)

    def _mark_heard(self, rank: int, connection: tuple[bytes, int], now: float) -> bool:
        """Record that a message of a rank has come, and return whether its connection is a new one."""
        peer = self.peers[rank]
        peer.heard, peer.gone = now, None
        if connection == peer.connection:
            return False
        peer.connection = connection
        self._mark_reached(0, [rank])
        return True

    def _mark_reached(self, together: int, found: Collection[int] = ()) -> None:
        """Record how many meeting points every rank has reached, and ranks that are not lost after all."""
        with self._news:
            self._together = max(self._together, together)
            for rank in found:
                self._missing.pop(rank, None)
            self._news.notify_all()

    def _mark_disconnected(self, rank: int, now: float) -> None:
        """Record that a rank's connection was closed; it may connect again."""
        self.peers[rank].connection, self.peers[rank].gone = (b"", -1), now
        self._mark_lost(rank, ENDED, aloud=True)

    def _mark_lost(self, rank: int, kind: str, details: str = "", *, aloud: bool = False) -> None:
        """Record a lost rank, and log it, also for people if `aloud`."""
        if rank not in self._missing:
            with self._news:
                self._missing[rank] = kind, details
                self._news.notify_all()
            self._broadcast_state()
            # At once, because a launcher may kill this process next.
            self._words.lose(kind, rank, self._group.describe(rank, kind, details), aloud=aloud)

    def _end(self, rank: int, kind: str) -> None:
        """End this process, on the root all others; in an elastic run a process may continue, without this group."""
        self._mark_lost(rank, kind)
        self._leave(str(rank))
        self._words.end(self._missing[rank][0], rank)
        self._goodbye = _GOODBYE

    def _leave(self, farewell: str) -> None:
        if not self._socket.closed:
            self._broadcast_state(farewell)
            self._send_report(farewell)
            if farewell == FAILED:  # a launcher ends this process soon, and its own error must be printed before
                self._socket.linger = _FAILED_LINGER_MILLISECONDS
            self._socket.disable_monitor()  # its last event could wait for a reader that is closed already
            self._socket.context.destroy()

    def _send_report(self, kind: str = _ALIVE) -> None:
        """Look at the progress of this rank, and report it to rank 0; the root keeps it."""
        self._own.add(self.activity.sample(), time.monotonic())

    def _broadcast_state(self, farewell: str = "") -> None:
        """Send all ranks what this one knows; only the root does."""

    def _receive(self, now: float) -> None:
        """Take a message."""
        raise NotImplementedError

    def _on_socket_event(self, event: Any, now: float) -> None:
        """React to an event of ZeroMQ's: a connection was made or closed."""
        raise NotImplementedError


class Root(Monitor):
    """The monitor of rank 0: receives the reports of all ranks, and sends them what it knows of all."""

    def __init__(
        self, words: LastWords, activity: Activity, socket: zmq.Socket[bytes], endpoints: Sequence[str]
    ) -> None:
        super().__init__(words, activity, socket, range(1, len(words.group.hosts)))
        self.endpoints = endpoints
        self._slowest = self._own
        self._names_unheard = True
        self._new_connections: set[int] = set()  # file descriptors that this poll has found to be of a new connection

    def _poll(self, now: float) -> None:
        self._new_connections.clear()
        super()._poll(now)
        if self._slowest.pulse.reached <= self._together:
            return  # the slowest rank has not moved, so the minimum is unchanged: the scan costs 5 % of a core at 1,000
        heard = [peer for peer in self.peers.values() if peer.heard is not None]
        self._slowest = min((self._own, *heard), key=lambda peer: peer.pulse.reached)
        reached = self._slowest.pulse.reached
        if reached > self._together and (now > self._greeting_ends or len(heard) == len(self.peers)):
            self._mark_reached(reached)
            self._broadcast_state()

    def _on_socket_event(self, event: Any, now: float) -> None:
        # The number of a closed connection may be that of a new one already.
        if event["event"] == zmq.EVENT_DISCONNECTED and (file := event["value"]) not in self._new_connections:
            for rank, peer in self.peers.items():
                if peer.heard is not None and peer.connection[1] == file:
                    self._mark_disconnected(rank, now)

    def _receive(self, now: float) -> None:
        """Take the report of a rank."""
        name, message = self._socket.recv_multipart(copy=False)
        sender, kind, *pulse = json.loads(message.bytes)
        if sender not in self.peers:
            return  # it has left
        connection = name.bytes, int(message.get(zmq.SRCFD))
        if self._mark_heard(sender, connection, now):
            self._new_connections.add(connection[1])
        if kind == _GOODBYE:
            del self.peers[sender]
            self._slowest = self._own
        elif kind == FAILED:
            self._mark_lost(sender, FAILED)
        else:
            self.peers[sender].add(Pulse(*pulse), now)

    def _broadcast_state(self, farewell: str = "") -> None:
        """Send all ranks what rank 0 knows, and whose loss ends them, if any."""
        known = [self._together, [(rank, *loss) for rank, loss in self._missing.items()]]
        message = json.dumps([farewell, *known]).encode()
        for peer in self.peers.values():
            if name := peer.connection[0]:
                self._socket.send_multipart([name, message])

    def _beat(self, now: float) -> None:
        super()._beat(now)
        if now > self._greeting_ends and self._names_unheard:
            self._names_unheard = False
            if unheard := [self._group.name(rank) for rank, peer in self.peers.items() if peer.heard is None]:
                self._words.say(
                    f"no heartbeat at {', '.join(self.endpoints)} from {', '.join(unheard)} (does a firewall "
                    "block it?); the run continues, and cannot detect if they freeze"
                )
        if not self._goodbye:
            self._judge_progress(now)

    def _judge_progress(self, now: float) -> None:
        """End the run if there is a straggler, or if no rank moves."""
        recently, seconds = now - 3 * self._group.interval, self._group.stall_seconds
        everyones = {0: self._own}
        everyones |= {rank: peer for rank, peer in self.peers.items() if (peer.heard or 0.0) > recently}
        where = {rank: peer.pulse.where or "nothing is known of its place" for rank, peer in everyones.items()}
        if standing := stragglers(everyones, now, seconds):
            for rank in standing:
                self._mark_lost(rank, STANDING, where[rank], aloud=True)
            self._end(standing[0], STANDING)
        elif len(where) > len(self.peers) and all(peer.stands(now, seconds) for peer in everyones.values()):
            places = "; ".join(f"rank {rank}: {place}" for rank, place in list(where.items())[:_NAMED])
            self._mark_lost(0, STALLED, places, aloud=True)
            self._end(0, STALLED)


class Member(Monitor):
    """The monitor of another rank: reports to the root, at the endpoint that answers, and receives what it knows."""

    def __init__(
        self, words: LastWords, activity: Activity, socket: zmq.Socket[bytes], endpoints: Sequence[str]
    ) -> None:
        super().__init__(words, activity, socket, [0])
        self._rank, self._unanswered = words.rank, set(endpoints)
        for endpoint in endpoints:
            socket.connect(endpoint)  # from now on, because the events tell which one answers

    def _poll(self, now: float) -> None:
        super()._poll(now)
        if self.peers[0].heard is None and now > self._greeting_ends:
            self._mark_reached(self._own.pulse.reached)  # nothing is known of the others, so this rank does not wait

    def _on_socket_event(self, event: Any, now: float) -> None:
        if event["event"] == zmq.EVENT_DISCONNECTED:
            if self.peers[0].heard is not None:
                self._mark_disconnected(0, now)
            return
        for other in self._unanswered:
            if ip_of(other) != ip_of(event["endpoint"].decode()):
                with contextlib.suppress(zmq.ZMQError):  # it is gone already
                    self._socket.disconnect(other)
        self._unanswered.clear()
        self.peers[0].heard = now
        self._send_report()

    def _receive(self, now: float) -> None:
        """Take what rank 0 knows."""
        message = self._socket.recv(copy=False)
        self._mark_heard(0, (b"", int(message.get(zmq.SRCFD))), now)
        self._apply_state(*json.loads(message.bytes))

    def _apply_state(self, farewell: str, together: int, lost: list[tuple[int, str, str]]) -> None:
        """Take over what rank 0 knows, and end if it says so."""
        losses = {rank: loss for rank, *loss in lost} | ({0: [FAILED, ""]} if farewell == FAILED else {})
        self._mark_reached(together, [rank for rank in self._missing if rank not in losses])
        for rank, (kind, details) in losses.items():
            self._mark_lost(rank, kind, details, aloud=rank == self._rank)
        if farewell == _GOODBYE:
            self._goodbye = _GOODBYE
        elif self._rank in losses or farewell.isdecimal():
            self._end(self._rank if self._rank in losses else int(farewell), ENDED)

    def _send_report(self, kind: str = _ALIVE) -> None:
        """Report this rank's progress to rank 0, or a goodbye, if there is a connection."""
        super()._send_report()
        if not self._unanswered:
            with contextlib.suppress(zmq.Again):
                self._socket.send(json.dumps([self._rank, kind, *self._own.pulse]).encode(), zmq.NOBLOCK)


def ip_of(endpoint: str) -> tuple[Any, str]:
    """The IP address and the port of an endpoint, which ZeroMQ's events write in another way after a reconnection."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address, port


def listen(*, is_local: bool) -> tuple[zmq.Socket[bytes], list[str], str]:
    """The socket of rank 0, its endpoints, on this host alone if `is_local`, and the key that a connection needs."""
    key, secret = zmq.curve_keypair()
    socket = zmq.Context().socket(zmq.ROUTER)
    socket.curve_server, socket.curve_secretkey = True, secret
    socket.ipv6, socket.linger, socket.backlog = True, _LINGER_MILLISECONDS, 1024
    socket.bind("tcp://127.0.0.1:*" if is_local else "tcp://*:*")
    port = socket.get_string(zmq.LAST_ENDPOINT).rpartition(":")[2]
    known = ["127.0.0.1"] if is_local else [f"[{each}]" if ":" in each else each for each in addresses()]
    return socket, [f"tcp://{address}:{port}" for address in known], key.decode()


def caller(key: str) -> zmq.Socket[bytes]:
    """The socket of another rank."""
    socket = zmq.Context().socket(zmq.DEALER)
    socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
    socket.curve_serverkey, socket.ipv6, socket.linger = key.encode(), True, _LINGER_MILLISECONDS
    return socket


def start(
    rank: int,
    gather: Callable[[Any, str], list[Any]],
    seconds: float,
    run_dir: Path | None,
    *,
    elastic: bool = False,
    stall_seconds: float = 0.0,
    activity: Activity | None = None,
) -> Heartbeat:
    """Start the heartbeats; every rank calls it with its Ranks.gather and Ranks.activity.

    Silence of `seconds` makes a rank count as dead (0: no heartbeats), and `stall_seconds` without a move a straggler
    (0: never); rank 0's values hold for all. If `elastic`, the other ranks continue without a dead one. Rank 0 appends
    its last words to the events and the log in run_dir, if it exists.
    """
    mine = [os.uname().nodename, process_id(os.getpid()), network_id(), seconds, stall_seconds]
    hosts, processes, networks, limits, stall_limits = zip(*gather(mine, "heartbeat: ranks"), strict=True)
    group = Group(hosts, [tuple(process) for process in processes], limits[0], stall_limits[0])
    if len(hosts) == 1 or not group.seconds:
        return Heartbeat()
    least = round(3 * group.interval, 6)  # of three heartbeats one at least reports a move, if the rank moves
    if 0 < group.stall_seconds < least:
        raise UserError(
            f"--stall-timeout {group.stall_seconds:g}: expected 0 or at least {least:g} s with --peer-timeout "
            f"{group.seconds:g}, since a rank reports its progress every {group.interval:g} s"
        )
    words, activity = LastWords(rank, group, run_dir, elastic), activity or Activity()
    if rank:
        endpoints, key = gather(None, "heartbeat: place")[0]
        return Member(words, activity, caller(key), endpoints)
    allow_open_files(len(hosts))  # for the connections
    socket, endpoints, key = listen(is_local=len(set(networks)) == 1)
    gather([endpoints, key], "heartbeat: place")
    return Root(words, activity, socket, endpoints)
