"""Runs a command with its output in a log and a time limit, and finds the lines that say why it failed."""

import dataclasses
import os
import re
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

_TELLING = re.compile(r"hvdgan: |[Ee]rror\b|ERROR|FAILED|NCCL WARN|Abort|Killed|launch/\S+: ")
_MOST_LINES = 8
_LONGEST = 400
_SECONDS_TO_END = 15.0
_SECONDS_AFTER_IT = 2.0


@dataclasses.dataclass(frozen=True)
class Done:
    """A command that has ended.

    Args:
        command: words of the command.
        code: exit code; None: it was ended at its time limit.
        seconds: duration.
        log: file with its output.
    """

    command: tuple[str, ...]
    code: int | None
    seconds: float
    log: Path

    @property
    def text(self) -> str:
        """The output."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    @property
    def words(self) -> str:
        """The command as it could be typed."""
        return shlex.join(self.command)

    @property
    def errors(self) -> tuple[str, ...]:
        """The lines that say why it failed; none if it succeeded."""
        if self.code == 0:
            return ()
        how = "ended at its time limit" if self.code is None else f"exit code {self.code}"
        return (*telling_lines(self.text), f"{how} after {self.seconds:.0f} s; the output is in {self.log.name}")


def run(command: Sequence[str], log: Path, timeout: float, cwd: Path, more: Mapping[str, str]) -> Done:
    """Run a command to its end, or to its time limit.

    Args:
        command: words of the command.
        log: new file for its output.
        timeout: time limit in seconds.
        cwd: working folder.
        more: environment variables in addition to those of this process.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    with log.open("xb") as output:
        output.write(f"+ {shlex.join(command)}\n".encode())
        output.flush()
        process = psutil.Popen(
            list(command),
            cwd=cwd,
            env={**os.environ, **more},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code: int | None = None
        try:
            code = process.wait(timeout)
        except psutil.TimeoutExpired:
            pass
        finally:
            _end(process)
    return Done(tuple(command), code, time.monotonic() - begin, log)


def _end(process: psutil.Popen) -> None:
    """End a command and all its children; a launch script passes the first SIGTERM on to the ranks as a request."""
    if process.poll() is not None:
        return
    everyone = [process, *process.children(recursive=True)]
    for _ in range(2):
        if process.poll() is None:
            process.terminate()
            psutil.wait_procs([process], timeout=_SECONDS_TO_END)
    _, left = psutil.wait_procs(everyone, timeout=_SECONDS_AFTER_IT)
    for each in left:
        each.kill()
    psutil.wait_procs(left, timeout=_SECONDS_TO_END)


def telling_lines(text: str) -> list[str]:
    """Return the lines of an output that most likely say what went wrong, or else its last ones."""
    lines = [line.strip()[:_LONGEST] for line in text.splitlines() if line.strip() and not line.startswith("+ ")]
    return ([line for line in lines if _TELLING.search(line)] or lines)[-_MOST_LINES:]
