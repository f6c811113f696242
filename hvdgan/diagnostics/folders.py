"""Checks that a run folder can be written and locked, and that all ranks see the same one."""

import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hvdgan.diagnostics.table import Row
from hvdgan.errors import RunError, shared_errors
from hvdgan.files.lock import take

if TYPE_CHECKING:
    from hvdgan.distributed.ranks import Ranks

SHARED_FOLDER = "shared folder"
_NO_FLOCK = "mount it with flock (Lustre: -o flock), and never start two runs in one folder"
_GIB = 2**30
_VISIBLE_SECONDS = 10.0


def check_run_folder(folder: Path) -> Row:
    """Check that this process can write into a run folder and lock it; the folder is left as it was."""
    try:
        with _temporary_file(folder) as path:
            with path.open("w") as first, path.open("r+") as second:
                remark = take(first.fileno())
                # If there is a remark, the lock is of fcntl, which does not exclude other files of the same process.
                locks = bool(remark) or not _can_lock(second.fileno())
            free = shutil.disk_usage(folder).free
    except OSError as error:
        return Row("run folder", f"{folder}: {error.strerror}", "fail", "--run-dir names a folder that can be written")
    found = f"{folder}, {free / _GIB:,.0f} GiB free"
    if not locks:
        return Row("run folder", found, "warn", "locks have no effect there: never start two runs in one folder")
    if remark:
        return Row("run folder", f"{found}, {remark}", "warn", _NO_FLOCK)
    if free < _GIB:
        return Row("run folder", found, "warn", "checkpoints need space")
    return Row("run folder", found)


def shared_folder(ranks: "Ranks", run_dir: Path) -> Row:
    """Check that every rank sees a file that rank 0 writes, and respects rank 0's lock; every rank calls this."""
    with ExitStack() as kept:

        def write() -> list[str]:
            try:
                return kept.enter_context(_locked_file(run_dir))
            except OSError as error:
                raise RunError(f"{run_dir}: {error.strerror}") from error

        try:
            folder, name = shared_errors.from_root(write, ranks, "doctor: run folder")
            # Relative to this rank's own working folder, as its run would use it.
            mine = run_dir.absolute() / name
            seen = ranks.is_root or _appears(mine)
            respected = ranks.is_root or not seen or _is_locked(mine)
            everyones = ranks.gather([seen, respected, os.uname().nodename], "doctor: run folder seen")
        except RunError as error:
            return Row(SHARED_FOLDER, str(error)[:160], "fail", "--run-dir names a folder that rank 0 can write")
    if blind := [f"rank {rank} on {host}" for rank, (seen, _, host) in enumerate(everyones) if not seen]:
        hint = "name a folder on a file system that all hosts share"
        return Row(SHARED_FOLDER, f"{folder} is not seen by {', '.join(blind[:4])}", "warn", hint)
    if deaf := [f"rank {rank} on {host}" for rank, (_, kept_out, host) in enumerate(everyones) if not kept_out]:
        hint = "two runs could write into one folder: mount it with locks"
        return Row(SHARED_FOLDER, f"rank 0's lock has no effect on {', '.join(deaf[:4])}", "warn", hint)
    return Row(SHARED_FOLDER, f"{folder} seen and its lock respected by every rank")


@contextmanager
def _temporary_file(folder: Path) -> Iterator[Path]:
    """Make a folder if there is none; afterwards remove the file, and the folders that were made."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    path = folder / f".doctor-{secrets.token_hex(8)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield path
    finally:
        with suppress(OSError):  # the file was never made, or another process uses the folder by now
            path.unlink(missing_ok=True)
            for each in made:
                each.rmdir()


@contextmanager
def _locked_file(folder: Path) -> Iterator[list[str]]:
    """Write and lock a file; yields its absolute folder and its name, which is also its content."""
    with _temporary_file(folder) as path, path.open("w+", encoding="utf-8") as file:
        file.write(path.name)
        file.flush()
        os.fsync(file.fileno())
        take(file.fileno())
        yield [str(folder.absolute()), path.name]


def _appears(path: Path) -> bool:
    """Wait for a file: network file systems may show a new file late."""
    end = time.monotonic() + _VISIBLE_SECONDS
    while True:
        try:
            if path.read_text(encoding="utf-8") == path.name:
                return True
        except OSError:
            pass
        if time.monotonic() >= end:
            return False
        time.sleep(0.1)


def _is_locked(path: Path) -> bool:
    try:
        with path.open("r+", encoding="utf-8") as file:
            return not _can_lock(file.fileno())
    except OSError:
        return False


def _can_lock(file: int) -> bool:
    """Try to lock an open file; False if it is locked already."""
    try:
        take(file)
    except BlockingIOError:
        return False
    return True
