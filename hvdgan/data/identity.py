"""Facts that change when files change."""

import hashlib
import os
from collections.abc import Iterable
from typing import Any


def identity(path: str) -> list[Any]:
    """Facts that change when a file changes: its path, its size, and the nanosecond of its last change.

    Raises:
        OSError: the file does not exist.
    """
    status = os.stat(path)
    return [os.path.abspath(path), status.st_size, status.st_mtime_ns]


def identity_of_many(files: Iterable[tuple[int, int]]) -> list[Any]:
    """One digest for many files, which changes when a file changes; it does not depend on where the files lie.

    Args:
        files: size in bytes and nanosecond of the last change of each file, in a fixed order.
    """
    return [hashlib.sha256("\n".join(f"{size} {time}" for size, time in files).encode()).hexdigest()]
