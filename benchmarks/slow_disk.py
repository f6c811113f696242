"""Mounts a folder as a slow shared disk would show it, until it is interrupted; needs the right to use FUSE.

    apt-get install fuse libfuse2 && pip install fusepy
    python benchmarks/slow_disk.py FOLDER MOUNT --delay 0.005 --megabytes 50 &
    python benchmarks/periods.py --run-dir MOUNT/run --report checkpoints

Each call takes a fixed time more, except writing, which a file system buffers; data go at a limited speed. Calls of
several processes and threads take place at the same time, as on a file server.
"""

import argparse
import errno
import os
import time
from pathlib import Path
from typing import Any

from fuse import FUSE, FuseOSError, Operations


class Slow(Operations):  # type: ignore[misc]  # fusepy has no types
    """The files of a folder, each call later.

    Args:
        root: folder that holds the files.
        delay: seconds that each call but writing takes more.
        rate: bytes that are read or written in a second.
    """

    def __init__(self, root: Path, delay: float, rate: float) -> None:
        self._root = str(root)
        self._delay = delay
        self._rate = rate

    def __call__(self, name: str, path: str, *arguments: Any) -> Any:
        """Perform one call."""
        size = len(arguments[0]) if name == "write" else arguments[0] if name == "read" else 0
        time.sleep(self._delay * (name != "write") + size / self._rate)
        try:
            return super().__call__(name, path and self._root + path, *arguments)
        except OSError as error:
            raise FuseOSError(error.errno) from error

    def access(self, path: str, mode: int) -> None:
        if not os.access(path, mode):
            raise FuseOSError(errno.EACCES)

    def getxattr(self, path: str, name: str, position: int = 0) -> bytes:
        raise FuseOSError(errno.ENOSYS)  # the kernel would ask before each write, and now no longer does

    def getattr(self, path: str, handle: int | None = None) -> dict[str, Any]:
        found = os.lstat(path)
        names = "st_atime st_ctime st_mtime st_gid st_uid st_mode st_nlink st_size".split()
        return {name: getattr(found, name) for name in names}

    def readdir(self, path: str, handle: int) -> list[str]:
        return [".", "..", *os.listdir(path)]

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(path)
        names = "f_bavail f_bfree f_blocks f_bsize f_favail f_ffree f_files f_flag f_frsize f_namemax".split()
        return {name: getattr(found, name) for name in names}

    def create(self, path: str, mode: int, info: Any = None) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT, mode)

    def open(self, path: str, flags: int) -> int:
        return os.open(path, flags)

    def read(self, path: str, size: int, offset: int, handle: int) -> bytes:
        return os.pread(handle, size, offset)

    def write(self, path: str, data: bytes, offset: int, handle: int) -> int:
        return os.pwrite(handle, data, offset)

    def truncate(self, path: str, length: int, handle: int | None = None) -> None:
        os.truncate(path, length)

    def fsync(self, path: str, only_data: int, handle: int) -> None:
        os.fsync(handle)

    def release(self, path: str, handle: int) -> None:
        os.close(handle)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, self._root + new)

    def symlink(self, path: str, target: str) -> None:
        os.symlink(target, path)

    def link(self, path: str, target: str) -> None:
        os.link(self._root + target, path)

    def readlink(self, path: str) -> str:
        return os.readlink(path)

    def utimens(self, path: str, times: tuple[float, float] | None = None) -> None:
        os.utime(path, times)

    def mkdir(self, path: str, mode: int) -> None:
        os.mkdir(path, mode)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def chmod(self, path: str, mode: int) -> None:
        os.chmod(path, mode)


def main() -> None:
    """Mount the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder that holds the files")
    parser.add_argument("mount", type=Path, help="empty folder where they appear")
    parser.add_argument("--delay", type=float, default=0.005, help="seconds that each call but writing takes more")
    parser.add_argument("--megabytes", type=float, default=50.0, help="MB read or written in a second")
    given = parser.parse_args()
    slow = Slow(given.folder.resolve(), given.delay, given.megabytes * 1e6)
    FUSE(slow, str(given.mount), foreground=True, big_writes=True)


if __name__ == "__main__":
    main()
