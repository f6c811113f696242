"""Runs a command with its output in a log and a time limit, and finds the lines that say why it failed."""

import os
import re
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

_TELLING = re.compile(r"hvdgan: |[Ee]rror\b|ERROR|FAILED|NCCL WARN|Abort|Killed")
_MOST_LINES = 8
_LONGEST = 400
_SECONDS_TO_END = 15.0


class Done(NamedTuple):
    """A command that has ended.

    Args:
        words: the command as it could be typed.
        code: exit code; None: it was ended at its time limit.
        seconds: duration.
        log: file with its output.
    """

    words: str
    code: int | None
    seconds: float
    log: Path

    @property
    def text(self) -> str:
        """The output."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    @property
    def errors(self) -> list[str]:
        """The lines that say why it failed; none if it succeeded."""
        if self.code == 0:
            return []
        how = "ended at its time limit" if self.code is None else f"exit code {self.code}"
        return [*telling_lines(self.text), f"{how} after {self.seconds:.0f} s; the output is in {self.log}"]


def run(command: Sequence[str | Path], log: Path, timeout: float, cwd: Path, env: Mapping[str, str]) -> Done:
    """Run a command to its end, or to its time limit, at which its children end too; env adds to the environment."""
    log.parent.mkdir(parents=True, exist_ok=True)
    begin, code = time.monotonic(), None
    with log.open("xb") as output:
        how = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT, "start_new_session": True}
        process = psutil.Popen([str(word) for word in command], cwd=cwd, env={**os.environ, **env}, **how)
        try:
            code = process.wait(timeout)
        except psutil.TimeoutExpired:
            pass
        finally:
            _end(process)
    return Done(shlex.join(map(str, command)), code, time.monotonic() - begin, log)


def _end(process: psutil.Popen) -> None:
    """End a command and all its children: launchers end their ranks at the first SIGTERM."""
    if process.poll() is not None:
        return
    everyone = [process, *process.children(recursive=True)]
    process.terminate()
    psutil.wait_procs([process], timeout=_SECONDS_TO_END)
    _, left = psutil.wait_procs(everyone, timeout=1)
    for each in left:
        each.kill()
    psutil.wait_procs(left, timeout=_SECONDS_TO_END)


def telling_lines(text: str) -> list[str]:
    """Return the lines of an output that most likely say what went wrong, or else its last ones."""
    lines = [line.strip()[:_LONGEST] for line in text.splitlines() if line.strip()]
    return ([line for line in lines if _TELLING.search(line)] or lines)[-_MOST_LINES:]
