"""Begins or resumes the folder of packed shards, and finishes it with its manifest."""

import contextlib
import dataclasses
import json
import math
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hvdgan.cli.config import Config
from hvdgan.cli.errors import UserError
from hvdgan.cli.files.lock import wait_for_lock
from hvdgan.data.base.source import BadFile, refuse_if_too_many, sides
from hvdgan.data.formats.manifest import (
    ARRAYS_VERSION,
    CONDITIONS,
    FORMAT,
    LABELS,
    MANIFEST,
    PICTURES_VERSION,
    SETTINGS,
    VERSIONS,
    WORK,
    is_prepared,
    sealed,
    sha256_of,
    shard_name,
)
from hvdgan.data.packing.array_facts import conditions_of, facts_of, write_array, write_beside
from hvdgan.data.packing.array_part import SamplesPart, opened_arrays, refuse_smaller
from hvdgan.data.packing.encoding_choice import measured
from hvdgan.data.packing.listing import Listing, list_images
from hvdgan.data.packing.parts import Part
from hvdgan.data.packing.shard_writer import Encoding, Packing, named_write_errors, read_half, to_json, write_whole
from hvdgan.data.sources.folder_listing import refuse_unlisted

_STAMP = "originals.txt"
_ENCODINGS: dict[bool, tuple[Encoding, ...]] = {False: ("png", "jpeg", "raw"), True: ("auto", "raw", "zlib")}
"""encodings of pictures and of arrays, the default first"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The request: SRC, DST, and how to convert.

    config: settings of the data: SRC, the size, channels and fit of pictures, and what else to pack with arrays.
    folder: DST.
    shards: number of shards; fewer are made if there are fewer images.
    pairs: True if each image comes with an input.
    packing: encoding and choice of the images.
    """

    config: Config
    folder: Path
    shards: int
    pairs: bool
    packing: Packing

    def settings(self) -> dict[str, Any]:
        """The settings on which the bytes of the result depend, in addition to the data; without undecided ones."""
        config, arrays = self.config, self.config.arrays
        size = list(config.image_size) if isinstance(config.image_size, tuple) else config.image_size
        asked = {"channels": config.channels, "shards": self.shards, "pairs": self.pairs}
        packing = {name: value for name, value in dataclasses.asdict(self.packing).items() if value is not None}
        named = {name: getattr(arrays, name) for name in ("axes", "inputs", "input_axes", "constants")}
        table = None if arrays.condition_table is None else str(arrays.condition_table)
        conditions = {"conditions": list(arrays.conditions) or None, "condition_table": table}
        records = {f"tfrecord_{name}": value for name, value in dataclasses.asdict(config.tfrecord).items()}
        return {"image_size": size, **asked, **packing, "fit": config.fit, **named, **conditions, **records}


@contextlib.contextmanager
def begun(plan: Plan, max_bad_fraction: float) -> Iterator[tuple[Plan, Listing] | None]:
    """Lock DST and list SRC; at the end, remove the working files of a finished DST.

    Args:
        plan: the request.
        max_bad_fraction: largest fraction of broken images; if it is 1, folders that may not be listed are left out.

    Yields:
        The plan with all that SRC and an earlier beginning decide, and the images to pack; None if DST is finished.

    Raises:
        UserError: DST was begun by another command or from other images, another process writes into it, or SRC cannot
            be used.
    """
    _refuse_foreign(plan.folder)
    new = not (plan.folder / SETTINGS).exists()
    plan = _as_begun(plan)
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


def _as_begun(plan: Plan) -> Plan:
    """The plan as it is carried on in a folder that an earlier version began, which cropped whatever did not fit."""
    path = plan.folder / SETTINGS
    if path.exists() and "fit" not in json.loads(path.read_text())["settings"] and plan.config.fit is None:
        return dataclasses.replace(plan, config=dataclasses.replace(plan.config, fit="crop"))
    return plan


