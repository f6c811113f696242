"""The page of a run that is being trained: a process of its own writes it, for which no step waits."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Literal

from hvdgan.launching.launched import unlaunched

When = Literal["never", "end", "checkpoints"]
FILE = "report.html"
PATIENCE, SHORT_PATIENCE = 120.0, 20.0
"""seconds that a run waits for its last page if it has finished, and if it ends early; others have ended by then"""
_SHARE = 0.01
"""part of a run's time that writing pages may take of a core, the first page excepted"""
_LOW = ("nice", "-n", "10")


class Page:
    """The page of a run, which rank 0 writes while the block runs, once the folder `run_dir` is known, and after it."""

    def __init__(self, when: When) -> None:
        self.run_dir: Path | None = None
        self.is_finished = False
        """whether the run has reached its last step"""
        self._when, self._writer, self._next, self._failure = when, threading.Thread(), 0.0, ""

    def renew(self) -> str:
        """Begin to write the page anew, if it is time; returns why the try before has failed, once, or nothing."""
        failure, self._failure = self._failure, ""
        is_free = not self._writer.is_alive() and time.monotonic() >= self._next
        if self._when == "checkpoints" and self.run_dir is not None and is_free:
            self._writer = threading.Thread(target=self._renew, args=(self.run_dir,), name="page", daemon=True)
            self._writer.start()
        return failure

    def _renew(self, run_dir: Path) -> None:
        before = os.times()
        self._failure, after = write_page(run_dir, None, *_LOW), os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        self._next = time.monotonic() + used / _SHARE

    def __enter__(self) -> "Page":
        return self

    def __exit__(self, *exception: object) -> None:
        """Write the page of a run that has ended, and name it on the terminal."""
        if self.run_dir is None or self._when == "never":
            return
        page, command = self.run_dir / FILE, f"hvdgan report {self.run_dir}"
        patience = PATIENCE if self.is_finished else SHORT_PATIENCE
        if self._writer.ident:
            self._writer.join(patience)  # else its page, in which the run still runs, might replace the last one
        if failure := write_page(self.run_dir, patience):
            text = f"warning: {page} is not up to date: {failure}; {command} is another try"
        else:
            text = f"report in {page}"
        print(f"hvdgan: {text}", file=sys.stderr, flush=True)


def write_page(run_dir: Path, patience: float | None, *before: str) -> str:
    """Write the page by a command that may have words before it; returns what has gone wrong, or nothing."""
    words, null = [*before, sys.executable, "-m", "hvdgan.report", str(run_dir.absolute())], subprocess.DEVNULL
    how: dict[str, Any] = {"stdin": null, "stdout": null, "stderr": subprocess.PIPE, "env": unlaunched()}
    try:
        done = subprocess.run(words, timeout=patience, check=False, **how)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = done.stderr.decode(errors="replace").splitlines() or [f"exit code {done.returncode}"]
    return said[-1].removeprefix("hvdgan: ") if done.returncode else ""
