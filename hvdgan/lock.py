"""A folder belongs to one process that writes into it at a time; the lock of a process that has died is open again."""

import fcntl
import os
from pathlib import Path
from typing import TextIO

from hvdgan.errors import UserError


def lock(run_dir: Path, *, named: str = "", by: str = "training") -> TextIO:
    """Lock a folder until the file that is returned is closed, or the process ends in whatever way.

    Args:
        run_dir: it is made where it is not there.
        named: what to call it in errors; default: --run-dir and its path.
        by: what kind of work the other process does.

    Raises:
        UserError: another process writes into it.
        OSError: the folder cannot be written.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    file = (run_dir / ".lock").open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip() or "which has not said who it is"
        file.close()
        raise UserError(
            f"{named or f'--run-dir {run_dir}'}: another {by} writes into it ({holder}); "
            "wait for its end, or name another folder"
        ) from None
    file.truncate(0)
    file.write(f"host {os.uname().nodename}, pid {os.getpid()}\n")
    file.flush()
    return file
