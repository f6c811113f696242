"""A source of the image files in a folder and in all folders below it."""

import errno
import io
import itertools
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hvdgan.cli.errors import RunError, UserError
from hvdgan.cli.shared_errors import ALONE, Peers
from hvdgan.cli.types import Fit
from hvdgan.data.base.parallel_map import parallel_map
from hvdgan.data.base.scan_cache import identity_of_many
from hvdgan.data.base.sharing import from_first, list_from_first, share_out
from hvdgan.data.base.source import (
    BadFile,
    BadImage,
    PictureSource,
    Size,
    Unreadable,
    fingerprint,
    printable,
    refuse_if_too_many,
)
from hvdgan.data.formats.images import SUFFIXES, check_header, read_halves, read_image, read_partners, read_size
from hvdgan.data.formats.pairing import (
    in_two_folders,
    match_partners,
    refuse_single_images,
    refuse_without_partners,
    sample_of,
)
from hvdgan.data.formats.pixels import WrongAspect, refuse_aspect
from hvdgan.data.sources.folder_listing import classes_of, find_images, refuse_unlisted

# Reading headers waits for the disk or the network file system, not for a core.
_SCAN_THREADS = 16
_SCAN_CHUNK = 256


class _Sound(NamedTuple):
    """A file whose header is sound: its size in bytes, and the nanosecond of its last change."""

    size: int
    time: int


class FolderSource(PictureSource):
    """The images of a folder and of all folders below it, in the order of their relative paths.

    Hidden names, the `lost+found` of a disk, and files without one of the suffixes of `hvdgan.data.formats.images` are
    skipped. Symbolic links to folders are followed, and each folder counts once. Rank 0 lists the folders. On opening,
    the ranks share the reading of all headers; files that fail are left out and listed in `bad_files`. A folder that
    cannot be listed is left out only if max_bad_fraction is 1. A file that is missing or has another size later ends
    the run, since the images would differ from those that the run began with.

    If all images lie in subfolders, the first folder of an image's path is its class. Classes are numbered in the order
    of their names.

    A pair is two files of the same path, apart from the suffix, in the subfolders `A` (inputs) and `B` (images), if no
    images lie elsewhere. In any other folder, each file holds the input in its left half and the image in its right
    half, and must be twice as wide as high.

    Args:
        name: value of `--data`, the path of the folder.
        image_size: height and width in pixels; one number for both, or two.
        channels: 1 or 3.
        fit: way in which pictures of another aspect ratio are brought to this size; None: they are refused.
        max_bad_fraction: largest fraction of the files, or of the pairs, that may be broken, in [0, 1].
        paired: True if each image comes with an input.
        peers: the ranks that open the folder together.

    Raises:
        UserError: there are no images, too many are broken, they are not pairs, or a folder may not be listed.
        RunError: the disk has failed, or a rank does not see a file that rank 0 has found.
    """

    def __init__(
        self,
        name: str,
        *,
        image_size: Size,
        channels: int,
        fit: Fit | None = None,
        max_bad_fraction: float,
        paired: bool = False,
        peers: Peers = ALONE,
    ) -> None:
        files, found, bad_files = _listed(name, paired, max_bad_fraction, peers)
        total = len(found) + len(bad_files)
        checked = dict(zip(files, _check_headers(name, files, peers), strict=True))
        self._images: list[tuple[str, ...]] = []
        """the file, or the files of input and image"""
        for together in found:
            if broken := [result for file in together if isinstance(result := checked[file], BadFile)]:
                bad_files.append(broken[0])
            else:
                self._images.append(together)
        sound = {file: each for file, each in checked.items() if isinstance(each, _Sound)}
        self.file_sizes = {file: each.size for file, each in sound.items()}
        self._stamp = identity_of_many(sound[file] for file in itertools.chain(*self._images))
        refuse_if_too_many(UserError, name=name, bad_files=bad_files, total=total, max_bad_fraction=max_bad_fraction)
        if not self._images:
            raise UserError(f"--data {name}: none of {total} images can be read; the first: {': '.join(bad_files[0])}")
        sample = [self._images[place] for place in sample_of(len(self._images))]
        if paired and all(len(files) == 1 for files in self._images):
            _refuse_single_images(name, [files[0] for files in sample], peers)
        elif fit is None:
            _refuse_aspects(name, [file for files in sample for file in files], image_size, peers)
        parts = [os.fsencode(f"{file}\0{self.file_sizes[file]}") for file in itertools.chain(*self._images)]
        labels, class_names = classes_of(self._images)
        super().__init__(
            name=name,
            image_size=image_size,
            channels=channels,
            fit=fit,
            fingerprint=fingerprint(image_size, channels, [b"pairs", *parts] if paired else parts, fit),
            labels=labels,
            class_names=class_names,
            paired=paired,
            bad_files=bad_files,
        )

    def __len__(self) -> int:
        return len(self._images)

    def fetch(self, index: int) -> np.ndarray:
        files = [io.BytesIO(self._content(file)) for file in self._images[index]]
        names = [printable(file) for file in self._images[index]]
        if len(files) == 2:
            return read_partners(files, names, self.image_size, self.channels, self.fit)
        if self.paired:
            return read_halves(files[0], names[0], self.image_size, self.channels)
        return read_image(files[0], names[0], self.image_size, self.channels, self.fit)

    def own_size(self, index: int) -> tuple[int, int] | None:
        file = self._images[index][-1]
        try:
            width, height = read_size(io.BytesIO(self._content(file)), printable(file))
        except BadImage:
            return None
        return height, width

    def _content(self, file: str) -> bytes:
        """The content of a file, in one read, since each read costs a round trip on a network file system."""
        expected = self.file_sizes[file]
        try:
            with open(os.path.join(self.name, file), "rb", buffering=0) as opened:
                content = opened.read(expected + 1)
                while 0 < len(content) < expected and (more := opened.read(expected + 1 - len(content))):
                    content += more
                found = f"{len(content):,} bytes" if len(content) <= expected else "more"
        except MemoryError as error:
            raise Unreadable(f"out of memory while reading {printable(file)}, of {expected:,} bytes") from error
        except OSError as error:
            found = error.strerror or str(error)
        else:
            if len(content) == expected:
                return content
        raise RunError(
            f"--data {self.name}: {printable(file)} has changed since the run began, when it had {expected:,} "
            f"bytes: {found}; restore the file, then resume"
        )

    def key(self, index: int) -> bytes:
        return os.fsencode(self._images[index][-1])

    def stamp(self) -> list[Any] | None:
        return self._stamp


