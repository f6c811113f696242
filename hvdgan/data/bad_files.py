"""Files and samples that cannot be used, their report, and when they are too many."""

import contextlib
import errno
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import IO, NamedTuple, TypeVar

from hvdgan.errors import RunError, in_one_line

OF_ONE_FILE = (None, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
"""errors that concern one file only: a library's own (None), missing permissions, dangling links, too long paths"""
_NAMED_IN_ERRORS = 5
File = TypeVar("File", bound=IO[bytes])


class BadFile(NamedTuple):
    """A file or sample that cannot be used: its name within the data, and the reason."""

    name: str
    reason: str


class BadImage(Exception):
    """One sample cannot be read, for a reason in a few words; the others can."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.bad_file = BadFile(name, reason)


class Unreadable(RunError):
    """The disk, the network or the memory has failed, not the file.

    I/O and memory errors are not counted as broken samples: the sample would be left out for good, or by one rank only.
    """


@contextlib.contextmanager
def reasons(name: str) -> Iterator[None]:
    """Turn every error into a BadImage of this name, as parsers raise many types, unless it is an Unreadable."""
    try:
        yield
    except (BadImage, RunError):
        raise
    except MemoryError as error:
        raise Unreadable(
            f"out of memory while decoding {name}; "
            "use fewer threads (--pipeline.threads) or, with hvdgan prepare, fewer processes (--workers)"
        ) from error
    except Exception as error:
        reason = getattr(error, "strerror", None) or in_one_line(error)
        if isinstance(error, OSError) and error.errno not in OF_ONE_FILE:
            raise Unreadable(
                f"{name}: {reason}: the disk or the network has failed, not the file; "
                "repair it, then give the same command again"
            ) from error
        raise BadImage(name, reason) from error


def content_of(folder: str, file: str) -> bytes:
    """The bytes of a file that rank 0 has listed in a folder."""
    with file_in(folder, file, lambda path: open(path, "rb")) as opened:
        return opened.read()


@contextlib.contextmanager
def file_in(folder: str, file: str, kind: Callable[[str], File]) -> Iterator[File]:
    """Open a file that rank 0 has listed in a folder."""
    path = os.path.join(folder, file)
    with reasons(printable(file)):
        try:
            opened = kind(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            if os.path.lexists(path):
                raise
            raise RunError(
                f"--data {folder}: {printable(file)} was listed by rank 0, and is gone, or {os.uname().nodename} "
                f"does not see it: {error.strerror}; restore the file for all ranks, then resume"
            ) from error
        with opened:
            yield opened


def printable(name: str) -> str:
    """A file name for messages: line breaks, and bytes that are not UTF-8, are escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in name)


def in_words(bad_files: Sequence[tuple[str, str]]) -> str:
    """The first few bad files with their reasons, and the number of the others."""
    first = [f"{bad_name} ({reason})" for bad_name, reason in bad_files[:_NAMED_IN_ERRORS]]
    if len(bad_files) > _NAMED_IN_ERRORS:
        first.append(f"and {len(bad_files) - _NAMED_IN_ERRORS} more")
    return ", ".join(first)


def refuse_if_too_many(
    error: type[RunError],
    *,
    name: str,
    bad_files: Sequence[tuple[str, str]],
    total: int,
    max_bad_fraction: float,
    flag: str = "--data ",
) -> None:
    """Raise an error, which names the first broken files, if more of the `total` files are broken than allowed."""
    if len(bad_files) / total <= max_bad_fraction:
        return
    enough = math.ceil(100 * len(bad_files) / total) / 100
    raise error(
        f"{flag}{name}: {len(bad_files)} of {total} samples cannot be read: {in_words(bad_files)}; "
        f"repair or remove them, or allow them with --max-bad-fraction (now {max_bad_fraction:g}), "
        f"such as {enough:g}"
    )
