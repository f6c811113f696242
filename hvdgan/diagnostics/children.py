"""Processes that a command starts: what they print goes to a file, and none outlives the command."""

import contextlib
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path


@contextlib.contextmanager
def started(command: Sequence[str], said: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that prints to the file `said`; it is ended with the block."""
    with said.open("wb") as out:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        yield process
    finally:
        # The first asks the ranks to save, the second ends them, also on other hosts.
        for signal_number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                process.send_signal(signal_number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(15)


def complaint(said: Path, code: int) -> str:
    """The error line in what a process that has failed has printed, or else the end of it."""
    lines = said.read_text(encoding="utf-8", errors="replace").splitlines()
    found = next((line.partition("hvdgan: ")[2] for line in lines if "hvdgan: " in line), "")
    if not found or found.startswith("Traceback"):
        return "\n".join([f"exit code {code}; the end of its output:", *lines[-40:]])
    return found
