"""A folder of image files, searched recursively."""

import itertools
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from hvdgan.data.base import BadFile, BadImage, Source, fingerprint, printable, refuse_if_too_many
from hvdgan.data.images import SUFFIXES, check_header, read_halves, read_image, read_partners
from hvdgan.errors import UserError

# Reading headers waits for the disk or the network file system, not for a core.
_SCAN_THREADS = 16
_SCAN_CHUNK = 256
_SIDES = ("A", "B")
"""the folders of inputs and of images"""


class FolderSource(Source):
    """The images of a folder and of all folders below it, in the order of their relative paths.

    Names that begin with a dot are skipped, and files without one of the suffixes of `hvdgan.data.images` do not count.
    Symbolic links to folders are followed, each folder counts once. Every file's header is read on opening; the files
    that fail are left out and listed in `bad_files`.

    Where all images lie in subfolders, the first folder of an image's path is its class; classes are numbered in the
    order of their names.

    Paired, an input and its image are two files of the same path, whatever their suffixes, in the subfolders `A` (the
    inputs) and `B`, if no images lie elsewhere; in any other folder each file holds the input in its left half and the
    image in its right half.

    Args:
        name: what `--data` says, the folder.
        image_size: in pixels.
        channels: 1 or 3.
        max_bad_fraction: the part of the files, or of the pairs, that may fail, in [0, 1].
        paired: whether each image comes with an input.

    Raises:
        UserError: no images are found, or too many are broken.
    """

    def __init__(
        self, name: str, *, image_size: int, channels: int, max_bad_fraction: float, paired: bool = False
    ) -> None:
        files, bad_files = find_images(name)
        found: list[tuple[str, ...]] = [(file,) for file in files]
        if paired and in_two_folders(name, files):
            found, alone = match_partners(files)
            bad_files += alone
        total = len(found) + len(bad_files)
        if not total:
            raise UserError(
                f"--data {name}: found no images in this folder or below it; "
                f"expected files named {', '.join('*' + suffix for suffix in SUFFIXES)} (hidden ones are skipped)"
            )
        checked = dict(zip(files, _check_headers(name, files), strict=True))
        self._images: list[tuple[str, ...]] = []
        """the file, or the files of input and image"""
        for together in found:
            if broken := [result for file in together if isinstance(result := checked[file], BadFile)]:
                bad_files.append(broken[0])
            else:
                self._images.append(together)
        refuse_if_too_many(UserError, name=name, bad_files=bad_files, total=total, max_bad_fraction=max_bad_fraction)
        if not self._images:
            raise UserError(f"--data {name}: none of {total} images can be read; the first: {': '.join(bad_files[0])}")
        parts = [os.fsencode(f"{file}\0{checked[file]}") for file in itertools.chain(*self._images)]
        labels, class_names = classes_of(self._images)
        super().__init__(
            name=name,
            image_size=image_size,
            channels=channels,
            fingerprint=fingerprint(image_size, channels, [b"pairs", *parts] if paired else parts),
            labels=labels,
            class_names=class_names,
            paired=paired,
            bad_files=bad_files,
        )

    def __len__(self) -> int:
        return len(self._images)

    def fetch(self, index: int) -> np.ndarray:
        paths = [os.path.join(self.name, file) for file in self._images[index]]
        names = [printable(file) for file in self._images[index]]
        if len(paths) == 2:
            return read_partners(paths, names, self.image_size, self.channels)
        read = read_halves if self.paired else read_image
        return read(paths[0], names[0], self.image_size, self.channels)

    def key(self, index: int) -> bytes:
        return os.fsencode(self._images[index][-1])


def find_images(folder: str) -> tuple[list[str], list[BadFile]]:
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


def in_two_folders(folder: str, files: Iterable[str]) -> bool:
    """Whether there are subfolders A and B, and no images elsewhere."""
    both = all(os.path.isdir(os.path.join(folder, side)) for side in _SIDES)
    return both and all(file.startswith(("A/", "B/")) for file in files)


def match_partners(files: Iterable[str]) -> tuple[list[tuple[str, ...]], list[BadFile]]:
    """Inputs with the images of the same path, and the files that are left over."""
    sides: dict[str, dict[str, str]] = {side: {} for side in _SIDES}
    alone = []
    for file in files:
        side, _, path = file.partition("/")
        stem = os.path.splitext(path)[0]
        if stem in sides[side]:
            alone.append(BadFile(printable(file), f"{printable(sides[side][stem])} has the same name"))
        else:
            sides[side][stem] = file
    inputs, images = sides.values()
    for one, other, side in ((inputs, images, "B"), (images, inputs, "A")):
        alone += [BadFile(printable(one[stem]), f"no partner in {side}") for stem in one if stem not in other]
    return [(inputs[stem], images[stem]) for stem in inputs if stem in images], alone


def classes_of(images: Sequence[tuple[str, ...]]) -> tuple[np.ndarray | None, list[str] | None]:
    """Labels (N,) and the classes' names by the first folder of each path; None if there is not one everywhere."""
    # Of two partners, what counts is the path within A.
    paths = [files[0].partition("/")[2] if len(files) == 2 else files[0] for files in images]
    if not all("/" in path for path in paths):
        return None, None
    own = [path.partition("/")[0] for path in paths]
    numbers = {name: number for number, name in enumerate(sorted(set(own)))}
    return np.array([numbers[name] for name in own], np.int32), [printable(name) for name in numbers]


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
