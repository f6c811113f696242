"""The picture files in a folder or in a zip archive as a store: names, classes, pairs."""

import collections
import dataclasses
import itertools
import os
import threading
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from hvdgan.data import hdf5_files, pixels, xarray_files
from hvdgan.data.bad_files import OF_ONE_FILE, BadFile, BadImage, Unreadable, content_of, in_words, printable, reasons
from hvdgan.data.pixels import EncodedPictures
from hvdgan.data.samples import Samples, of_pictures
from hvdgan.data.store import DataRequest, spread
from hvdgan.errors import RunError, UserError, in_one_line
from hvdgan.errors.shared_errors import from_root, on_all

ARRAYS = (".npy",)
WAVES = (".wav", ".flac")
JOINED = (hdf5_files.SUFFIXES, xarray_files.FILES)
"""suffixes of the kinds of files that hold several samples each"""
_KNOWN = tuple(itertools.chain(pixels.SUFFIXES, ARRAYS, WAVES, *JOINED))
_RUN, _OF_RUNS = "config.json", {"checkpoints", "metrics.jsonl"}
"""a run folder has the first of these names and one of the others"""
_MOST_SINGLE = 0.5
"""fraction of 64 files that need not be pairs: single odd ones are left out when they are decoded"""
_MOST_KINDS = 5
_LEFT_BEHIND = {"thumbs.db", "desktop.ini", "@eadir", "#recycle", "#snapshot", "~snapshot", "__macosx", "$recycle.bin"}
_LEFT_BEHIND |= {"system volume information", "lost+found"}
"""what operating systems and network drives put among files, in lower case, besides hidden names"""
MOST_BYTES = 2**29
"""bytes of a picture in an archive, at most: as many pixels as are accepted, of four bytes"""
_Sizes = dict[str, tuple[int, int, int]]
"""bytes, width and height of files by name"""
_UNPAIRED = "unpaired data, such as CycleGAN's trainA and trainB, is not supported"


def open_pictures(request: DataRequest) -> Samples:
    """The pictures of a folder and of all folders below it, or of a zip archive, in the order of their paths.

    Rank 0 lists the names, and no file is read but 64, for their sizes: a broken one is found when it is read. If all
    pictures lie in subfolders, the first folder of a picture's path is its class. A pair is two files of the same path,
    apart from the suffix, in the subfolders `A` (inputs) and `B` (images), if no pictures lie elsewhere; otherwise each
    file holds the input in its left half and the image in its right half.
    """
    name, peers = request.config.data, request.peers
    place = on_all(lambda: _Folder(name) if os.path.isdir(name) else _Archive(name), peers, f"--data {name}")
    found = from_root(lambda: _look(place, request), peers, f"--data {name}: its files")
    images, inputs, bad_files, sizes, passed_over = found
    labels, class_names = classes_of(images if inputs is None else [file.partition("/")[2] for file in inputs])
    parts = itertools.chain(map(os.fsencode, itertools.chain(images, inputs or ())), [sizes.encode()])
    return of_pictures(
        request,
        PictureFiles(place, images, inputs, request),
        told_by=itertools.chain([b"pairs"] * request.paired, parts),
        labels=labels,
        class_names=class_names,
        bad_files=[BadFile(*each) for each in bad_files],
        remarks=[f"--data {name}: {passed_over}"] if passed_over else [],
        folder=name if isinstance(place, _Folder) else "",
        paths=[*images, *(inputs or ())] if isinstance(place, _Folder) else [name],
    )


class PictureFiles(EncodedPictures):
    """Pictures by the paths of their files in a folder or an archive, and of those of inputs, if they have some."""

    def __init__(
        self, place: "_Folder | _Archive", images: Sequence[str], inputs: Sequence[str] | None, request: DataRequest
    ) -> None:
        super().__init__(len(images), request)
        self._place, self._images, self._inputs = place, images, inputs

    def files(self, index: int) -> list[tuple[str, bytes]]:
        together = [self._images[index]] if self._inputs is None else [self._inputs[index], self._images[index]]
        return [(printable(file), self._place.content(file)) for file in together]

    def named(self, index: int) -> str:
        return printable(self._images[index])

    def key(self, index: int) -> bytes:
        return os.fsencode(self._images[index])


