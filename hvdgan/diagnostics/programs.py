"""Runs other programs, such as mpirun or nvidia-smi, and returns their output."""

import subprocess
from collections.abc import Sequence

SECONDS = 30
"""time after which a program counts as hanging"""


def output_of(command: Sequence[str]) -> str:
    """Return the standard output of a program; an empty text if it is missing, fails or hangs."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
