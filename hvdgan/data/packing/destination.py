"""Begins or resumes the folder of packed shards, and finishes it with its manifest."""

import contextlib
import dataclasses
import io
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hvdgan.cli.errors import UserError
from hvdgan.cli.files.lock import wait_for_lock
from hvdgan.data.base.source import BadFile, refuse_if_too_many
from hvdgan.data.formats.manifest import (
    FORMAT,
    FORMAT_VERSION,
    LABELS,
    MANIFEST,
    SETTINGS,
    WORK,
    is_prepared,
    sealed,
    sha256_of,
    shard_name,
)
from hvdgan.data.packing.listing import Listing, list_images
from hvdgan.data.packing.parts import Part
from hvdgan.data.packing.shard_writer import Packing, named_write_errors, read_half, to_json, write_whole
from hvdgan.data.sources.folder_listing import refuse_unlisted

_STAMP = "originals.txt"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The request: SRC, DST, and how to convert.

    source, folder: SRC and DST.
    image_size, channels: size in pixels and channels of the records' images.
    shards: number of shards; fewer are made if there are fewer images.
    pairs: True if each image comes with an input.
    packing: encoding and choice of the images.
    """

    source: Path
    folder: Path
    image_size: int
    channels: int | None
    shards: int
    pairs: bool
    packing: Packing

    def settings(self) -> dict[str, Any]:
        """The settings on which the bytes of the result depend, in addition to the images."""
        asked = {"channels": self.channels, "shards": self.shards, "pairs": self.pairs}
        return {"image_size": self.image_size, **asked, **dataclasses.asdict(self.packing)}


@contextlib.contextmanager
def begun(plan: Plan, max_bad_fraction: float) -> Iterator[Listing | None]:
    """Lock DST and list SRC; at the end, remove the working files of a finished DST.

    Args:
        plan: the request.
        max_bad_fraction: largest fraction of broken images; if it is 1, folders that may not be listed are left out.

    Yields:
        The images to pack; None if DST is finished.

    Raises:
        UserError: DST was begun by another command or from other images, another process writes into it, or SRC cannot
            be used.
    """
    _refuse_foreign(plan.folder)
    new = not (plan.folder / SETTINGS).exists()
    _refuse_other_settings(plan, {})
    with named_write_errors(plan.folder):
        locked = wait_for_lock(plan.folder / WORK, named=str(plan.folder), by="hvdgan.prepare")
    with locked:
        for remark in locked.remarks:
            print(f"hvdgan: {remark}", file=sys.stderr, flush=True)
        try:
            yield _listed(plan, new, max_bad_fraction)
        finally:
            if (plan.folder / MANIFEST).exists():
                shutil.rmtree(plan.folder / WORK, ignore_errors=True)


def _listed(plan: Plan, new: bool, max_bad_fraction: float) -> Listing | None:
    """The images to pack, after a comparison with those from which DST was begun; None if DST is finished."""
    work = plan.folder / WORK
    try:
        listing = list_images(plan.source, work, channels=plan.channels, pairs=plan.pairs)
        refuse_unlisted(str(plan.source), listing.unlisted, max_bad_fraction)
        source = {"kind": listing.kind, "images": listing.total, "fingerprint": listing.fingerprint}
        _refuse_other_settings(plan, source)
        _refuse_if_changed(plan, listing, new)
    except UserError:
        if new:
            shutil.rmtree(work, ignore_errors=True)
            with contextlib.suppress(OSError):  # another process may have written files to it
                plan.folder.rmdir()
        raise
    if new:
        source["name"] = plan.source.absolute().name
        values = {"format": FORMAT, "format_version": FORMAT_VERSION, "source": source, "settings": plan.settings()}
        with named_write_errors(plan.folder / SETTINGS):
            write_whole(plan.folder / SETTINGS, to_json(values))
    return None if (plan.folder / MANIFEST).exists() else listing


def _refuse_if_changed(plan: Plan, listing: Listing, new: bool) -> None:
    """Refuse to resume if a file of SRC was written again, even with the same size.

    The times are kept in `.work` and not in the result, whose bytes must not depend on them.
    """
    path = plan.folder / WORK / _STAMP
    if new or not path.exists():
        with named_write_errors(path):
            write_whole(path, listing.stamp.encode())
    elif path.read_text() != listing.stamp:
        raise UserError(
            f"{plan.folder}: begun from other images: files of {plan.source} were written again since; "
            "name a new folder"
        )


def parts(plan: Plan, listing: Listing) -> list[tuple[str, Part]]:
    """The name of each shard and its images, which are divided evenly in their order."""
    count = min(plan.shards, len(listing.names))
    bounds = [len(listing.names) * number // count for number in range(count + 1)]
    return [
        (
            shard_name(number, count),
            listing.part(bounds[number], bounds[number + 1], plan.image_size, plan.pairs),
        )
        for number in range(count)
    ]


def duplicates(folder: Path, names: list[str]) -> list[dict[int, str]]:
    """For each shard, the numbers of the duplicate records, each with the name of the first image with these pixels."""
    first: dict[str, str] = {}
    found: list[dict[int, str]] = []
    for name in names:
        half = read_half(folder, name)
        found.append({})
        for number, (digest, image) in enumerate(zip(half["digests"], half["names"], strict=True)):
            if digest in first:
                found[-1][number] = first[digest]
            else:
                first[digest] = image
    return found


def completed(plan: Plan, listing: Listing, names: list[str], max_bad_fraction: float) -> dict[str, Any]:
    """Write the labels and, last of all, the manifest; return the manifest.

    Raises:
        UserError: too many images are broken, or none is left.
        RunError: a file cannot be written.
    """
    folder = plan.folder
    with named_write_errors(folder / MANIFEST):
        shards = {name: json.loads((folder / f"{name}.json").read_text()) for name in names}
        failures = _failures(plan, listing, shards, max_bad_fraction)
        left_out = {key: sum(len(facts[key]) for facts in shards.values()) for key in ("small", "duplicates")}
        count = sum(facts["records"] for facts in shards.values())
        if not count:
            raise UserError(
                f"{plan.source}: no image is left: {len(failures)} cannot be read, {left_out['small']} are too small"
            )
        files = {
            f"{name}.tfrecord": {"bytes": facts["bytes"], "sha256": facts["sha256"]} for name, facts in shards.items()
        }
        labels = _write_labels(folder, listing, shards)
        others = [f"{name}.{end}" for name in names for end in ("idx", "json")] + [LABELS] * (labels is not None)
        files |= {name: _facts_of(folder / name) for name in others}
        sums = np.sum([facts["sums"] for facts in shards.values() if facts["sums"]], axis=0)
        means = (sums / (count * plan.image_size**2)).tolist()
        made = json.loads((folder / SETTINGS).read_text())
        manifest = {
            **{key: made[key] for key in ("format", "format_version", "source", "settings")},
            "count": count,
            "image_size": plan.image_size,
            "channels": listing.channels,
            "encoding": plan.packing.encoding,
            "pairs": plan.pairs,
            "class_names": listing.class_names,
            "images_per_label": None if labels is None else _counted(labels),
            "channel_means": means[-listing.channels :],
            "input_channel_means": means[: listing.channels] if plan.pairs else None,
            "failures": failures,
            **left_out,
            "shards": [{"name": name, "records": facts["records"]} for name, facts in shards.items()],
            "files": files,
        }
        write_whole(folder / MANIFEST, to_json(sealed(manifest)))
    return manifest


def _failures(plan: Plan, listing: Listing, shards: dict[str, Any], max_bad_fraction: float) -> list[list[str]]:
    """The names of the broken images, each with its reason, unless they are too many."""
    failures = [list(bad) for bad in listing.bad_files]
    failures += [failure for facts in shards.values() for failure in facts["failures"]]
    refuse_if_too_many(
        UserError,
        name=str(plan.source),
        bad_files=[BadFile(*failure) for failure in failures],
        total=listing.total,
        max_bad_fraction=max_bad_fraction,
        flag="",
    )
    return failures


def _write_labels(folder: Path, listing: Listing, shards: dict[str, Any]) -> np.ndarray | None:
    if listing.labels is None:
        return None
    labels = np.array([label for facts in shards.values() for label in facts["labels"]], np.int32)
    file = io.BytesIO()
    np.save(file, labels)
    write_whole(folder / LABELS, file.getvalue())
    return labels


def _counted(labels: np.ndarray) -> dict[str, int]:
    values, counts = np.unique(labels, return_counts=True)
    return {str(value): int(count) for value, count in zip(values, counts, strict=True)}


def _facts_of(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256_of(path)}


def _refuse_foreign(folder: Path) -> None:
    """Refuse a folder that this command did not make."""
    try:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder}: is a file; expected the name of a new folder")
        names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror}") from error
    # Only .work: a command was killed at its very beginning.
    if names - {WORK} and not is_prepared(folder):
        raise UserError(f"{folder}: holds other files, and nothing is ever overwritten; name a new folder")


def _refuse_other_settings(plan: Plan, source: dict[str, Any]) -> None:
    """Refuse to resume with other settings than those of the beginning, or from other images if `source` is given."""
    path = plan.folder / SETTINGS
    if not path.exists():
        if (plan.folder / MANIFEST).exists():
            raise UserError(f"{plan.folder}: finished, but its settings, {SETTINGS}, are missing; name a new folder")
        return
    made = json.loads(path.read_text())
    if made["format_version"] != FORMAT_VERSION:
        raise UserError(
            f"{plan.folder}: has format version {made['format_version']}; expected {FORMAT_VERSION}; name a new folder"
        )
    for name, value in plan.settings().items():
        if made["settings"].get(name) != value:
            flag = "--" + name.replace("_", "-")
            raise UserError(
                f"{plan.folder}: begun with {flag} {made['settings'].get(name)}, and this command has {value}; "
                "give the same value, or name a new folder"
            )
    for name, value in source.items():
        if made["source"].get(name) != value:
            raise UserError(
                f"{plan.folder}: begun from other images: {name} {made['source'].get(name)} then, {value} in "
                f"{plan.source} now; name a new folder"
            )
