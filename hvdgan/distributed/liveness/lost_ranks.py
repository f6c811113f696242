"""The ranks of a run as all of them know each other, the kinds of losses among them, and the report of a loss."""

import contextlib
import dataclasses
import faulthandler
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from hvdgan.files.in_place import in_place
from hvdgan.launching.hosts import kill
from hvdgan.runs import events
from hvdgan.runs.events import End, Event, LostRank, Standstill

FAILED, ENDED, SILENT, STANDING, STALLED = "failed", "ended", "silent", "standing", "stalled"
"""the rank leaves with an error; its connection is closed; it sends no heartbeats; it is a straggler; no rank moves"""


@dataclasses.dataclass(frozen=True)
class Group:
    """All ranks, and the settings of their heartbeats."""

    hosts: Sequence[str]
    processes: Sequence[tuple[int, str, int]]  # by hosts.process_id()
    seconds: float  # of silence after which a rank counts as dead
    stall_seconds: float = 0.0  # without a move after which a rank counts as a straggler; 0: never

    @property
    def interval(self) -> float:
        """Seconds between two heartbeats of a rank."""
        return min(1.0, self.seconds / 5)

    def name(self, rank: int) -> str:
        """A rank with its host and pid, for messages."""
        return f"rank {rank} (host {self.hosts[rank]}, pid {self.processes[rank][0]})"

    def describe(self, rank: int, kind: str, details: str = "") -> str:
        """A sentence about a rank that is lost."""
        more = f": {details}" if details else ""
        stalled = f"{self.stall_seconds:g}"
        if kind == STALLED:
            return (
                f"no rank has made progress for {stalled} s, and no rank is behind the others, so the straggler is "
                f"unknown{more}"
            )
        words = {
            FAILED: "has failed and reported its error",
            ENDED: "has ended without reporting an error",
            STANDING: f"is alive and has made no progress for {stalled} s, while others wait for it",
            SILENT: f"has been silent for {self.seconds:g} s: it is dead, frozen or cut off",
        }
        return f"{self.name(rank)} {words[kind]}{more}"


@dataclasses.dataclass(frozen=True)
class LastWords:
    """Logs a lost rank, and ends this process."""

    rank: int
    group: Group
    run_dir: Path | None  # to whose events and log rank 0 appends, if it exists
    elastic: bool  # whether the other ranks continue without a lost one

    def say(self, text: str) -> None:
        """Write a line to stderr, and on rank 0 to the log."""
        _attempt(lambda: self._write(text))

    def lose(self, kind: str, rank: int, text: str, *, aloud: bool) -> None:
        """Write that a rank is lost, or that none moves, to the events; `aloud` as a line, too."""
        lost = LostRank(rank=rank, host=self.group.hosts[rank], pid=self.group.processes[rank][0], text=text)
        _attempt(lambda: self._write(text if aloud else "", Standstill(text=text) if kind == STALLED else lost))

    def end(self, kind: str, rank: int) -> None:
        """End this process, whose main thread may wait for ever for a rank that is dead or stands still.

        In an elastic run it returns, unless this rank is the straggler or the error is not the loss of a rank.
        """
        found = self.group.describe(rank, kind)
        is_this_one = kind == STANDING and rank == self.rank
        if is_this_one or kind == STALLED:
            _attempt(self._show_stacks)
        continues = self.elastic and kind not in (FAILED, STALLED) and not is_this_one
        if is_this_one and self.elastic:
            self.say("this rank ends here, and the others continue without it")
        elif not continues:
            last = f"{found}; this run ends here, and --resume auto resumes it from the last checkpoint"
            _attempt(lambda: self._write(last, End(state="failed", text=last, is_of_lost_rank=True)))
        elif kind in (SILENT, STANDING):
            self.say(f"{found}; this run continues without it")
        if kind == SILENT:
            kill(self.group.processes[rank])  # a launcher cannot end a frozen process of another host
        if not continues:
            os._exit(1)

    def _show_stacks(self) -> None:
        print(f"hvdgan: rank {self.rank}: where its threads are:", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(sys.__stderr__ or sys.stderr)

    def _write(self, text: str, event: Event | None = None) -> None:
        if text:
            print(f"hvdgan: rank {self.rank}: {text}", file=sys.stderr, flush=True)
        if self.rank != 0 or self.run_dir is None or not self.run_dir.is_dir():
            return
        for name, line in ((events.LOG, text and events.dated(text)), (events.FILE, event and events.as_json(event))):
            if line:
                # A disk that is full costs this line alone.
                with (
                    contextlib.suppress(OSError),
                    open(self.run_dir / name, "a", encoding="utf-8", opener=in_place) as file,
                ):
                    file.write(line)


def _attempt(work: Callable[[], None]) -> None:
    """Do work for five seconds at most: a full pipe or a dead disk must not block the heartbeat thread."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(5.0)
