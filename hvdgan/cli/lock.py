"""A folder belongs to one process that writes into it at a time; the lock of a process that has died is open again."""

import contextlib
import errno
import fcntl
import json
import os
import re
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TextIO

from hvdgan.cli.errors import UserError
from hvdgan.cli.hosts import process_id

_LEASE_SECONDS = 120.0  # a network file system may keep the lock of a host that is gone for so long
_POLL_SECONDS = 1.0
# Lustre mounted without -o flock, NFS without its lock service, file systems in user space.
_NO_SUCH_LOCK = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP}


class Held(UserError):
    """Another process holds the lock.

    lost: whether that process may be gone: it is of another host, its number is no longer there, or it is unknown.
    """

    def __init__(self, text: str, *, lost: bool) -> None:
        super().__init__(text)
        self.lost = lost


class Lock:
    """A lock that is held until it is closed, or the process ends in whatever way.

    remarks: lines for the log.
    """

    def __init__(self, file: TextIO, remarks: list[str]) -> None:
        self._file = file
        self.remarks = remarks

    def close(self) -> None:
        """Let others have it."""
        self._file.close()

    def __enter__(self) -> "Lock":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def lock(run_dir: Path, *, named: str = "", by: str = "training") -> Lock:
    """Lock a folder.

    Args:
        run_dir: it is made where it is not there.
        named: what to call it in errors; default: --run-dir and its path.
        by: what kind of work the other process does.

    Raises:
        Held: another process writes into it.
        OSError: the folder cannot be written.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    file = (run_dir / ".lock").open("a+", encoding="utf-8", errors="replace")
    try:
        remark = take(file.fileno())
        file.truncate(0)
        file.write(_own_words())
        file.flush()
    except BlockingIOError:
        file.seek(0)
        holder, _, process = file.read().strip().partition("\n")
        file.close()
        raise Held(
            f"{named or f'--run-dir {run_dir}'}: another {by} writes into it "
            f"({holder or 'which has not said who it is'}); wait for its end, or name another folder",
            lost=_may_be_lost(holder, process),
        ) from None
    except OSError:
        file.close()
        raise
    return Lock(file, [f"warning: {run_dir}: {remark}"] if remark else [])


def wait_for_lock(run_dir: Path, *, named: str = "", by: str = "training", living: bool = False) -> Lock:
    """Lock a folder, and wait for it where its holder may be gone; that it waits is said at once on the terminal.

    Args:
        run_dir: it is made where it is not there.
        named: what to call it in errors; default: --run-dir and its path.
        by: what kind of work the other process does.
        living: wait also for a living process of this host, which is about to end.

    Raises:
        Held: a living process of this host, or after the wait any other, writes into it.
        OSError: the folder cannot be written.
    """
    begin, waited = time.monotonic(), ""
    while True:
        try:
            held = lock(run_dir, named=named, by=by)
        except Held as error:
            if not (error.lost or living):
                raise
            if not waited:
                waited = str(error).partition(";")[0]
                print(f"hvdgan: {waited}; waiting up to {_LEASE_SECONDS:g} s for its lock", file=sys.stderr, flush=True)
            if (seconds := time.monotonic() - begin) >= _LEASE_SECONDS:
                text, _, hint = str(error).partition(";")
                raise Held(f"{text}, still after {seconds:.0f} s;{hint}", lost=error.lost) from error
            time.sleep(_POLL_SECONDS)
        else:
            if waited:
                held.remarks.append(f"waited for the lock of {run_dir}: {waited.partition(': ')[2]}")
            return held


def take(file: int) -> str:
    """Lock an open file, with another kind of lock or none where its file system has no flock.

    Args:
        file: its descriptor, open for writing.

    Returns:
        What to know of a lock that is no flock; empty where it is one.

    Raises:
        BlockingIOError: another process has locked it.
        OSError: it cannot be locked.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_SUCH_LOCK:
            raise
        missing = error.strerror
    else:
        return ""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except PermissionError as error:  # as POSIX lets a system say that another holds it
        raise BlockingIOError(error.errno, error.strerror) from error
    except OSError as error:
        if error.errno not in _NO_SUCH_LOCK:
            raise
        return f"no locks there ({missing}): never train twice into one folder"
    return f"flock is not there ({missing}); fcntl locks keep others out, if all hosts mount the folder alike"


def _own_words() -> str:
    """What a lock file holds: a line for people, and one by which others find this process."""
    words = f"host {os.uname().nodename}, pid {os.getpid()}\n"
    with contextlib.suppress(OSError):  # a /proc that does not tell
        words += f"{json.dumps(process_id(os.getpid()))}\n"
    return words


def _may_be_lost(holder: str, process: str) -> bool:
    """Whether the process that a lock file names may be gone; one of before has no second line.

    Containers may have one host name and the same small pids, so the space that the pid counts in must be this one.
    """
    said = re.fullmatch(r"host (.+), pid (\d+)", holder)
    if said is None or said[1] != os.uname().nodename:
        return True
    pid = int(said[2])
    try:
        if process:
            space = process_id(os.getpid())[1]
            return json.loads(process)[1] != space or json.dumps(process_id(pid)) != process
    except (ValueError, LookupError, TypeError):
        return True  # cut off
    except OSError:
        pass  # /proc may hide another user's
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass  # another user's
    return False
