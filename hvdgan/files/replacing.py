"""Replaces a file or folder by a new one: after a crash at any point, the old or the new one is there, and whole."""

import contextlib
import ctypes
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from hvdgan.launching.hosts import is_running

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
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
    """Return a partial name for a file that other processes may write at the same time, and remove what dead ones left.

    Those are files of processes of this host that have ended, files of other hosts that are an hour old, and files that
    name no process.
    """
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


@contextlib.contextmanager
def whole_folder(path: Path, aside: Path) -> Iterator[Path]:
    """Write a folder under another name, which is yielded, and give it its own name when it is whole.

    A folder that has the name is called `aside` until it is deleted. If the block raises, `path` is what it was.
    """
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        yield partial
        replace_folder(partial, path, aside)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def replace_folder(new: Path, target: Path, aside: Path) -> None:
    """Give a folder the name of another, delete that one, and bring the names to the disk.

    If the file system cannot exchange two names in one step, the old folder is renamed first. A crash before the second
    rename leaves it under the name `aside`, where readers look too, and finish_replacing() renames it back.
    """
    if not target.exists():
        new.rename(target)
        flush(target.parent)
        return
    if exchange(new, target):
        flush(target.parent)
        shutil.rmtree(new, ignore_errors=True)
        return
    target.rename(aside)
    try:
        new.rename(target)
    finally:
        finish_replacing(target, aside)  # deletes the old folder, or renames it back if the second rename failed


def finish_replacing(target: Path, aside: Path) -> None:
    """Finish a replace_folder() that was cut off: delete the old folder, or rename it back if there is no new one.

    Raises:
        OSError: the folder cannot be renamed.
    """
    if not aside.exists():
        return
    if target.exists():
        flush(target.parent)  # the new folder must have its name on the disk before the old one is deleted
        shutil.rmtree(aside, ignore_errors=True)
    else:
        aside.rename(target)
        flush(target.parent)


def exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one step, and return whether it worked; Linux can on most local file systems."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    names = os.fsencode(one), os.fsencode(other)
    return renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], ctypes.c_uint(_RENAME_EXCHANGE)) == 0


def flush(path: Path) -> None:
    """Bring a file or folder to the disk; otherwise a power failure may keep a rename and lose the data."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
