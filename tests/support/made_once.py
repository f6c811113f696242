"""What several files of tests look at, and what takes long to make, is made once for all processes of pytest."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder that `make` has filled, in this process of pytest or in another one; the others wait meanwhile.

    Args:
        factory: pytest's factory of folders.
        name: name of the folder.
        make: fills a folder that is empty; where it fails, the next process tries again.
    """
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"made-{name}"
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not Path(f"{folder}.done").exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            Path(f"{folder}.done").touch()
    return folder
