"""Lists the images or samples to pack, of a folder, an archive or arrays."""

import dataclasses
import hashlib
import itertools
import json
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hvdgan.cli.config import Config
from hvdgan.cli.errors import RunError, UserError
from hvdgan.data.arrays.conditions import Described
from hvdgan.data.base.parallel_map import parallel_map
from hvdgan.data.base.source import BadFile, BadImage, PictureSource, Source, Unreadable, printable
from hvdgan.data.formats.images import (
    OF_ONE_FILE,
    SUFFIXES,
    check_file,
)
from hvdgan.data.formats.pairing import (
    in_two_folders,
    match_partners,
    refuse_single_images,
    refuse_without_partners,
    sample_of,
)
from hvdgan.data.formats.pixels import WrongAspect, refuse_aspect
from hvdgan.data.packing.archives import Member, is_tar, list_tar, list_zip, reason_against
from hvdgan.data.packing.array_facts import Conditions, conditions_of, conditions_of_pictures, without_conditions
from hvdgan.data.packing.array_part import SamplesPart, portable
from hvdgan.data.packing.compressed_records import unpacked
from hvdgan.data.packing.parts import NO_SIZE, ArchivePart, FolderPart, Part, SourcePart, opened_source
from hvdgan.data.records import RecordSource
from hvdgan.data.sources.folder_listing import classes_of, find_images, first_folder

_THREADS = 16
"""threads that check files, which wait for the disk and need no core"""
_CHUNK = 1024
Group = tuple[str, ...]
"""the file of an image, or the files of an input and its image"""


@dataclasses.dataclass(frozen=True)
class Listing:
    """All images that were found, in the order in which they are packed.

    kind: folder, zip, tar, array or tfrecords (of pictures), or arrays.
    where: path to read from.
    names, places: see Part; for arrays, the numbers of the samples.
    labels: classes of the images, int32 (N,), or None.
    class_names: names of the labels, or None if they are not known.
    bad_files: broken files that were found by listing.
    unlisted: those of the bad files that are folders and may not be listed.
    config: settings of the data, with the size and the channels of pictures.
    pairs: True if each image comes with an input.
    fingerprint: hex digits, equal if the names and sizes are equal.
    stamp: hex digits that also change with a file's time of modification.
    conditions: numbers that describe each picture, or None; those of arrays lie in the source.
    """

    kind: str
    where: str
    names: Sequence[Any]
    places: Sequence[Any]
    labels: np.ndarray | None
    class_names: list[str] | None
    bad_files: list[BadFile]
    unlisted: list[BadFile]
    config: Config
    pairs: bool
    fingerprint: str
    stamp: str
    conditions: Conditions | None = None

    @property
    def of_arrays(self) -> bool:
        """True for samples of arrays, which are packed as they are."""
        return self.kind == "arrays"

    @property
    def total(self) -> int:
        """The number of all images, including broken ones."""
        return len(self.names) + len(self.bad_files)

    def part(self, first: int, last: int) -> Part | SamplesPart:
        """The images with the numbers first <= number < last."""
        if self.of_arrays:
            return SamplesPart(self.config, self.pairs, first, last)
        kinds: dict[str, type[Part]] = {"folder": FolderPart, "zip": ArchivePart, "tar": ArchivePart}
        of_kind = kinds.get(self.kind, SourcePart)
        labels = None if self.labels is None else self.labels[first:last].tolist()
        places = self.places[first:last]
        numbers = None if self.conditions is None else self.conditions.numbers[first:last].tolist()
        return of_kind(list(self.names[first:last]), labels, self.where, places, self.config, self.pairs, numbers)


def list_images(config: Config, work: Path, *, pairs: bool) -> Listing:
    """List the images of SRC.

    Args:
        config: settings of the data: a folder, a zip or tar archive, or arrays; the size of pictures, and their
            channels, or None for those of an array and 3 for all else.
        work: folder in which a compressed tar archive is expanded to a tar file.
        pairs: True if each image comes with an input.

    Raises:
        UserError: the path does not exist, or holds no images, or images of another aspect ratio.
        RunError: the disk has failed.
    """
    source = Path(config.data)
    try:
        config, originals = unpacked(config, work)
        if (opened := opened_source(config, pairs)) is not None:
            return _of_source(opened, config, pairs, originals)
        if not source.exists():
            raise UserError(f"{source}: no such file or folder")
        _refuse_array_flags(config)
        if config.image_size is None:
            raise UserError(NO_SIZE)
        config = dataclasses.replace(config, channels=config.channels or 3)
        if source.is_dir():
            return _described(_of_folder(source, without_conditions(config), pairs), config)
        if is_tar(source):  # first, since a tar archive may end with a zip archive
            where, members = list_tar(source, work)
            return _described(_of_archive("tar", source, where, members, without_conditions(config), pairs), config)
        if zipfile.is_zipfile(source):
            listing = _of_archive("zip", source, source, list_zip(source), without_conditions(config), pairs)
            return _described(listing, config)
    except Unreadable as error:
        raise RunError(f"{source}: {error}") from error
    except OSError as error:
        failure = UserError if error.errno in OF_ONE_FILE else RunError
        raise failure(f"{source}: {error.strerror or error}") from error
    raise UserError(
        f"{source}: expected a folder of images, a zip or tar archive, TFRecord files, or arrays (.npy, .npz, .h5, "
        ".nc, .zarr)"
    )


