"""The sums over the real samples: computed once by all ranks, and kept in the run folder for later evaluations."""

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from hvdgan.data import Samples
from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import RunError
from hvdgan.errors.shared_errors import from_all, from_root
from hvdgan.evaluation.fields import PICKED, bin_edges, picked_numbers
from hvdgan.evaluation.sets import RealSet
from hvdgan.evaluation.tally import Plan, Tally, tally_of
from hvdgan.files.replacing import own_partial, whole_file
from hvdgan.recipe import DataSpec
from hvdgan.recipe.display import shown

_LOOKED_AT = 1024
"""real samples whose least and largest numbers bound the histograms' bins, at most"""
_PICKED = 2**18
"""numbers, taken from the first of these samples, that place the bins between the bounds; 32 samples may give more"""
_FORMAT = 7
BINS = 2
"""number of the way in which arrays get their bins; figures of another way cannot be compared"""


def stamp_of(source: Samples) -> list[Any] | None:
    """Facts that change with the files of a source, as JSON types; None if nothing proves that they are the same."""
    try:
        return source.stamp()
    except OSError:
        return None


def edges_of(reals: RealSet, spec: DataSpec, ranks: Ranks) -> np.ndarray:
    """Edges of the histograms' bins, (C, bins + 1), of pictures or of some real samples; every rank calls this."""
    if spec.is_pictures:
        return np.tile(np.arange(257) - 0.5, (spec.channels, 1))
    few = max(32, _PICKED // (PICKED * spec.channels))

    def look() -> list[list[list[float]]] | None:
        ranges, picked = [], []
        for each in reals.first(_LOOKED_AT).batches(ranks):
            if len(each.numbers):
                numbers = shown(each.samples, spec)
                flat = numbers.reshape(-1, spec.channels).astype(np.float64)
                ranges.append([flat.min(axis=0), flat.max(axis=0)])
                picked.append(picked_numbers(numbers[each.numbers < few]).reshape(-1, spec.channels))
        if not ranges:
            return None
        least, most = np.array(ranges).min(axis=0)[0], np.array(ranges).max(axis=0)[1]
        return [[least.tolist()], [most.tolist()], np.concatenate(picked).tolist()]

    found = [each for each in from_all(look, ranks, "numbers of the real samples", names_rank=True) if each]
    if not found:
        raise RunError(f"--data {reals.source.name}: none of the samples to compare with can be read")
    least, most, picked = (np.array([row for each in found for row in each[part]]) for part in range(3))
    low, high = least.min(axis=0), most.max(axis=0)
    return bin_edges(low, high, picked if len(picked) else np.stack([low, high]))


def origin_of(reals: RealSet, plan: Plan, ranks: Ranks) -> np.ndarray:
    """The features of one of the real samples, (d,), about which those of all are summed; every rank calls this."""

    def look() -> list[float] | None:
        extract = plan.features.extract
        for some in reals.first(_LOOKED_AT).batches(ranks) if extract else ():
            if extract and len(some.numbers):
                first: list[float] = np.asarray(extract(some)[0][0], np.float64).tolist()
                return first
        return None

    everyones = from_all(look, ranks, "features of a real sample", names_rank=True)
    return np.array(next((each for each in everyones if each is not None), [0.0] * plan.features.dimension))


def real_tally(
    reals: RealSet, plan: Plan, folder: Path | None, ranks: Ranks, edges: np.ndarray | None
) -> tuple[Tally, bool]:
    """The sums over the real samples, and whether they were read from real.npz of the folder; every rank calls this.

    The file has the latest sums of a run. The edges are those of the histograms' bins, if they are known.
    """
    file = folder and folder / "real.npz"
    key, kept = None, dict[str, np.ndarray]()

    def look() -> list[Any] | None:
        nonlocal key, kept
        key = _key(reals, plan) if file else None  # it looks at all files of the data
        if file and key:
            kept = _read(file, key)
        return [kept["edges"].tolist(), kept["origin"].tolist()] if kept else None

    if known := from_root(look, ranks, "kept statistics"):
        tally = Tally(plan, np.array(known[0]), reals.count, np.array(known[1]))
        if ranks.is_root:
            tally.fill(kept)
        tally.add_up(ranks)  # the other ranks have no samples
        return tally, True
    edges = edges_of(reals, plan.spec, ranks) if edges is None else edges
    tally = tally_of(reals, plan, edges, origin_of(reals, plan, ranks), ranks)
    if tally.fields.count == 0:
        raise RunError(f"--data {reals.source.name}: none of the samples to compare with can be read")
    if file and key:
        with contextlib.suppress(OSError):  # a full disk costs time at the next evaluation, and no run
            _write(file, key, tally)
    return tally, False


def _key(reals: RealSet, plan: Plan) -> str | None:
    """All that the sums depend on; None if they cannot be used again, or nothing proves that the data are the same."""
    source, features, values, stamp = reals.source, plan.features, plan.spec.values, stamp_of(reals.source)
    if features.digest is None or stamp is None:
        return None
    of_data = [source.fingerprint, len(source), stamp, reals.count, reals.mirrored, plan.spec.shape]
    of_plan = [features.digest, features.resize, features.dimension, features.classes, plan.classes, plan.sums_classes]
    return json.dumps([_FORMAT, of_data, of_plan, None if values is None else values.to_json()])


def _read(path: Path, key: str) -> dict[str, np.ndarray]:
    """The arrays of a file; empty if there are none, others, or damaged ones, as the archive's checksums show."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            return {name: file[name] for name in file.files} if str(file["key"]) == key else {}
    except Exception:  # a damaged archive raises many kinds
        return {}


def _write(path: Path, key: str, tally: Tally) -> None:
    """Write the sums, and `mu` and `sigma` of the features, which pytorch-fid reads."""
    arrays = {**tally.arrays(), "edges": tally.edges, "origin": tally.origin, "key": np.array(key)}
    if tally.features is not None and tally.features.count > 1:
        arrays |= {"mu": tally.features.mean, "sigma": tally.features.covariance}
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path, own_partial(path)) as partial, partial.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
