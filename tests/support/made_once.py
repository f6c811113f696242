"""What several files of tests look at, and what takes long to make, is made once for all processes of pytest."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder that `make` has filled, in this process of pytest or in another one; the others wait meanwhile.

    Args:
        factory: pytest's factory of folders.
        name: name of the folder.
        make: fills a folder that is empty; where it fails, the next process that asks tries again.
    """
    base = factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, partial = base / f"made-{name}", base / f"partial-{name}"
    with open(base / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            make(partial)
            partial.rename(folder)
    return folder
