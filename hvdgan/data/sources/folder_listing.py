"""Lists the files of a kind in a folder and in all folders below it, and the classes that its subfolders name."""

import errno
import itertools
import os
from collections.abc import Iterator, Sequence

import numpy as np

from hvdgan.cli.errors import UserError
from hvdgan.data.arrays import hdf5_files, xarray_files
from hvdgan.data.base.source import BadFile, Unreadable, printable
from hvdgan.data.formats.images import SUFFIXES

_OF_THE_FOLDER = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
"""errors of a folder that can never be listed; any other may be temporary"""


ARRAYS = (".npy",)
JOINED = (hdf5_files.SUFFIXES, xarray_files.FILES)
"""suffixes of the kinds of files that hold several samples each"""
_KINDS = (SUFFIXES, ARRAYS, *JOINED)


def find_images(folder: str) -> tuple[list[str], list[BadFile]]:
    """The paths of the image files relative to the folder, sorted, and the folders that may not be listed.

    Raises:
        UserError: there are files of arrays, too.
        Unreadable: the disk has failed, or a folder has disappeared.
    """
    return find(folder, SUFFIXES)


def find_arrays(folder: str) -> tuple[list[str], list[BadFile]]:
    """As find_images(), for .npy files."""
    return find(folder, ARRAYS)


def first_suffix(folder: str) -> str | None:
    """The suffix of the first file of a known kind in a folder or below it; None if there is none."""
    known = tuple(itertools.chain(*_KINDS))
    try:
        first = next(_files_below(folder, known, []), None)
    except Unreadable:
        return None  # the source of images meets it again, and says so
    return None if first is None else next(each for each in known if first.lower().endswith(each))


def find(folder: str, suffixes: tuple[str, ...]) -> tuple[list[str], list[BadFile]]:
    """As find_images(), for files of any kind: suffixes in lower case, which match in upper case, too.

    Raises:
        UserError: there are files of another known kind, too.
        Unreadable: the disk has failed, or a folder has disappeared.
    """
    unlisted: list[BadFile] = []
    files: list[str] = []
    mixed: list[str] = []
    for path in _files_below(folder, tuple(itertools.chain(*_KINDS)), unlisted):
        (files if path.lower().endswith(suffixes) else mixed).append(path)
    if files and mixed:
        first, second = sorted((min(files), min(mixed)), key=lambda path: not path.lower().endswith(SUFFIXES))
        kinds = "images and arrays" if first.lower().endswith(SUFFIXES) else "arrays in files of two kinds"
        examples = f"{printable(first)} and {printable(second)}"
        raise UserError(f"{folder}: holds {kinds}, such as {examples}; move one kind elsewhere")
    return sorted(files), unlisted


def _files_below(folder: str, suffixes: tuple[str, ...], unlisted: list[BadFile]) -> Iterator[str]:
    """Paths of the files with one of these suffixes, folder by folder; folders that may not be listed are noted."""
    seen: set[tuple[int, int]] = set()
    waiting = [""]  # a list, since recursion would fail a thousand folders deep
    while waiting:
        prefix = waiting.pop()
        try:
            if not prefix:
                seen.add(_identity(os.stat(folder)))
            with os.scandir(os.path.join(folder, prefix)) as listing:
                # Sorted, so that of two links to one folder the same one is followed on every machine.
                entries = sorted(
                    (entry for entry in listing if not _is_skipped(prefix, entry.name)), key=lambda entry: entry.name
                )
        except OSError as error:
            unlisted.append(_unlisted(prefix, error))
            continue
        inner = []
        for entry in entries:
            path = prefix + entry.name
            try:
                identity = _identity(entry.stat()) if _is_folder(entry, suffixes) else None
            except OSError as error:
                unlisted.append(_unlisted(f"{path}/", error))
                continue
            if identity is None:
                if entry.name.lower().endswith(suffixes):
                    yield path
            elif identity not in seen:
                seen.add(identity)
                inner.append(f"{path}/")
        waiting += reversed(inner)


def refuse_unlisted(name: str, unlisted: Sequence[BadFile], max_bad_fraction: float) -> None:
    """Refuse folders that may not be listed, unless all images may be broken: each could hold a class.

    Raises:
        UserError: there is one; the message names it.
    """
    if unlisted and max_bad_fraction < 1:
        folder, reason = unlisted[0]
        raise UserError(
            f"{name}: {folder}: {reason}, so that its images are unknown; make it readable, move it away, or leave "
            f"it out with --max-bad-fraction 1 (now {max_bad_fraction:g})"
        )


def classes_of(images: Sequence[tuple[str, ...]]) -> tuple[np.ndarray | None, list[str] | None]:
    """Labels (N,) and class names, from the first folder of each path; None if an image lies in no subfolder."""
    own = [first_folder(files) for files in images]
    if not all(own):
        return None, None
    numbers = {name: number for number, name in enumerate(sorted(set(own)))}
    return np.array([numbers[name] for name in own], np.int32), [printable(name) for name in numbers]


def first_folder(files: tuple[str, ...]) -> str:
    """The first folder of an image's path, or of a pair's path within A; empty if there is none."""
    path = files[0].partition("/")[2] if len(files) == 2 else files[0]
    return path.rpartition("/")[0].partition("/")[0]


def _unlisted(prefix: str, error: OSError) -> BadFile:
    folder = printable(prefix) or "."
    if error.errno not in _OF_THE_FOLDER:
        raise Unreadable(
            f"{folder}: cannot be listed: {error.strerror}: the disk or the network has failed; "
            "repair it, then give the same command again"
        ) from error
    return BadFile(folder, f"folder: {error.strerror}")


def _is_skipped(prefix: str, name: str) -> bool:
    """Check for hidden names, and for `lost+found` at the top of a disk, which only root may list."""
    return name[0] == "." or (prefix, name) == ("", "lost+found")


def _is_folder(entry: os.DirEntry[str], suffixes: tuple[str, ...]) -> bool:
    """Check for a folder, or a link to one; raises an OSError if that is unknown."""
    try:
        return entry.is_dir()
    except OSError as error:
        # A dangling link is not a folder. A file with one of the suffixes is read later, and that reports the error.
        if error.errno in (errno.ELOOP, errno.ENOTDIR) or entry.name.lower().endswith(suffixes):
            return False
        raise


def _identity(status: os.stat_result) -> tuple[int, int]:
    """Numbers that identify a folder on this machine, whatever its path."""
    return status.st_dev, status.st_ino