def _of_folder(source: Path, config: Config, pairs: bool) -> Listing:
    files, unlisted = find_images(str(source))
    found = list(parallel_map(lambda file: _size_and_time(source, file), files, _THREADS, together=_CHUNK))
    sizes = dict(zip(files, (size for size, _ in found), strict=True))
    times = dict(zip(files, (time for _, time in found), strict=True))
    two_folders = pairs and in_two_folders(str(source), files)
    groups, broken = _grouped(source, {file: file for file in files}, sizes, two_folders)
    part = FolderPart(_names(groups), None, str(source), groups, config, pairs)
    _refuse_others(source, part)
    groups, headless = _with_headers(part, groups)
    bad_files = unlisted + broken + headless
    _refuse_none(source, groups, bad_files)
    labels, class_names = classes_of(groups)
    parts = [os.fsencode(f"{file}\0{sizes[file]}") for file in itertools.chain(*groups)]
    stamp = _digest([*parts, *(str(times[file]).encode() for file in itertools.chain(*groups))])
    return Listing(
        "folder",
        str(source),
        _names(groups),
        groups,
        labels,
        class_names,
        bad_files,
        unlisted,
        config,
        pairs,
        _digest(parts),
        stamp,
    )


def _of_archive(kind: str, source: Path, where: Path, members: list[Member], config: Config, pairs: bool) -> Listing:
    """List the images of an archive; of two members with the same name the later one counts, as after unpacking."""
    by_name = _without_common_folder({member.name: member for member in members})
    checked: dict[str, int | BadFile] = {}
    for name, member in by_name.items():
        reason = reason_against(member)
        checked[name] = BadFile(printable(member.name), reason) if reason else member.size
    both = {name.partition("/")[0] for name in by_name} == {"A", "B"}
    groups, bad_files = _grouped(source, {name: name for name in sorted(by_name)}, checked, pairs and both)
    places = [tuple(by_name[name] for name in group) for group in groups]
    part = ArchivePart(_names(groups), None, str(where), places, config, pairs)
    _refuse_others(source, part)
    groups, headless = _with_headers(part, groups)
    bad_files += headless
    _refuse_none(where, groups, bad_files)
    labels, class_names = classes_of(groups)
    parts = [os.fsencode(f"{name}\0{by_name[name].size}\0{by_name[name].crc}") for name in itertools.chain(*groups)]
    places = [tuple(by_name[name] for name in group) for group in groups]
    digest, stamp = _digest(parts), _digest([*parts, _time_of(source)])
    names = _names(groups)
    return Listing(kind, str(where), names, places, labels, class_names, bad_files, [], config, pairs, digest, stamp)


def _of_source(source: Source, config: Config, pairs: bool, originals: bytes) -> Listing:
    """List the pictures or the samples of arrays or TFRecords, in their order.

    Args:
        source: the pictures or samples.
        config: settings of the data.
        pairs: True if each image comes with an input.
        originals: bytes that change with compressed files.
    """
    if not source.is_pictures:
        return _of_samples(source, config, pairs, originals)
    _refuse_array_flags(config)
    asked, described = config, source
    if isinstance(source, Described):
        source = source.samples
    config = without_conditions(config)
    assert isinstance(source, PictureSource)
    # The images that are packed are the same for any size of the result.
    of_records = isinstance(source, RecordSource)
    whole = None if of_records else opened_source(dataclasses.replace(config, image_size=1, fit="crop"), pairs)
    digest = whole.fingerprint if whole else source.fingerprint
    path = Path(config.data)
    time = _time_of(path) if path.is_file() else json.dumps(source.stamp()).encode()
    channels: Any = source.channels
    listing = Listing(
        "tfrecords" if of_records else "array",
        config.data,
        [portable(source.named(index), config) for index in range(len(source))],
        range(len(source)),
        source.labels,
        source.class_names,
        source.bad_files,
        [],
        dataclasses.replace(config, image_size=source.image_size, channels=channels),
        pairs,
        digest,
        _digest([digest.encode(), time, *[originals] * bool(originals)]),
    )
    return _described(listing, asked, described)


def _described(listing: Listing, config: Config, source: Source | None = None) -> Listing:
    """The pictures with their conditions, if the settings name some."""
    lacks = bool(listing.bad_files)
    found = conditions_of_pictures(config, source, [os.fsdecode(name) for name in listing.names], lacks=lacks)
    if found is None:
        return listing
    parts = [listing.fingerprint.encode(), *map(str.encode, found.names), found.numbers.tobytes()]
    return dataclasses.replace(listing, conditions=found, fingerprint=_digest(parts))