def _listed(
    name: str, paired: bool, max_bad_fraction: float, peers: Peers
) -> tuple[list[str], list[tuple[str, ...]], list[BadFile]]:
    """All files, the file or the pair of files of each image, and the bad ones among them, before a file is read.

    Rank 0 lists the folders. Every rank has the same list, so each finds the pairs by itself.
    """
    seen: list[Any] = []

    def look() -> list[str]:
        try:
            files, unlisted = find_images(name)
        except Unreadable as error:
            raise RunError(f"--data {name}: {error}") from error
        refuse_unlisted(f"--data {name}", unlisted, max_bad_fraction)
        seen.extend([unlisted, paired and in_two_folders(name, files)])
        return files

    files = list_from_first(look, peers, f"--data {name}: its files")
    unlisted, two_folders = from_first(lambda: seen, peers, f"--data {name}: its folders")
    bad_files = [BadFile(*each) for each in unlisted]
    found: list[tuple[str, ...]] = [(file,) for file in files]
    if two_folders:
        found, alone = match_partners(files)
        refuse_without_partners(f"--data {name}", found, alone, max_bad_fraction)
        bad_files += alone
    if not found and not bad_files:
        raise UserError(
            f"--data {name}: found no images in this folder or below it; "
            f"expected files named {', '.join('*' + suffix for suffix in SUFFIXES)} (hidden ones are skipped)"
        )
    return files, found, bad_files


def _refuse_single_images(folder: str, files: Sequence[str], peers: Peers) -> None:
    """Refuse files that hold no pairs, by the headers of a sample."""
    otherwise = "two files of the same path in the subfolders A (inputs) and B (images)"
    names = [printable(file) for file in files]
    refuse_single_images(f"--data {folder}", names, _sizes(folder, files, peers), otherwise)


def _refuse_aspects(folder: str, files: Sequence[str], image_size: Size, peers: Peers) -> None:
    """Refuse pictures of another aspect ratio than the wanted one, by the headers of a sample."""
    for file, size in zip(files, _sizes(folder, files, peers), strict=True):
        if size is not None:
            try:
                refuse_aspect(*size, image_size, None)
            except WrongAspect as error:
                raise UserError(f"--data {folder}: {printable(file)} has {error}") from error


def _sizes(folder: str, files: Sequence[str], peers: Peers) -> list[tuple[int, int] | None]:
    """Width and height of some files; None for one that cannot be read."""

    def size(file: str) -> tuple[int, int] | None:
        try:
            return read_size(os.path.join(folder, file), printable(file))
        except BadImage:
            return None
        except Unreadable as error:
            raise RunError(f"--data {folder}: {error}") from error

    return share_out(files, lambda some: [size(file) for file in some], peers, f"--data {folder}")


def _check_headers(folder: str, files: Sequence[str], peers: Peers) -> list[_Sound | BadFile]:
    """The size and the time of each file, or the reason why it is broken, in the order of the files."""

    def check(file: str) -> _Sound | BadFile:
        path = os.path.join(folder, file)
        try:
            status = check_header(path, printable(file))
            return _Sound(status.st_size, status.st_mtime_ns)
        except BadImage as bad:
            if peers.rank and not _exists(path):
                raise RunError(
                    f"--data {folder}: rank {peers.rank} on {os.uname().nodename} does not see {printable(file)}, "
                    "which rank 0 has found; start every rank on the same files"
                ) from bad
            return bad.bad_file
        except Unreadable as error:
            raise RunError(f"--data {folder}: {error}") from error

    def check_all(some: Sequence[str]) -> list[_Sound | BadFile]:
        return list(parallel_map(check, some, _SCAN_THREADS, together=_SCAN_CHUNK))

    results = share_out(files, check_all, peers, f"--data {folder}")
    # Those of several ranks are decoded from JSON.
    return [BadFile(*each) if isinstance(each[0], str) else _Sound(*each) for each in results]


def _exists(path: str) -> bool:
    """Check that the name exists; it may be a dangling link."""
    try:
        os.lstat(path)
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.ENOTDIR)
    return True
