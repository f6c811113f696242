"""Detects ranks that are dead, frozen or stand still: every rank exchanges heartbeats with rank 0 over TCP.

Horovod cannot tell: while a peer is frozen its own threads block on that peer's socket. So this stands beside it: one
TCP connection from each rank to rank 0, and threads that answer whatever the main threads wait for. A process that dies
closes its connection at once; one that is frozen or cut off falls silent. A heartbeat also says how far the rank's main
thread has come: one that does not move while others wait for it stands still, however alive its process is.
"""

import contextlib
import faulthandler
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from hvdgan.cli.errors import UserError
from hvdgan.cli.hosts import addresses, allow_open_files, kill, listen, network_id, process_id
from hvdgan.distributed.liveness.activity import Activity
from hvdgan.distributed.liveness.peers import FAILED, SILENT, STALLED, STANDING, Hub, Meeting, Member, Spoke

_OPINION_SECONDS = 3.0
_LAST_WORDS_SECONDS = 5.0
_HEARTBEATS = 3
"""in which a rank that is alive tells of a movement at least once"""


class Heartbeat:
    """This rank's part of the watch, to be left by `with`; it watches nothing where there is no other rank."""

    def __init__(self, watch: Hub | Spoke | None = None, activity: Activity | None = None) -> None:
        self._watch = watch
        self._waits = contextlib.ExitStack()
        if watch and activity:
            self._waits.enter_context(activity.watched_by(watch))

    def opinion(self) -> str | None:
        """Who is gone, for an error that a rank that is gone may have caused; it waits a few seconds for news."""
        return self._watch.opinion(_OPINION_SECONDS) if self._watch else None

    def has_failed(self) -> bool:
        """Whether a rank has said that it stops with an error of its own."""
        return self._watch is not None and self._watch.has_failed()

    def __enter__(self) -> "Heartbeat":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._waits.close()
        if self._watch:
            self._watch.stop(failed=kind is not None)


def start(
    rank: int,
    gather: Callable[[Any, str], list[Any]],
    seconds: float,
    log: Path | None,
    *,
    elastic: bool = False,
    stall_seconds: float = 0.0,
    activity: Activity | None = None,
) -> Heartbeat:
    """Begin to watch; every rank calls it.

    Args:
        rank: this one.
        gather: Ranks.gather.
        seconds: of silence after which a rank counts as dead; 0: watch nothing. What rank 0 gives holds for all.
        log: file to which rank 0 appends its last words, where the folder exists.
        elastic: whether the others go on without a rank that is dead.
        stall_seconds: after which a rank that is alive and does not move is ended; 0: never. Rank 0's value holds.
        activity: Ranks.activity.

    Raises:
        UserError: stall_seconds is shorter than a few heartbeats, so that ranks which move would seem to stand still.
    """
    mine = [os.uname().nodename, process_id(os.getpid()), network_id()]
    members = [
        Member(number, host, (process[0], process[1], process[2]), network)
        for number, (host, process, network) in enumerate(gather(mine, "heartbeat: members"))
    ]
    if len(members) == 1:
        return Heartbeat()
    listener, place = None, None
    if rank == 0 and seconds:
        allow_open_files(len(members))
        one_host = len({member.network for member in members}) == 1
        listener = listen("127.0.0.1" if one_host else None)
        known = ["127.0.0.1"] if one_host else addresses()
        place = [known, listener.getsockname()[1], secrets.token_hex(16), seconds, stall_seconds]
    place = gather(place, "heartbeat: place")[0]
    if place is None:
        return Heartbeat()
    meeting = Meeting(members, place[0], place[1], bytes.fromhex(place[2]), place[3], place[4])
    if 0 < meeting.stall_seconds < (least := round(_HEARTBEATS * meeting.interval, 6)):
        if listener:
            listener.close()
        raise UserError(
            f"--stall-timeout {meeting.stall_seconds:g}: expected 0 or at least {least:g} s with --peer-timeout "
            f"{meeting.seconds:g}, since a rank says how far it is every {meeting.interval:g} s"
        )
    words = _LastWords(rank, meeting, log, elastic=elastic)
    watch: Hub | Spoke
    watch = Hub(listener, meeting, words, activity) if listener else Spoke(rank, meeting, words, activity)
    watch.start()
    return Heartbeat(watch, activity)


class _LastWords:
    """What the thread says, and how it ends this process on behalf of a rank that no longer can."""

    def __init__(self, rank: int, meeting: Meeting, log: Path | None, *, elastic: bool) -> None:
        self._rank = rank
        self._meeting = meeting
        self._log = log
        self._elastic = elastic

    def say(self, text: str) -> None:
        """A line to stderr, and on rank 0 to the log."""
        # A full pipe or a dead disk must not keep the thread.
        speaker = threading.Thread(target=self._write, args=(text,), daemon=True)
        speaker.start()
        speaker.join(_LAST_WORDS_SECONDS)

    def end(self, kind: bytes, rank: int) -> None:
        """End this process, since that rank is dead or stands still: the main thread may wait for it for ever."""
        found = self._meeting.describe(rank, kind)
        is_this_one = kind == STANDING and rank == self._rank
        goes_on = self._elastic and kind not in (FAILED, STALLED) and not is_this_one
        if is_this_one and self._elastic:
            self.say("this rank ends here, and the others go on without it")
        elif not goes_on:
            self.say(f"{found}; this run ends here, and goes on from the last checkpoint with --resume auto")
        elif kind in (SILENT, STANDING):
            self.say(f"{found}; this run goes on without it")
        if kind == SILENT:
            kill(self._meeting.members[rank].process)  # a launcher does not reach a frozen process of another host
        if not goes_on:
            os._exit(1)

    def show_stacks(self) -> None:
        """The stack of each thread to stderr."""

        def show() -> None:
            print(f"hvdgan: rank {self._rank}: where its threads are:", file=sys.stderr, flush=True)
            faulthandler.dump_traceback(sys.__stderr__ or sys.stderr)

        speaker = threading.Thread(target=show, daemon=True)
        speaker.start()
        speaker.join(_LAST_WORDS_SECONDS)

    def _write(self, text: str) -> None:
        print(f"hvdgan: rank {self._rank}: {text}", file=sys.stderr, flush=True)
        if self._rank == 0 and self._log and self._log.parent.is_dir():
            with self._log.open("a", encoding="utf-8") as log:
                log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
