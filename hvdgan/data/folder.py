"""A folder of image files, searched recursively."""

import itertools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from hvdgan.data.base import BadFile, BadImage, Source, fingerprint, printable, refuse_if_too_many
from hvdgan.data.images import SUFFIXES, check_header, read_image
from hvdgan.errors import UserError

# Reading headers waits for the disk or the network file system, not for a core.
_SCAN_THREADS = 16
_SCAN_CHUNK = 256


class FolderSource(Source):
    """The images of a folder and of all folders below it, in the order of their relative paths.

    Names that begin with a dot are skipped, and files without one of the suffixes of `hvdgan.data.images` do not count.
    Symbolic links to folders are followed, each folder counts once. Every file's header is read on opening; the files
    that fail are left out and listed in `bad_files`.

    Args:
        name: what `--data` says, the folder.
        image_size: in pixels.
        channels: 1 or 3.
        max_bad_fraction: the part of the files that may fail, in [0, 1].

    Raises:
        UserError: no images are found, or too many are broken.
    """

    def __init__(self, name: str, *, image_size: int, channels: int, max_bad_fraction: float) -> None:
        found, bad_files = _find(name)
        total = len(found) + len(bad_files)
        if not total:
            raise UserError(
                f"--data {name}: found no images in this folder or below it; "
                f"expected files named {', '.join('*' + suffix for suffix in SUFFIXES)} (hidden ones are skipped)"
            )
        sizes: dict[str, int] = {}
        for file, result in zip(found, _check_headers(name, found), strict=True):
            if isinstance(result, BadFile):
                bad_files.append(result)
            else:
                sizes[file] = result
        refuse_if_too_many(UserError, name=name, bad_files=bad_files, total=total, max_bad_fraction=max_bad_fraction)
        if not sizes:
            raise UserError(f"--data {name}: none of {total} images can be read; the first: {': '.join(bad_files[0])}")
        self._files = list(sizes)
        super().__init__(
            name=name,
            image_size=image_size,
            channels=channels,
            fingerprint=fingerprint(
                image_size, channels, (os.fsencode(f"{file}\0{size}") for file, size in sizes.items())
            ),
            bad_files=bad_files,
        )

    def __len__(self) -> int:
        return len(self._files)

    def fetch(self, index: int) -> np.ndarray:
        file = self._files[index]
        return read_image(os.path.join(self.name, file), printable(file), self.image_size, self.channels)

    def key(self, index: int) -> bytes:
        return os.fsencode(self._files[index])


def _find(folder: str) -> tuple[list[str], list[BadFile]]:
    """The image files' paths relative to the folder, sorted, and the folders that cannot be listed."""
    files: list[str] = []
    unlisted: list[BadFile] = []

    def note(error: OSError) -> None:
        unlisted.append(BadFile(printable(os.path.relpath(error.filename, folder)), f"folder: {error.strerror}"))

    seen = {os.path.realpath(folder)}
    for parent, folders, names in os.walk(folder, followlinks=True, onerror=note):
        prefix = Path(parent).relative_to(folder).as_posix()
        for name in names:
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                files.append(name if prefix == "." else f"{prefix}/{name}")
        # Sorted, because of two links to one folder only the first is followed: the same one on every machine.
        candidates = sorted(name for name in folders if not name.startswith("."))
        folders.clear()
        for name in candidates:
            target = os.path.realpath(os.path.join(parent, name))
            if target not in seen:
                seen.add(target)
                folders.append(name)
    return sorted(files), unlisted


def _check_headers(folder: str, files: Sequence[str]) -> list[int | BadFile]:
    """The size in bytes of each file, or what is wrong with it, in the order of the files."""

    def check(first: int) -> list[int | BadFile]:
        results: list[int | BadFile] = []
        for file in files[first : first + _SCAN_CHUNK]:
            try:
                results.append(check_header(os.path.join(folder, file), printable(file)))
            except BadImage as bad:
                results.append(bad.bad_file)
        return results

    with ThreadPoolExecutor(_SCAN_THREADS) as pool:
        return list(itertools.chain.from_iterable(pool.map(check, range(0, len(files), _SCAN_CHUNK))))
