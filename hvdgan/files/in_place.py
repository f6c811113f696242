"""Opens files of a run folder that are appended to or truncated in place: regular files, and never through a link."""

import os
import stat

from hvdgan.errors import UserError


class IrregularFile(UserError, OSError):
    """A name at which a file is to be written in place is a symbolic link, a folder, a pipe or a device."""


def check_regular(path: str | os.PathLike[str]) -> None:
    """Refuse a name of no regular file: to write there would change a file elsewhere, or wait for ever."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        what = "is a symbolic link" if stat.S_ISLNK(mode) else "is not a regular file"
        raise IrregularFile(f"{os.fspath(path)} {what}, and hvdgan writes this file in place; move it away")


def in_place(path: str, flags: int) -> int:
    """Open a regular file, as the `opener` of open()."""
    check_regular(path)
    file = os.open(path, flags | os.O_NOFOLLOW, 0o666)
    if not stat.S_ISREG(os.fstat(file).st_mode):  # it was replaced since
        os.close(file)
        raise IrregularFile(f"{path} is not a regular file")
    return file
