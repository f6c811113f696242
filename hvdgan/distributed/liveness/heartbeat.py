"""Detects dead or frozen ranks and stragglers: every rank exchanges heartbeats with rank 0 over TCP.

Horovod cannot detect them, because its threads block on the socket of a frozen peer. So each rank has a TCP connection
to rank 0, and a thread that answers on it even if the main thread hangs. A process that dies closes its connection at
once. A process that is frozen or cut off falls silent. A heartbeat also reports the progress of the rank's main thread,
so a straggler is found although its process answers.
"""

import contextlib
import faulthandler
import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from hvdgan.cli import events
from hvdgan.cli.errors import UserError
from hvdgan.cli.events import End, Event, LostRank, Standstill
from hvdgan.cli.files.in_place import in_place
from hvdgan.cli.hosts import addresses, allow_open_files, kill, listen, network_id, process_id
from hvdgan.distributed.liveness.activity import Activity
from hvdgan.distributed.liveness.connections import FAILED, SILENT, STALLED, STANDING
from hvdgan.distributed.liveness.member_monitor import MemberMonitor
from hvdgan.distributed.liveness.members import Group, Member
from hvdgan.distributed.liveness.monitor import Monitor
from hvdgan.distributed.liveness.root_monitor import RootMonitor

_EXPLANATION_SECONDS = 3.0
_LAST_WORDS_SECONDS = 5.0
_HEARTBEATS = 3
"""number of heartbeats of which at least one reports a move, if the rank moves"""


class Heartbeat:
    """The heartbeats of this rank; use it in a `with` statement. A run of one rank has none.

    Args:
        monitor: the monitor, already started; None: there is nothing to monitor.
        activity: progress of this rank's main thread, whose waits use the monitor.
    """

    def __init__(self, monitor: Monitor | None = None, activity: Activity | None = None) -> None:
        self._monitor = monitor
        self._waits = contextlib.ExitStack()
        if monitor and activity:
            self._waits.enter_context(activity.watched_by(monitor))

    def explanation(self) -> str | None:
        """A sentence about a lost rank that may explain an error; waits a few seconds for the news."""
        return self._monitor.explanation(_EXPLANATION_SECONDS) if self._monitor else None

    def has_failed(self) -> bool:
        """Whether some rank has failed and reported its error."""
        return self._monitor is not None and self._monitor.has_failed()

    def __enter__(self) -> "Heartbeat":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._waits.close()
        if self._monitor:
            self._monitor.stop(failed=kind is not None)


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
    """Start the heartbeats; every rank calls it.

    Args:
        rank: this rank.
        gather: Ranks.gather.
        seconds: silence in seconds after which a rank counts as dead; 0: no heartbeats. Rank 0's value holds for all.
        run_dir: folder to whose events and log rank 0 appends its last words, if it exists.
        elastic: True if the other ranks continue without a dead one.
        stall_seconds: seconds without a move after which a straggler is ended; 0: never. Rank 0's value holds for all.
        activity: Ranks.activity.

    Raises:
        UserError: stall_seconds is shorter than a few heartbeats, so that moving ranks would seem to stand still.
    """
    members = _members(gather)
    if len(members) == 1:
        return Heartbeat()
    listener: socket.socket | None = None
    place: list[Any] | None = None
    if rank == 0 and seconds:
        listener, known = _listen(members)
        place = [known, listener.getsockname()[1], secrets.token_hex(16), seconds, stall_seconds]
    place = gather(place, "heartbeat: place")[0]
    if place is None:
        return Heartbeat()
    group = Group(members, place[0], place[1], bytes.fromhex(place[2]), place[3], place[4])
    if complaint := _too_short(group):
        if listener:
            listener.close()
        raise UserError(complaint)
    words = _LastWords(rank, group, run_dir, elastic=elastic)
    monitor: Monitor
    monitor = RootMonitor(listener, group, words, activity) if listener else MemberMonitor(rank, group, words, activity)
    monitor.start()
    return Heartbeat(monitor, activity)


