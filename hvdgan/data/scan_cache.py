"""What looking at the data has found, kept in the run folder: the next start need not look again."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from hvdgan.cli.replacing import whole_file

_FORMAT = "hvdgan kept 1"


class ScanCache:
    """Reads what an earlier start has left, and writes when it is told to, since a dry run writes nothing.

    Whatever is not whole or is of other data counts as missing.

    Args:
        folder: of the files; None: nothing is kept.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._new: dict[str, bytes] = {}

    def get(self, name: str, key: str) -> bytes | None:
        """What was kept; None where there is nothing of this key.

        Args:
            name: of the file.
            key: tells the data that it was found in from all others.
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

    def put(self, name: str, key: str, content: bytes) -> None:
        """Remember something until it is written."""
        if self._folder is None:
            return
        facts = {"format": _FORMAT, "key": key, "sha256": hashlib.sha256(content).hexdigest()}
        self._new[name] = json.dumps(facts).encode() + b"\n" + content

    def write(self) -> None:
        """Write what is new; rank 0 alone calls it, when the run folder is its own.

        Raises:
            OSError: it cannot be written.
        """
        if self._folder is None:
            return
        for name, content in self._new.items():
            self._folder.mkdir(parents=True, exist_ok=True)
            with whole_file(self._folder / name) as partial:
                partial.write_bytes(content)
        self._new.clear()


NO_SCANS = ScanCache(None)
"""nothing is kept"""


def identity(path: str) -> list[Any]:
    """What tells a file from what it was before: its path, size, and the nanosecond of its last change.

    Raises:
        OSError: there is no such file.
    """
    status = os.stat(path)
    return [os.path.abspath(path), status.st_size, status.st_mtime_ns]
