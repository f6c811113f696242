"""Replaces a file by a new one: after a crash at any point, the old or the new one is there, and whole."""

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from hvdgan.launching.hosts import is_running

_OLD_SECONDS = 3600.0


@contextlib.contextmanager
def whole_file(path: Path, partial: Path | None = None, *, lasting: bool = False) -> Iterator[Path]:
    """Write a file under another name, which is yielded, and give it its own name when it is whole.

    If the block raises, the other file is removed, and `path` is what it was. `lasting` brings the file to the disk
    before it is renamed, so that a power failure leaves no empty file behind; the folder is the caller's to bring
    there.
    """
    partial = partial or path.with_name(f".{path.stem}.partial{path.suffix}")
    partial.unlink(missing_ok=True)  # through a link with this name, another file would be written
    try:
        yield partial
        if lasting:
            flush(partial)
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)


def own_partial(path: Path) -> Path:
    """Return a partial name for a file that others may write at the same time, and remove what dead ones left of it."""
    host = os.uname().nodename
    owned = re.compile(
        rf"\.{re.escape(path.stem)}(?:\.(?P<host>.+)-(?P<pid>\d{{1,9}}))?\.partial{re.escape(path.suffix)}"
    )
    for other in path.parent.glob(".*.partial*"):
        if (found := owned.fullmatch(other.name)) is None:
            continue
        with contextlib.suppress(OSError):  # its process may rename or remove it now
            old = time.time() - other.stat().st_mtime > _OLD_SECONDS
            if found["host"] is None or (not is_running(int(found["pid"])) if found["host"] == host else old):
                other.unlink()
    return path.with_name(f".{path.stem}.{host}-{os.getpid()}.partial{path.suffix}")


def flush(path: Path) -> None:
    """Bring a file or folder to the disk; otherwise a power failure may keep a rename and lose the data."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
