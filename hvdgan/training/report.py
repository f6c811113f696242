"""Writes report.html at the end of a run, by a process that knows neither TensorFlow nor the other ranks."""

import contextlib
import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from hvdgan.launching.launched import unlaunched

When = Literal["never", "end"]
PATIENCE = 120.0
"""seconds that a finished run waits for its page; the other ranks have ended by then"""


@dataclasses.dataclass
class Page:
    """The page of a run: its folder, on rank 0 once it is known, and whether the run has reached its last step."""

    run_dir: Path | None = None
    is_finished: bool = False


@contextlib.contextmanager
def page_at_end(when: When) -> Iterator[Page]:
    """Let rank 0 write the page of a run that has finished within the block, or name the command that makes one.

    The block ends after the run folder is unlocked and the ranks have parted.
    """
    page = Page()
    try:
        yield page
    finally:
        if page.run_dir is not None and when != "never":
            command = f"python -m hvdgan.report {page.run_dir}"
            if not page.is_finished:
                text = f"{command} makes a page about this run"
            elif write(page.run_dir):
                text = f"report in {page.run_dir / 'report.html'}"
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
