"""Runs other programs, such as mpirun or nvidia-smi, and returns their output."""

import subprocess
from collections.abc import Sequence

SECONDS = 30.0
"""time after which a program counts as hanging"""


def output_of(command: Sequence[str], seconds: float = SECONDS) -> str:
    """Return the standard output of a program; an empty text if it is missing, fails, or has not ended in this time."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=seconds
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