def _listed(plan: Plan, new: bool, max_bad_fraction: float) -> tuple[Plan, Listing] | None:
    """The images to pack, after a comparison with those from which DST was begun; None if DST is finished."""
    work = plan.folder / WORK
    try:
        listing = list_images(plan.config, work, pairs=plan.pairs)
        plan = _with_default_encoding(plan, listing)
        refuse_unlisted(plan.config.data, listing.unlisted, max_bad_fraction)
        source = {"kind": listing.kind, "images": listing.total, "fingerprint": listing.fingerprint}
        _refuse_other_settings(plan, source)
        _refuse_if_changed(plan, listing, new)
        chosen = _chosen(plan, listing) if new else _chosen_before(plan)
    except UserError:
        if new:
            shutil.rmtree(work, ignore_errors=True)
            with contextlib.suppress(OSError):  # another process may have written files to it
                plan.folder.rmdir()
        raise
    if new:
        source["name"] = Path(plan.config.data).absolute().name
        version = ARRAYS_VERSION if listing.of_arrays else PICTURES_VERSION
        values = {"format": FORMAT, "format_version": version, "source": source, "settings": plan.settings(), **chosen}
        with named_write_errors(plan.folder / SETTINGS):
            write_whole(plan.folder / SETTINGS, to_json(values))
    if (plan.folder / MANIFEST).exists():
        return None
    encoding: Any = chosen.get("encoding", plan.packing.encoding)
    packing = dataclasses.replace(plan.packing, encoding=encoding)
    return dataclasses.replace(plan, packing=packing), listing


def _with_default_encoding(plan: Plan, listing: Listing) -> Plan:
    """The plan with an encoding; flags that mean nothing for the data are refused."""
    packing, possible = plan.packing, _ENCODINGS[listing.of_arrays]
    if packing.encoding not in (None, *possible):
        kind = "arrays, whose numbers are kept as they are" if listing.of_arrays else "pictures"
        raise UserError(
            f"--encoding {packing.encoding}: {plan.config.data} holds {kind}; expected {', '.join(possible)}"
        )
    if listing.of_arrays and packing.min_size:
        refuse_smaller(opened_arrays(listing.config, plan.pairs), plan.config.data, packing.min_size)
    return dataclasses.replace(plan, packing=dataclasses.replace(packing, encoding=packing.encoding or possible[0]))


def _chosen(plan: Plan, listing: Listing) -> dict[str, Any]:
    """The encoding that `auto` stands for, with what it was chosen by."""
    if plan.packing.encoding != "auto":
        return {}
    found = measured(opened_arrays(listing.config, plan.pairs))
    if found is None:
        raise UserError(f"{plan.config.data}: none of its samples looked at can be read; expected finite numbers")
    print(f"hvdgan: {found}")
    return {"encoding": found.encoding, "encoding_sample": found.facts()}


def _chosen_before(plan: Plan) -> dict[str, Any]:
    """The choice of the beginning, which a command that continues keeps."""
    made = json.loads((plan.folder / SETTINGS).read_text())
    return {key: made[key] for key in ("encoding", "encoding_sample") if key in made}


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
            f"{plan.folder}: begun from other images: files of {plan.config.data} were written again since; "
            "name a new folder"
        )


