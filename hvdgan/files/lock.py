"""Locks a folder, so that one process at a time writes into it; the lock is released when that process dies."""

import contextlib
import errno
import fcntl
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import TextIO

from hvdgan.errors import UserError
from hvdgan.files.in_place import in_place
from hvdgan.launching.hosts import is_running, process_id

LEASE_SECONDS = 120.0
"""seconds for which a network file system may keep the lock of a dead host"""
POLL_SECONDS = 1.0
"""seconds between two attempts to take a lock"""
_LONGEST_WORDS = 1000
_HOLDER = re.compile(r"host (.+), pid (\d+)")
# Lustre mounted without -o flock, NFS without its lock service, file systems in user space.
_NO_SUCH_LOCK = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP}


class LockHeldError(UserError):
    """Another process holds the lock.

    lost: True if that process may be gone: it is unknown, runs on another host, or its pid is not in use.
    """

    def __init__(self, text: str, *, lost: bool) -> None:
        super().__init__(text)
        self.lost = lost


class Lock(contextlib.ExitStack):
    """A lock that is held until it is closed or the process ends.

    remarks: lines for the log.
    """

    def __init__(self, file: TextIO, remarks: list[str]) -> None:
        super().__init__()
        self.enter_context(file)
        self.remarks = remarks


_CURE = "wait for its end, or name another folder"


def lock(run_dir: Path, *, named: str = "", by: str = "run", cure: str = _CURE) -> Lock:
    """Lock a folder, which is made if there is none; a LockHeldError says that another process writes into it.

    For its message: `named`, the folder (default: --run-dir and its path), `by`, the other one's work, and `cure`.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    file = open(run_dir / ".lock", "a+", encoding="utf-8", errors="replace", opener=in_place)  # noqa: SIM115
    try:
        remark = take(file.fileno())
        file.truncate(0)
        file.write(_own_words())
        file.flush()
    except BlockingIOError:
        file.seek(0)
        holder, process = _words(file)
        file.close()
        raise LockHeldError(
            f"{named or f'--run-dir {run_dir}'}: another {by} writes into it ({holder or 'unknown process'}); {cure}",
            lost=_may_be_lost(holder, process),
        ) from None
    except OSError:
        file.close()
        raise
    return Lock(file, [f"warning: {run_dir}: {remark}"] if remark else [])


def wait_for_lock(run_dir: Path, *, named: str = "", by: str = "run", cure: str = _CURE, living: bool = False) -> Lock:
    """Lock a folder as lock() does; wait, and print that, if the process that holds its lock may be gone.

    `living`: whether to wait also for a living process of this host, because it is about to end.
    """
    begin, waited = time.monotonic(), ""
    while True:
        try:
            held = lock(run_dir, named=named, by=by, cure=cure)
        except LockHeldError as error:
            if not (error.lost or living):
                raise
            if not waited:
                waited = str(error).partition(";")[0]
                print(f"hvdgan: {waited}; waiting up to {LEASE_SECONDS:g} s for its lock", file=sys.stderr, flush=True)
            if (seconds := time.monotonic() - begin) >= LEASE_SECONDS:
                text, _, hint = str(error).partition(";")
                raise LockHeldError(f"{text}, still after {seconds:.0f} s;{hint}", lost=error.lost) from error
            time.sleep(POLL_SECONDS)
        else:
            if waited:
                held.remarks.append(f"waited for the lock of {run_dir}: {waited.partition(': ')[2]}")
            return held


def held_by(folder: Path) -> str | None:
    """The process that holds the lock of a folder; "" if none does, None if nobody can know: there may be no locks.

    Nothing is written. A process that wants the lock at the same moment waits for POLL_SECONDS. The holder itself must
    not call it: a fcntl lock would be released.
    """
    try:
        with open(folder / ".lock", encoding="utf-8", errors="replace", opener=in_place) as file:
            for shared in (fcntl.flock, fcntl.lockf):
                try:
                    shared(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
                except (BlockingIOError, PermissionError):
                    return _words(file)[0] or "unknown process"
                except OSError as error:
                    if error.errno in _NO_SUCH_LOCK:
                        continue
                return ""
            return None
    except OSError:
        return ""  # there is no such file


def may_be_held_elsewhere(folder: Path) -> bool:
    """Check whether the last process that locked a folder may run although held_by() does not see it.

    It may run on another host, where each host has locks of its own; or it is a living process of this host, and the
    folder is a copy of the one that it writes into. The holder itself must not call this either.
    """
    try:
        with open(folder / ".lock", encoding="utf-8", errors="replace", opener=in_place) as file:
            holder, process = _words(file)
    except OSError:
        return True
    named = _HOLDER.fullmatch(holder)
    return named is not None and (named[1] != os.uname().nodename or not _may_be_lost(holder, process))


def take(file: int) -> str:
    """Lock an open file; if its file system has no flock, with another kind of lock or not at all, with a warning.

    A BlockingIOError says that another process has locked the file.
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
    except PermissionError as error:  # the other error with which POSIX lets a system report a held lock
        raise BlockingIOError(error.errno, error.strerror) from error
    except OSError as error:
        if error.errno not in _NO_SUCH_LOCK:
            raise
        return f"no locks there ({missing}): never train twice into one folder"
    return f"flock is not there ({missing}); fcntl locks keep others out, if all hosts mount the folder in the same way"


def _words(file: TextIO) -> tuple[str, str]:
    """The two lines of a lock file, the one for people and the one for processes, of which each may be missing."""
    holder, _, process = file.read(_LONGEST_WORDS).strip().partition("\n")
    return holder.strip(), process


def _own_words() -> str:
    """The contents of a lock file: a line for people, and one by which other processes find this one."""
    words = f"host {os.uname().nodename}, pid {os.getpid()}\n"
    with contextlib.suppress(OSError):  # /proc may be hidden
        words += f"{json.dumps(process_id(os.getpid()))}\n"
    return words


def _may_be_lost(holder: str, process: str) -> bool:
    """Whether the process that a lock file names may be gone; its pid counts only in the same pid namespace."""
    named = _HOLDER.fullmatch(holder)
    if named is None or named[1] != os.uname().nodename:
        return True
    pid = int(named[2])
    try:
        if process:
            space = process_id(os.getpid())[1]
            return json.loads(process)[1] != space or json.dumps(process_id(pid)) != process
    except (ValueError, LookupError, TypeError):
        return True  # the line is cut off
    except OSError:
        pass  # /proc may hide the process of another user
    return not is_running(pid)
