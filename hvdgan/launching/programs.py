"""Runs other programs, such as mpirun or nvidia-smi, and returns their output."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

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


def by_nvidia_smi(quantity: str, *more: str) -> list[str]:
    """A quantity of each GPU that nvidia-smi finds on this host, from which CUDA_VISIBLE_DEVICES hides none."""
    found = output_of(["nvidia-smi", f"--query-gpu={quantity}", f"--format={','.join(['csv', 'noheader', *more])}"])
    return [line.strip() for line in found.splitlines() if line.strip()]


def git_state(folder: Path) -> str:
    """Describe the commit of a folder: `git commit 3f2a1c0d9e1b`, and whether files differ from it; "" without one."""
    # The repository's own setting could name a program to run, and git would write its index.
    command = ["git", "-c", "core.fsmonitor=false", "--no-optional-locks", "-C", str(folder)]
    command += ["describe", "--always", "--abbrev=12", "--exclude=*", "--dirty"]  # without the names of tags
    commit, _, dirty = output_of(command, seconds=5.0).strip().partition("-")
    changes = ", with changes that are not committed" if dirty else ""
    return f"git commit {commit}{changes}" if commit else ""