@dataclasses.dataclass
class Listing:
    """The files of a kind in a folder and below it."""

    files: list[str] = dataclasses.field(default_factory=list)
    """paths relative to the folder, sorted"""
    others: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    """number of the files of each other suffix"""
    runs: list[str] = dataclasses.field(default_factory=list)
    """run folders, which are not listed"""

    def passed_over(self) -> str:
        """What is not used, in one line; "" if there is nothing."""
        kinds = [f"{n:,} {printable(suffix) or 'without suffix'}" for suffix, n in self.others.most_common(_MOST_KINDS)]
        more = ["others"] * (len(self.others) > _MOST_KINDS)
        parts = [f"{self.others.total():,} file(s): {', '.join(kinds + more)}"] if kinds else []
        if self.runs:
            parts.append(f"{len(self.runs):,} run folder(s), such as {printable(self.runs[0])}")
        return f"passed over {'; '.join(parts)}" if parts else ""


def find(folder: str, suffixes: tuple[str, ...]) -> Listing:
    """List the files with one of these suffixes, which are in lower case and match in upper case, too."""
    listing = Listing()
    return _sorted_out(folder, _files_below(folder, listing), suffixes, listing)


def _sorted_out(name: str, paths: Iterable[str], suffixes: tuple[str, ...], listing: Listing) -> Listing:
    """The listing with these paths; files of two kinds that hold samples are refused."""
    mixed: list[str] = []
    for path in paths:
        if path.lower().endswith(suffixes):
            listing.files.append(path)
        elif path.lower().endswith(_KNOWN):
            mixed.append(path)
        else:
            listing.others[os.path.splitext(path)[1].lower()] += 1
    listing.files.sort()
    if listing.files and mixed:
        examples = f"{printable(listing.files[0])} and {printable(min(mixed))}"
        raise UserError(
            f"--data {name}: holds samples in files of two kinds, such as {examples}; move one kind elsewhere"
        )
    return listing


def first_suffix(folder: str) -> str | None:
    """The suffix of the first file of a known kind in a folder or below it; None if there is none."""
    paths = (path.lower() for path in _files_below(folder, Listing()))
    return next((suffix for path in paths for suffix in _KNOWN if path.endswith(suffix)), None)


def classes_of(files: Sequence[str]) -> tuple[np.ndarray | None, list[str] | None]:
    """Labels (N,) and class names, from the first folder of each path; None if a file lies in no folder."""
    folders = [_first_folder(file) for file in files]
    if not all(folders):
        return None, None
    numbers = {name: number for number, name in enumerate(sorted(set(folders)))}
    return np.array([numbers[name] for name in folders], np.int32), [printable(name) for name in numbers]


class _Folder:
    def __init__(self, name: str) -> None:
        self.name = name

    def listing(self) -> Listing:
        return find(self.name, pixels.SUFFIXES)

    def content(self, file: str) -> bytes:
        return content_of(self.name, file)