def parts(plan: Plan, listing: Listing) -> list[tuple[str, Part | SamplesPart]]:
    """The name of each shard and its images, which are divided evenly in their order."""
    count = min(plan.shards, len(listing.names))
    bounds = [len(listing.names) * number // count for number in range(count + 1)]
    return [
        (
            shard_name(number, count, of_arrays=listing.of_arrays),
            listing.part(bounds[number], bounds[number + 1]),
        )
        for number in range(count)
    ]


def duplicates(folder: Path, names: list[str]) -> list[dict[int, str]]:
    """For each shard, the numbers of the duplicate records, each with the name of the first that it equals."""
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
    """Write what lies beside the images and, last of all, the manifest; return the manifest.

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
                f"{plan.config.data}: no image is left: {len(failures)} cannot be read, {left_out['small']} are too "
                "small"
            )
        files = {
            f"{name}.tfrecord": {"bytes": facts["bytes"], "sha256": facts["sha256"]} for name, facts in shards.items()
        }
        labels = _labels(listing, shards)
        described, beside = _described(plan, listing, shards)
        if labels is not None:
            write_array(folder / LABELS, labels)
            beside.append(LABELS)
        others = [f"{name}.{end}" for name in names for end in ("idx", "json")] + beside
        files |= {name: _facts_of(folder / name) for name in others}
        made = json.loads((folder / SETTINGS).read_text())
        manifest = {
            **{key: made[key] for key in ("format", "format_version", "source", "settings")},
            "count": count,
            **described,
            "encoding": plan.packing.encoding,
            "pairs": plan.pairs,
            "class_names": listing.class_names,
            "images_per_label": None if labels is None else _counted(labels),
            **(_means(plan, listing, shards, count) if not listing.of_arrays else {}),
            "failures": failures,
            **left_out,
            "shards": [{"name": name, "records": facts["records"]} for name, facts in shards.items()],
            "files": files,
        }
        write_whole(folder / MANIFEST, to_json(sealed(manifest)))
    return manifest


def _described(plan: Plan, listing: Listing, shards: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What an image or sample is, and the names of the files with what lies beside the samples."""
    size, channels = listing.config.image_size, listing.config.channels
    if not listing.of_arrays:
        pictures = {"image_size": list(size) if isinstance(size, tuple) else size, "channels": channels}
        if listing.conditions is None:
            return pictures, []
        rows = [row for facts in shards.values() for row in facts["conditions"]]
        write_array(plan.folder / CONDITIONS, np.array(rows, np.dtype("<f8")))
        _, names, units = listing.conditions
        return {**pictures, "condition_names": names, "condition_units": units}, [CONDITIONS]
    source = opened_arrays(listing.config, plan.pairs)
    numbers, names = conditions_of(source, listing.config)
    beside = write_beside(plan.folder, source, numbers, _kept(listing, shards))
    facts = facts_of(source, names, shards)
    return {**facts, "encoding_sample": _chosen_before(plan).get("encoding_sample")}, beside


def _means(plan: Plan, listing: Listing, shards: dict[str, Any], count: int) -> dict[str, Any]:
    """The means of the channels of pictures, 0 to 255."""
    size, channels = listing.config.image_size, listing.config.channels
    assert size is not None and channels is not None
    sums = np.sum([facts["sums"] for facts in shards.values() if facts["sums"]], axis=0)
    means = (sums / (count * math.prod(sides(size)))).tolist()
    return {
        "channel_means": means[-channels:],
        "input_channel_means": means[:channels] if plan.pairs else None,
    }


def _kept(listing: Listing, shards: dict[str, Any]) -> np.ndarray:
    """The numbers of the packed samples of arrays."""
    missing = [number for facts in shards.values() for number in facts["missing"]]
    return np.setdiff1d(np.arange(len(listing.names)), missing)


def _failures(plan: Plan, listing: Listing, shards: dict[str, Any], max_bad_fraction: float) -> list[list[str]]:
    """The names of the broken images, each with its reason, unless they are too many."""
    failures = [list(bad) for bad in listing.bad_files]
    failures += [failure for facts in shards.values() for failure in facts["failures"]]
    refuse_if_too_many(
        UserError,
        name=plan.config.data,
        bad_files=[BadFile(*failure) for failure in failures],
        total=listing.total,
        max_bad_fraction=max_bad_fraction,
        flag="",
    )
    return failures


def _labels(listing: Listing, shards: dict[str, Any]) -> np.ndarray | None:
    """The classes of the packed images, or None."""
    if listing.labels is None:
        return None
    if listing.of_arrays:
        return listing.labels[_kept(listing, shards)]
    return np.array([label for facts in shards.values() for label in facts["labels"]], np.int32)


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
    if made["format_version"] not in VERSIONS:
        raise UserError(
            f"{plan.folder}: has format version {made['format_version']}; expected 1 or 2; name a new folder"
        )
    before = {"fit": "crop", **made["settings"]}  # what an earlier version did
    for name, value in plan.settings().items():
        if before.get(name) != value:
            flag = "--" + name.replace("_", "-")
            raise UserError(
                f"{plan.folder}: begun with {flag} {_text(before.get(name))}, and this command has {_text(value)}; "
                "give the same value, or name a new folder"
            )
    for name, value in source.items():
        if made["source"].get(name) != value:
            raise UserError(
                f"{plan.folder}: begun from other images: {name} {made['source'].get(name)} then, {value} in "
                f"{plan.config.data} now; name a new folder"
            )


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