def _members(gather: Callable[[Any, str], list[Any]]) -> list[Member]:
    mine = [os.uname().nodename, process_id(os.getpid()), network_id()]
    return [
        Member(number, host, (process[0], process[1], process[2]), network)
        for number, (host, process, network) in enumerate(gather(mine, "heartbeat: members"))
    ]


def _listen(members: Sequence[Member]) -> tuple[socket.socket, list[str]]:
    """Listen on rank 0 for the other ranks; returns the socket, and the addresses at which they may reach it."""
    allow_open_files(len(members))
    if len({member.network for member in members}) == 1:
        return listen("127.0.0.1"), ["127.0.0.1"]
    return listen(None), addresses()


def _too_short(group: Group) -> str | None:
    """A complaint about a --stall-timeout within which a rank that moves may not have reported it; None: it is fine."""
    least = round(_HEARTBEATS * group.interval, 6)
    if not 0 < group.stall_seconds < least:
        return None
    return (
        f"--stall-timeout {group.stall_seconds:g}: expected 0 or at least {least:g} s with --peer-timeout "
        f"{group.seconds:g}, since a rank reports its progress every {group.interval:g} s"
    )


class _LastWords:
    """Logs a lost rank, and ends this process."""

    def __init__(self, rank: int, group: Group, run_dir: Path | None, *, elastic: bool) -> None:
        self._rank = rank
        self._group = group
        self._run_dir = run_dir
        self._elastic = elastic

    def say(self, text: str) -> None:
        """Write a line to stderr, and on rank 0 to the log."""
        _attempt(lambda: self._write(text))

    def lose(self, kind: bytes, rank: int, text: str, *, aloud: bool) -> None:
        """Write that a rank is lost, or that none moves; `aloud` as a line, too."""
        event: Event = Standstill(text=text)
        if kind != STALLED:
            member = self._group.members[rank]
            event = LostRank(rank=rank, host=member.host, pid=member.process[0], text=text)
        _attempt(lambda: self._write(text if aloud else None, event))

    def end(self, kind: bytes, rank: int) -> None:
        """End this process, whose main thread may wait for ever for a rank that is dead or stands still.

        In an elastic run it returns, unless this rank is the straggler or the error is not the loss of a rank.
        """
        found = self._group.describe(rank, kind)
        is_this_one = kind == STANDING and rank == self._rank
        continues = self._elastic and kind not in (FAILED, STALLED) and not is_this_one
        if is_this_one and self._elastic:
            self.say("this rank ends here, and the others continue without it")
        elif not continues:
            last = f"{found}; this run ends here, and --resume auto resumes it from the last checkpoint"
            _attempt(lambda: self._write(last, End(state="failed", text=last, is_of_lost_rank=True)))
        elif kind in (SILENT, STANDING):
            self.say(f"{found}; this run continues without it")
        if kind == SILENT:
            kill(self._group.members[rank].process)  # a launcher cannot end a frozen process of another host
        if not continues:
            os._exit(1)

    def show_stacks(self) -> None:
        """Print the stack of each thread to stderr."""

        def show() -> None:
            print(f"hvdgan: rank {self._rank}: where its threads are:", file=sys.stderr, flush=True)
            faulthandler.dump_traceback(sys.__stderr__ or sys.stderr)

        _attempt(show)

    def _write(self, text: str | None, event: Event | None = None) -> None:
        if text is not None:
            print(f"hvdgan: rank {self._rank}: {text}", file=sys.stderr, flush=True)
        if self._rank != 0 or self._run_dir is None or not self._run_dir.is_dir():
            return
        for name, line in ((events.LOG, text and events.dated(text)), (events.FILE, event and events.as_json(event))):
            if line:
                with open(self._run_dir / name, "a", encoding="utf-8", opener=in_place) as file:
                    file.write(line)


def _attempt(work: Callable[[], None]) -> None:
    """Do work for a few seconds at most: a full pipe or a dead disk must not block the heartbeat thread."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(_LAST_WORDS_SECONDS)
