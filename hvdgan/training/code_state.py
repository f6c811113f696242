"""Names the state of the user's code, as far as git knows it."""

import inspect
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the measurements of GPUs name a commit without TensorFlow
    from hvdgan.recipe import Recipe

_SECONDS = 5.0


def folder_of_code(recipe: "Recipe") -> Path:
    """Return the folder of a recipe of the user's own; for a recipe of hvdgan, the working folder."""
    is_own = not type(recipe).__module__.startswith("hvdgan.")
    try:
        return Path(inspect.getfile(type(recipe))).absolute().parent if is_own else Path.cwd()
    except (TypeError, OSError):  # a class of a notebook
        return Path.cwd()


def git_state(folder: Path) -> str:
    """Describe the commit of a folder: `git commit 3f2a1c0d9e1b`, and whether files differ from it."""
    # The repository's own setting could name a program to run, and git would write its index.
    command = ["git", "-c", "core.fsmonitor=false", "--no-optional-locks", "-C", str(folder)]
    command += ["describe", "--always", "--abbrev=12", "--exclude=*", "--dirty"]  # without the names of tags
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):  # it is missing, or takes too long
        return ""
    commit, _, dirty = done.stdout.strip().partition("-")
    changes = ", with changes that are not committed" if dirty else ""
    return f"git commit {commit}{changes}" if done.returncode == 0 else ""
