"""Being asked to stop: by a signal, by a file, by the clock; all ranks stop after the same step."""

import os
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from hvdgan.cli.hosts import running_seconds
from hvdgan.distributed.ranks import Ranks

STOPPED = 75
"""exit code of a run that was asked to stop, has saved, and can be resumed (EX_TEMPFAIL of sysexits.h)"""

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_USED_UP = "--time-budget is used up"
_SECONDS = 1.0  # between two looks; each costs a small collective


class Stopping:
    """Notices a wish to stop on any rank, and lets all ranks know after the same step.

    Ctrl-C interrupts until the steps begin; from then on it is such a wish, and a second one leaves at once. Until the
    steps begin a second SIGTERM leaves at once too.

    Args:
        ranks: that decide together.
        stop_file: whose being there is a wish to stop; rank 0 looks.
        time_budget: minutes after which to stop, since the oldest process of the ranks was started; None: no bound.
    """

    def __init__(self, ranks: Ranks, stop_file: Path, time_budget: float | None) -> None:
        self._ranks = ranks
        self._stop_file = stop_file
        self._minutes = time_budget
        self._began = time.monotonic() - running_seconds()
        self._wish = ""
        self._before: dict[signal.Signals, Any] = {}
        self._looked = time.monotonic()
        self._steps = 0
        self._next = 1
        self._steps_begin = False
        self.reason = ""
        """why all stop, once is_time() has said so"""
        self.is_out_of_time = False
        """whether the time budget is the only reason"""

    def regroup(self, ranks: Ranks) -> None:
        """Go on with other ranks; what this one was asked stays."""
        self._ranks = ranks
        self._looked, self._steps, self._next = time.monotonic(), 0, 1

    def __enter__(self) -> "Stopping":
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def take_interrupts(self) -> None:
        """From now on there is something to save: Ctrl-C asks to stop, as the other signals do."""
        self._steps_begin = True
        if signal.SIGINT not in self._before:
            self._before[signal.SIGINT] = signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        impatient = number == signal.SIGINT or (number == signal.SIGTERM and not self._steps_begin)
        if self._wish and impatient:
            os._exit(128 + number)
        self._wish = self._wish or signal.Signals(number).name

    @property
    def minutes(self) -> float:
        """Since the oldest process of the ranks was started, as far as is_time() knows."""
        return (time.monotonic() - self._began) / 60.0

    def is_time(self) -> bool:
        """Whether to stop now, the same on every rank; each calls it before the first step and after every one."""
        self._steps += 1
        if self._steps < self._next:
            return False
        now = time.monotonic()
        seconds = (now - self._looked) / self._steps
        wish = self._wish or self._other_wish()
        everyones = self._ranks.stack(np.array([bool(wish), seconds, now - self._began], np.float32))
        # A process that has joined an elastic run later takes over the age of the others.
        self._began = min(self._began, now - float(everyones[:, 2].max()))
        # The same on every rank: the slowest step decides when they look again.
        self._next = max(1, int(_SECONDS / max(float(everyones[:, 1].max()), 1e-6)))
        self._looked, self._steps = now, 0
        if not everyones[:, 0].any():
            return False
        wishes = self._ranks.gather(wish, "wish to stop")
        self.reason = ", ".join(f"rank {rank}: {each}" for rank, each in enumerate(wishes) if each)
        self.is_out_of_time = set(wishes) <= {"", _USED_UP}
        return True

    def _other_wish(self) -> str:
        if self._minutes is not None and self.minutes >= self._minutes:
            return _USED_UP
        found = self._ranks.is_root and self._stop_file.exists()
        return f"{self._stop_file} is there; remove it first" if found else ""
