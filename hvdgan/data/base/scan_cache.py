"""Keeps the results of scanning the data in the run folder, so that the next start need not scan them again."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hvdgan.cli.files.replacing import whole_file

_FORMAT = "hvdgan kept 1"
_WORTH = 1000
"""number of images from which a scan takes long enough to be kept"""


class ScanCache:
    """Files with the results of earlier scans; new results are written by `write`, since a dry run writes nothing.

    A file that is damaged or belongs to other data counts as missing.

    Args:
        folder: folder of the files; None: nothing is cached.
        is_root: True on rank 0, which alone writes.
    """

    def __init__(self, folder: Path | None, *, is_root: bool = True) -> None:
        self._folder = folder
        self._is_root = is_root
        self._new: dict[str, bytes] = {}

    def get(self, name: str, key: str) -> bytes | None:
        """The content of a file; None if it is missing or has another key.

        Args:
            name: name of the file.
            key: text that identifies the scanned data.
        """
        if self._folder is None:
            return None
        try:
            head, _, content = (self._folder / name).read_bytes().partition(b"\n")
            facts = json.loads(head)
        except (OSError, ValueError):
            return None
        expected = {"format": _FORMAT, "key": key, "sha256": hashlib.sha256(content).hexdigest()}
        return content if facts == expected else None

    def put(self, name: str, key: str, content: Callable[[], bytes], images: int) -> None:
        """Hold the content of a file until `write`, on rank 0, if enough images were scanned to make it worth keeping.

        Args:
            name: name of the file.
            key: text that identifies the scanned data.
            content: function that makes the content.
            images: number of images that were scanned.
        """
        if self._folder is None or not self._is_root or images < _WORTH:
            return
        made = content()
        facts = {"format": _FORMAT, "key": key, "sha256": hashlib.sha256(made).hexdigest()}
        self._new[name] = json.dumps(facts).encode() + b"\n" + made

    def write(self) -> None:
        """Write the new files on rank 0, once it has taken the run folder.

        Raises:
            OSError: a file cannot be written.
        """
        if self._folder is None or not self._is_root:
            return
        for name, content in self._new.items():
            self._folder.mkdir(parents=True, exist_ok=True)
            with whole_file(self._folder / name) as partial:
                partial.write_bytes(content)
        self._new.clear()


NO_SCANS = ScanCache(None)
"""a cache that keeps nothing"""


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
