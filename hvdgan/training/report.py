"""Writes report.html at the end of a run, by a process that knows neither TensorFlow nor the other ranks."""

import contextlib
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Literal

from hvdgan.launching.launched import unlaunched

When = Literal["never", "end"]
PATIENCE = 120.0
"""seconds that a finished run waits for its page; the other ranks have ended by then"""


class Page:
    """The page of a run, which rank 0 writes once the run has finished, or names the command for if it has not.

    Leave it as a context manager after the run folder is unlocked and the ranks have parted.
    """

    def __init__(self, when: When) -> None:
        self._when = when
        self.run_dir: Path | None = None
        """run folder, on rank 0 once it is known"""
        self.is_finished = False
        """True if the run has reached its last step"""

    def __enter__(self) -> "Page":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.run_dir is None or self._when == "never":
            return
        command = f"python -m hvdgan.report {self.run_dir}"
        if not self.is_finished:
            text = f"{command} makes a page about this run"
        elif write(self.run_dir):
            text = f"report in {self.run_dir / 'report.html'}"
        else:
            text = f"warning: no report was written; {command} is another try"
        print(f"hvdgan: {text}", file=sys.stderr, flush=True)


def write(run_dir: Path) -> bool:
    """Write the page, whose errors appear on the terminal; returns whether it is there."""
    words, null = [sys.executable, "-m", "hvdgan.report", str(run_dir.absolute())], subprocess.DEVNULL
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(words, env=unlaunched(), stdin=null, stdout=null, timeout=PATIENCE, check=False)
        return done.returncode == 0
    return False