def _of_samples(source: Source, config: Config, pairs: bool, originals: bytes) -> Listing:
    numbers, names = conditions_of(source, config)
    parts = [source.fingerprint.encode(), *map(str.encode, names), b"" if numbers is None else numbers.tobytes()]
    places = range(len(source))
    return Listing(
        "arrays",
        config.data,
        places,
        places,
        source.labels,
        source.class_names,
        source.bad_files,
        [],
        config,
        pairs,
        _digest(parts),
        _digest([*parts, json.dumps(source.stamp()).encode(), originals]),
    )


def _refuse_array_flags(config: Config) -> None:
    """Refuse flags of arrays for pictures, which are packed without what they name."""
    arrays = config.arrays
    for name in ("axes", "input_axes", "constants"):
        if getattr(arrays, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise UserError(f"{flag} {getattr(arrays, name)}: is for arrays, and {config.data} holds pictures")


def _size_and_time(folder: Path, file: str) -> tuple[int | BadFile, int]:
    """A file's size in bytes, or the reason why it is not an image; and the nanosecond of its last change."""
    try:
        status = check_file(os.path.join(folder, file), printable(file))
    except BadImage as bad:
        return bad.bad_file, 0
    return status.st_size, status.st_mtime_ns


def _time_of(path: Path) -> bytes:
    return str(path.stat().st_mtime_ns).encode()


def _grouped(
    source: Path, files: dict[str, str], checked: dict[str, int | BadFile], two_folders: bool
) -> tuple[list[Group], list[BadFile]]:
    """Images as single files or as pairs of files, and the files that are broken or have no partner."""
    found: list[Group] = [(file,) for file in files]
    bad_files: list[BadFile] = []
    if two_folders:
        found, bad_files = match_partners(files)
        refuse_without_partners(str(source), found, bad_files)
    groups = []
    for together in found:
        if broken := [result for file in together if isinstance(result := checked[file], BadFile)]:
            bad_files.append(broken[0])
        else:
            groups.append(together)
    return groups, bad_files


def _with_headers(part: Part, groups: Sequence[Group]) -> tuple[list[Group], list[BadFile]]:
    """The images without the folders that have no valid header, and the bad files of these folders.

    Files that are not images are ignored when classes are derived from folders, as in training. It is enough to find
    one valid header per folder: the other files of the folder cannot change the classes.

    Args:
        part: all images.
        groups: files of the images.
    """
    in_folders: dict[str, list[int]] = {}
    for number, group in enumerate(groups):
        in_folders.setdefault(first_folder(group), []).append(number)

    def failures(numbers: list[int]) -> dict[int, BadFile]:
        found = {}
        for number in numbers:
            try:
                part.smallest_side(number)
                return {}
            except BadImage as bad:
                found[number] = bad.bad_file
        return found

    # Members of an archive are read as a whole, so only one at a time.
    threads = _THREADS if isinstance(part, FolderPart) else 1
    broken = parallel_map(failures, list(in_folders.values()), threads)
    failed = {number: bad for some in broken for number, bad in some.items()}
    return [group for number, group in enumerate(groups) if number not in failed], list(failed.values())


def _refuse_others(source: Path, part: Part) -> None:
    """Refuse files that hold no pairs if there must be pairs, or another aspect ratio, by the headers of a sample."""

    def sizes(number: int) -> list[tuple[int, int]]:
        try:
            return part.sizes(number)
        except BadImage:
            return []

    if part.config.fit is not None and not part.pairs:
        return
    sample = sample_of(len(part))
    names = [printable(part.names[number]) for number in sample]
    found = [sizes(number) for number in sample]
    if part.pairs and all(len(place) == 1 for place in part.places):
        otherwise = "two files of the same path in the folders A (inputs) and B (images)"
        refuse_single_images(str(source), names, [each[0] if each else None for each in found], otherwise)
        found = [[(width // 2, height) for width, height in each] for each in found]
    for name, (width, height) in ((name, size) for name, each in zip(names, found, strict=True) for size in each):
        try:
            refuse_aspect(width, height, part.config.image_size or 1, part.config.fit)
        except WrongAspect as error:
            raise UserError(f"{source}: {name} has {error}") from error


def _names(groups: Sequence[Group]) -> list[str]:
    return [group[-1] for group in groups]


def _refuse_none(source: Path, groups: Sequence[Any], bad_files: Sequence[BadFile]) -> None:
    if groups:
        return
    if bad_files:
        raise UserError(f"{source}: none of {len(bad_files)} images can be read; the first: {': '.join(bad_files[0])}")
    raise UserError(f"{source}: found no images; expected files named {', '.join('*' + end for end in SUFFIXES)}")


def _without_common_folder(members: dict[str, Member]) -> dict[str, Member]:
    """The names without the common folder in which most archives wrap everything, since it is not a class."""
    while members and all("/" in name for name in members):
        tops = {name.partition("/")[0] for name in members}
        if len(tops) > 1:
            break
        members = {name.partition("/")[2]: member for name, member in members.items()}
    return members


def _digest(parts: Sequence[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()
