"""Stops a run on a signal, a stop file or a time budget; all ranks stop after the same step."""

import os
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import RunError
from hvdgan.launching.hosts import running_seconds

STOPPED = 75
"""exit code of a run that was asked to stop, has saved, and can be resumed (EX_TEMPFAIL of sysexits.h)"""

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_USED_UP = "--time-budget is used up"
CHECK_SECONDS = 1.0
"""seconds between two checks of all ranks; each check costs a small collective"""


class Stopping:
    """Receives requests to stop on any rank, and reports them to all ranks after the same step.

    Before the steps begin, Ctrl-C interrupts the process, and a second SIGTERM ends it at once; afterwards Ctrl-C is a
    request to stop, and a second one ends it at once. In a program or a notebook (not `ends_process`) it is interrupted
    instead. Rank 0 checks for `stop_file`; the minutes of `time_budget` count from the start of the ranks' oldest
    process.
    """

    def __init__(self, ranks: Ranks, stop_file: Path, time_budget: float | None, *, ends_process: bool = True) -> None:
        self._stop_file, self._minutes = stop_file, time_budget
        self._began = time.monotonic() - running_seconds()
        self._request, self._ends_process = "", ends_process
        self._handlers: dict[signal.Signals, Any] = {}
        self.regroup(ranks)
        self._steps_begin = False
        self.reason = ""
        """reason why all ranks stop, once is_time() has returned True"""
        self.is_out_of_time = False
        """whether the time budget is the only reason"""

    def regroup(self, ranks: Ranks) -> None:
        """Continue with other ranks; requests received before stay."""
        self._ranks = ranks
        self._checked, self._steps, self._next = time.monotonic(), 0, 1

    def __enter__(self) -> "Stopping":
        for number in _SIGNALS:
            self._handlers[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        # The end of a process takes a while, in which a request that comes late must not kill it.
        late: dict[signal.Signals, Any] = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
        for number, handler in self._handlers.items():
            signal.signal(number, late.get(number, _ignore) if self._ends_process else handler)

    def take_interrupts(self) -> None:
        """Treat Ctrl-C as a request to stop from now on, because there is progress to save."""
        self._steps_begin = True
        if signal.SIGINT not in self._handlers:
            self._handlers[signal.SIGINT] = signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        impatient = number == signal.SIGINT or (number == signal.SIGTERM and not self._steps_begin)
        if self._request and impatient:
            if not self._ends_process:
                raise KeyboardInterrupt
            os._exit(128 + number)
        self._request = self._request or signal.Signals(number).name

    def ask(self, reason: str) -> None:
        """Request a stop; any thread may call it."""
        self._request = self._request or reason

    @property
    def minutes(self) -> float:
        """Minutes since the ranks' oldest process was started, as far as is_time() knows."""
        return (time.monotonic() - self._began) / 60.0

    def is_time(self) -> bool:
        """Check whether to stop now; the same on every rank, which all call it before the first step and after each."""
        self._steps += 1
        if self._steps < self._next:
            return False
        now = time.monotonic()
        seconds = (now - self._checked) / self._steps
        request = self._request or self._other_request()
        everyones = self._ranks.stack(np.array([bool(request), seconds, now - self._began], np.float32))
        # A process that has joined an elastic run later counts from the start of the oldest one.
        self._began = min(self._began, now - float(everyones[:, 2].max()))
        # The slowest step decides when to check again, so that all ranks check after the same step.
        self._next = max(1, int(CHECK_SECONDS / max(float(everyones[:, 1].max()), 1e-6)))
        self._checked, self._steps = now, 0
        if not everyones[:, 0].any():
            return False
        requests = self._ranks.gather(request, "request to stop")
        self.reason = ", ".join(f"rank {rank}: {each}" for rank, each in enumerate(requests) if each)
        self.is_out_of_time = set(requests) <= {"", _USED_UP}
        return True

    def refuse_used_up_budget(self) -> None:
        """Fail if the time budget is the only reason to stop before the first step: a requeued run would stop, too."""
        if self.is_out_of_time:
            raise RunError(
                f"--time-budget is used up before the first step: listing the data, building and tracing took "
                f"{self.minutes:.1f} minutes; raise it, since the same command would not get further"
            )

    def _other_request(self) -> str:
        if self._minutes is not None and self.minutes >= self._minutes:
            return _USED_UP
        found = self._ranks.is_root and self._stop_file.exists()
        return f"{self._stop_file} exists; remove it before you resume" if found else ""


def _ignore(number: int, frame: FrameType | None) -> None:
    """Nothing is left to save. Unlike SIG_IGN, processes that this one starts do not inherit it."""
