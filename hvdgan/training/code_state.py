"""Names the state of the user's code, as far as git knows it."""

import contextlib
import hashlib
import inspect
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the measurements of GPUs name a commit without TensorFlow
    from hvdgan.recipe import Recipe

_SECONDS = 5.0


def folder_of_code(recipe: "Recipe") -> Path:
    """Return the folder of a recipe of the user's own; for a recipe of hvdgan, the working folder."""
    if type(recipe).__module__.startswith("hvdgan."):
        return Path.cwd()
    try:
        return Path(inspect.getfile(type(recipe))).absolute().parent
    except (TypeError, OSError):  # a class of the __main__ of an interactive session
        return Path.cwd()


def digest_of_code(recipe: "Recipe") -> str:
    """The SHA-256 of the files that define a recipe's class and the classes it inherits from, in hex.

    Other files that these import do not count, nor does a class of an interactive session.
    """
    digest = hashlib.sha256()
    for kind in type(recipe).__mro__:
        with contextlib.suppress(TypeError, OSError):  # the classes of Python itself have no file
            digest.update(Path(inspect.getfile(kind)).read_bytes())
    return digest.hexdigest()


def git_state(folder: Path) -> str:
    """Describe the commit of a folder: `git commit 3f2a1c0d9e1b`, and whether files differ from it."""
    commit = _git(folder, "rev-parse", "--short=12", "HEAD")
    if not commit:
        return ""
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules")
    if changes is None:
        return f"git commit {commit} (git did not say in time whether files differ from it)"
    return f"git commit {commit}{', with changes that are not committed' if changes else ''}"


def _git(folder: Path, *words: str) -> str | None:
    """Return the output of git; None if it is missing, refuses or takes too long."""
    # The repository's own setting could name a program to run, and git would write its index.
    command = ["git", "-c", "core.fsmonitor=false", "--no-optional-locks", "-C", str(folder), *words]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