class _Archive:
    """A zip archive, which several threads read one after another."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        try:
            self._zip = zipfile.ZipFile(name)
        except (zipfile.BadZipFile, OSError, NotImplementedError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else in_one_line(error)
            raise UserError(f"--data {name}: cannot be read as a zip archive: {reason}") from error
        if not any("/" in each for each in self._zip.NameToInfo):  # as older programs of Windows write it
            self._zip.NameToInfo = {each.replace("\\", "/"): info for each, info in self._zip.NameToInfo.items()}
        entries = [each for each in self._zip.NameToInfo if not each.endswith("/")]
        names = [each for each in entries if not any(map(_is_left_behind, each.split("/")))]
        folders = {_first_folder(each) for each in names if each.lower().endswith(pixels.SUFFIXES)}
        self._prefix = f"{folders.pop()}/" if len(folders) == 1 and "" not in folders else ""
        self._names = [each.removeprefix(self._prefix) for each in names]

    def listing(self) -> Listing:
        return _sorted_out(self.name, self._names, pixels.SUFFIXES, Listing())

    def content(self, file: str) -> bytes:
        with reasons(printable(file)), self._lock:
            with self._zip.open(self._prefix + file) as opened:
                content = opened.read(MOST_BYTES + 1)  # its header may say fewer
            if len(content) > MOST_BYTES:
                raise BadImage(printable(file), f"it unpacks to more than the {MOST_BYTES:,} bytes accepted")
            return content


def _look(place: _Folder | _Archive, request: DataRequest) -> list[Any]:
    """Images, inputs or None, bad files, sizes of 64 pictures as text, and what was passed over, all as JSON types."""
    where, listing = f"--data {place.name}", place.listing()
    images, inputs, bad_files = listing.files, None, list[BadFile]()
    if request.paired and {file[:2] for file in images} == {"A/", "B/"}:
        inputs, images, bad_files = _match_partners(images)
        _refuse_without_partners(where, len(images), bad_files, request.config.max_bad_fraction)
    passed_over = listing.passed_over()
    if not images:
        raise UserError(
            f"{where}: found no images in it; expected files named {', '.join('*' + each for each in pixels.SUFFIXES)} "
            f"(hidden ones are skipped){'; ' * bool(passed_over)}{passed_over}"
        )
    sizes: _Sizes = {}
    broken: list[BadFile] = []
    for index in spread(len(images)).tolist():
        for file in images[index : index + 1] if inputs is None else (inputs[index], images[index]):
            try:
                content = place.content(file)
                sizes[printable(file)] = len(content), *pixels.read_size(printable(file), content)
            except BadImage as bad:
                broken.append(bad.bad_file)  # found again when it is read
            except Unreadable as error:
                raise RunError(f"{where}: {error}") from error
    if not sizes:
        raise UserError(f"{where}: none of {len(broken)} images that were tried can be read: {in_words(broken)}")
    if request.paired and inputs is None:
        _refuse_single_images(where, sizes)
    elif request.config.fit is None:
        for name, (_, width, height) in sizes.items():
            try:
                pixels.refuse_aspect(width, height, request.size, None)
            except pixels.WrongAspect as error:
                raise UserError(f"{where}: {name} has {error}") from error
    return [images, inputs, bad_files, str(sizes), passed_over]


def _refuse_single_images(where: str, sizes: _Sizes) -> None:
    """Refuse files of which most do not hold an input in the left half and its image in the right one."""
    single = [(name, width, height) for name, (_, width, height) in sizes.items() if width != 2 * height]
    if len(single) <= _MOST_SINGLE * len(sizes):
        return
    name, width, height = single[0]
    raise UserError(
        f"{where}: {name} has {width} x {height} pixels; a recipe of pairs takes images twice as wide as high, with "
        "the input in the left half and its image in the right, or two files of the same path in the subfolders "
        f"A (inputs) and B (images); {_UNPAIRED}"
    )


def _refuse_without_partners(where: str, pairs: int, alone: Sequence[BadFile], max_bad_fraction: float) -> None:
    """Refuse two folders if too many of their files have no partner."""
    if not alone or (pairs and len(alone) <= max_bad_fraction * (pairs + len(alone))):
        return
    allow = f"; add the missing ones, or allow that with --max-bad-fraction (now {max_bad_fraction:g})" if pairs else ""
    raise UserError(
        f"{where}: {len(alone)} of {2 * pairs + len(alone)} files have no partner: {in_words(alone)}; a pair is two "
        f"files of the same path in A (inputs) and B (images){allow}; {_UNPAIRED}"
    )


def _match_partners(files: Iterable[str]) -> tuple[list[str], list[str], list[BadFile]]:
    """Inputs, the images of the same paths, and the files without a partner."""
    sides: dict[str, dict[str, str]] = {"A": {}, "B": {}}
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
    both = [stem for stem in inputs if stem in images]
    return [inputs[stem] for stem in both], [images[stem] for stem in both], alone


def _files_below(folder: str, listing: Listing) -> Iterator[str]:
    """Paths of all files, folder by folder; run folders are passed over, and noted in the listing."""
    seen = set[tuple[int, int]]()

    def is_new(path: str) -> bool:
        """Whether a folder has not been met under another path, through a link."""
        status, count = os.stat(path), len(seen)
        seen.add((status.st_dev, status.st_ino))
        return len(seen) > count

    def end(error: OSError) -> None:
        raise error

    try:
        is_new(folder)
        for path, folders, files in os.walk(folder, onerror=end, followlinks=True):
            prefix = "" if path == folder else f"{os.path.relpath(path, folder)}/"
            if _RUN in files and _OF_RUNS & {*files, *folders}:
                listing.runs.append(prefix or ".")
                folders.clear()
                continue
            # Sorted, so that of two links to one folder the same one is followed on every machine.
            wanted = sorted(name for name in folders if not _is_left_behind(name))
            folders[:] = [name for name in wanted if is_new(os.path.join(path, name))]
            yield from (prefix + name for name in sorted(files) if not _is_left_behind(name))
    except OSError as error:
        where = f"--data {folder}: {printable(os.path.relpath(error.filename, folder))}: cannot be listed"
        if error.errno in OF_ONE_FILE:
            raise UserError(f"{where}: {error.strerror}; make it readable, or move it away") from error
        raise RunError(
            f"{where}: {error.strerror}: the disk or the network has failed; repair it, then repeat the command"
        ) from error


def _is_left_behind(name: str) -> bool:
    """Whether a file or folder is hidden, or is none of the user's."""
    return name.startswith((".", "~$")) or name.lower() in _LEFT_BEHIND


def _first_folder(path: str) -> str:
    """The first folder of a path; "" if there is none."""
    return path.rpartition("/")[0].partition("/")[0]
