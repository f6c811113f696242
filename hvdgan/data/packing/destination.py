"""DST as a whole: begun or gone on with, and finished by its manifest."""

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
from hvdgan.cli.lock import wait_for_lock
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
from hvdgan.data.packing.listing import Originals, find_originals
from hvdgan.data.packing.parts import Part
from hvdgan.data.packing.shard_writer import Packing, read_half, to_json, write_whole, written_or_said
from hvdgan.data.source import BadFile, refuse_if_too_many
from hvdgan.data.sources.folder_listing import refuse_unlisted

_STAMP = "originals.txt"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be made, and how.

    source, folder: SRC and DST.
    image_size, channels: of the records' images.
    shards: how many there will be, or fewer where there are fewer images.
    """

    source: Path
    folder: Path
    image_size: int
    channels: int | None
    shards: int
    pairs: bool
    packing: Packing

    def settings(self) -> dict[str, Any]:
        """What decides the bytes of the result, apart from the originals."""
        asked = {"channels": self.channels, "shards": self.shards, "pairs": self.pairs}
        return {"image_size": self.image_size, **asked, **dataclasses.asdict(self.packing)}


@contextlib.contextmanager
def begun(plan: Plan, max_bad_fraction: float) -> Iterator[Originals | None]:
    """Lock DST, and list SRC; when it is left, what was needed for the work alone is removed from a finished DST.

    Args:
        plan: what to make of what.
        max_bad_fraction: of the images that may be broken; folders that may not be listed are left out where it is 1.

    Yields:
        What is to be packed; None where DST is finished.

    Raises:
        UserError: DST is of another command or other originals, another process writes into it, or SRC cannot be used.
    """
    _refuse_foreign(plan.folder)
    new = not (plan.folder / SETTINGS).exists()
    _refuse_other_settings(plan, {})
    with written_or_said(plan.folder):
        locked = wait_for_lock(plan.folder / WORK, named=str(plan.folder), by="hvdgan.prepare")
    with locked:
        for remark in locked.remarks:
            print(f"hvdgan: {remark}", file=sys.stderr, flush=True)
        try:
            yield _listed(plan, new, max_bad_fraction)
        finally:
            if (plan.folder / MANIFEST).exists():
                shutil.rmtree(plan.folder / WORK, ignore_errors=True)


def _listed(plan: Plan, new: bool, max_bad_fraction: float) -> Originals | None:
    """What is to be packed, compared with what was begun or noted for it."""
    work = plan.folder / WORK
    try:
        originals = find_originals(plan.source, work, channels=plan.channels, pairs=plan.pairs)
        refuse_unlisted(str(plan.source), originals.unlisted, max_bad_fraction)
        source = {"kind": originals.kind, "images": originals.total, "fingerprint": originals.fingerprint}
        _refuse_other_settings(plan, source)
        _refuse_if_changed(plan, originals, new)
    except UserError:
        if new:
            shutil.rmtree(work, ignore_errors=True)
            with contextlib.suppress(OSError):  # somebody may have put something there meanwhile
                plan.folder.rmdir()
        raise
    if new:
        source["name"] = plan.source.absolute().name
        values = {"format": FORMAT, "format_version": FORMAT_VERSION, "source": source, "settings": plan.settings()}
        with written_or_said(plan.folder / SETTINGS):
            write_whole(plan.folder / SETTINGS, to_json(values))
    return None if (plan.folder / MANIFEST).exists() else originals


def _refuse_if_changed(plan: Plan, originals: Originals, new: bool) -> None:
    """Refuse to go on where an original was written again since, though its size is the same.

    That is noted in `.work`, not in what is made: the same images at another time make the same bytes.
    """
    path = plan.folder / WORK / _STAMP
    if new or not path.exists():
        with written_or_said(path):
            write_whole(path, originals.stamp.encode())
    elif path.read_text() != originals.stamp:
        raise UserError(
            f"{plan.folder}: begun from other originals: files of {plan.source} were written again since; "
            "name a new folder"
        )


def parts(plan: Plan, originals: Originals) -> list[tuple[str, Part]]:
    """The name of each shard and its images: as many to each as can be, in the order of the originals."""
    count = min(plan.shards, len(originals.names))
    bounds = [len(originals.names) * number // count for number in range(count + 1)]
    return [
        (
            shard_name(number, count),
            originals.part(bounds[number], bounds[number + 1], plan.image_size, plan.pairs),
        )
        for number in range(count)
    ]


def duplicates(folder: Path, names: list[str]) -> list[dict[int, str]]:
    """For each shard the records whose pixels an earlier record has, with the name of the first image that has them."""
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


def completed(plan: Plan, originals: Originals, names: list[str], max_bad_fraction: float) -> dict[str, Any]:
    """Write the labels and, last of all, the manifest; return it.

    Raises:
        UserError: too many images are broken, or none is left.
        RunError: they cannot be written.
    """
    folder = plan.folder
    with written_or_said(folder / MANIFEST):
        shards = {name: json.loads((folder / f"{name}.json").read_text()) for name in names}
        failures = [list(bad) for bad in originals.bad_files]
        failures += [failure for facts in shards.values() for failure in facts["failures"]]
        refuse_if_too_many(
            UserError,
            name=str(plan.source),
            bad_files=[BadFile(*failure) for failure in failures],
            total=originals.total,
            max_bad_fraction=max_bad_fraction,
            flag="",
        )
        left_out = {key: sum(len(facts[key]) for facts in shards.values()) for key in ("small", "duplicates")}
        count = sum(facts["records"] for facts in shards.values())
        if not count:
            raise UserError(
                f"{plan.source}: no image is left: {len(failures)} cannot be read, {left_out['small']} are too small"
            )
        files = {
            f"{name}.tfrecord": {"bytes": facts["bytes"], "sha256": facts["sha256"]} for name, facts in shards.items()
        }
        labels = _write_labels(folder, originals, shards)
        others = [f"{name}.{end}" for name in names for end in ("idx", "json")] + [LABELS] * (labels is not None)
        files |= {name: _facts_of(folder / name) for name in others}
        sums = np.sum([facts["sums"] for facts in shards.values() if facts["sums"]], axis=0)
        means = (sums / (count * plan.image_size**2)).tolist()
        made = json.loads((folder / SETTINGS).read_text())
        manifest = {
            **{key: made[key] for key in ("format", "format_version", "source", "settings")},
            "count": count,
            "image_size": plan.image_size,
            "channels": originals.channels,
            "encoding": plan.packing.encoding,
            "pairs": plan.pairs,
            "class_names": originals.class_names,
            "images_per_label": None if labels is None else _counted(labels),
            "channel_means": means[-originals.channels :],
            "input_channel_means": means[: originals.channels] if plan.pairs else None,
            "failures": failures,
            **left_out,
            "shards": [{"name": name, "records": facts["records"]} for name, facts in shards.items()],
            "files": files,
        }
        write_whole(folder / MANIFEST, to_json(sealed(manifest)))
    return manifest


def _write_labels(folder: Path, originals: Originals, shards: dict[str, Any]) -> np.ndarray | None:
    if originals.labels is None:
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
    """Refuse what this command did not make."""
    try:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder}: is a file; expected the name of a new folder")
        names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror}") from error
    # .work alone: of a run that was killed at its very beginning.
    if names - {WORK} and not is_prepared(folder):
        raise UserError(f"{folder}: holds other files, and nothing is ever overwritten; name a new folder")


def _refuse_other_settings(plan: Plan, source: dict[str, Any]) -> None:
    """Refuse to go on with what was begun with other settings, or from other originals where `source` is given."""
    path = plan.folder / SETTINGS
    if not path.exists():
        if (plan.folder / MANIFEST).exists():
            raise UserError(f"{plan.folder}: finished, and without the {SETTINGS} that says how; name a new folder")
        return
    made = json.loads(path.read_text())
    if made["format_version"] != FORMAT_VERSION:
        raise UserError(f"{plan.folder}: of format version {made['format_version']}; name a new folder")
    for name, value in plan.settings().items():
        if made["settings"].get(name) != value:
            flag = "--" + name.replace("_", "-")
            raise UserError(
                f"{plan.folder}: begun with {flag} {made['settings'].get(name)}, and this command has {value}; "
                "give the same, or name a new folder"
            )
    for name, value in source.items():
        if made["source"].get(name) != value:
            raise UserError(
                f"{plan.folder}: begun from other originals: {name} {made['source'].get(name)} then, {value} in "
                f"{plan.source} now; name a new folder"
            )
