"""The sums over the real samples: computed once by all ranks, and kept in the run folder for later evaluations."""

import contextlib
import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from hvdgan.cli.errors import RunError
from hvdgan.cli.files.replacing import own_partial, whole_file
from hvdgan.cli.shared_errors import from_all, from_root
from hvdgan.data import Samples
from hvdgan.distributed.ranks import Ranks
from hvdgan.evaluation.bins import PICKED, bin_edges, picked_numbers
from hvdgan.evaluation.sets import RealSet
from hvdgan.evaluation.tally import Plan, Tally, tally_of
from hvdgan.recipe import DataSpec
from hvdgan.recipe.showing import shown

_LOOKED_AT = 1024
"""real samples whose least and largest numbers bound the histograms' bins, at most"""
_PICKED = 2**18
"""numbers, taken from the first of these samples, that place the bins between the bounds; 32 samples may give more"""
_FORMAT = 4
_OF_OTHERS = ("key", "mu", "sigma")
"""arrays of the file that are no sums"""
BINS = 2
"""number of the way in which arrays get their bins; figures of another way cannot be compared"""


@dataclasses.dataclass(frozen=True)
class StatisticsCache:
    """Where the sums are kept: the latest ones of a run, in one file.

    folder: folder of the file; None: nothing is kept.
    features: digest of the features; None: they change, so that their sums are not kept.
    """

    folder: Path | None
    features: str | None

    def place(self, reals: RealSet, facts: dict[str, Any]) -> tuple[str, str] | None:
        """The file of some sums, and a digest of all that they depend on.

        None if they are not kept, or if nothing proves that the data have not changed.

        Args:
            reals: real samples.
            facts: other facts that the sums depend on, as JSON types.
        """
        source, stamp = reals.source, stamp_of(reals.source)
        if self.folder is None or self.features is None or stamp is None:
            return None
        key = [_FORMAT, self.features, source.fingerprint, len(source), stamp, reals.count, facts]
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        return str(self.folder / "real.npz"), digest


def stamp_of(source: Samples) -> list[Any] | None:
    """Facts that change with the files of a source, as JSON types; None if nothing proves that they are the same."""
    try:
        return source.stamp()
    except OSError:
        return None


def edges_of(reals: RealSet, spec: DataSpec, ranks: Ranks) -> np.ndarray:
    """Edges of the histograms' bins, (C, bins + 1): the levels of pictures, else from numbers of some real samples.

    Every rank calls this.
    """
    if spec.is_pictures:
        return np.tile(np.arange(257) - 0.5, (spec.channels, 1))
    some = reals.first(_LOOKED_AT)

    few = max(32, _PICKED // (PICKED * spec.channels))

    def look() -> list[list[list[float]]] | None:
        ranges, picked = [], []
        for each in some.batches(ranks):
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
    """The features of one of the real samples, (d,), about which those of all are summed; zeros if none can be read.

    Every rank calls this.
    """
    extract = plan.extract
    if extract is None:
        return np.zeros(plan.dimension)

    def look() -> list[float] | None:
        for some in reals.first(_LOOKED_AT).batches(ranks):
            if len(some.numbers):
                first: list[float] = np.asarray(extract(some)[0][0], np.float64).tolist()
                return first
        return None

    everyones = from_all(look, ranks, "features of a real sample", names_rank=True)
    return np.array(next((each for each in everyones if each is not None), [0.0] * plan.dimension))


def real_tally(
    reals: RealSet, plan: Plan, kept: StatisticsCache, ranks: Ranks, facts: dict[str, Any], edges: np.ndarray | None
) -> tuple[Tally, bool]:
    """The sums over the real samples, read from the file that has them, or computed and kept; every rank calls this.

    The file is one that pytorch-fid reads, too: it holds `mu` and `sigma` of the features.
    """
    place = from_root(lambda: kept.place(reals, facts), ranks, "kept statistics")
    arrays = _read(*place) if place and ranks.is_root else None
    mine = None if arrays is None else {name: list(each.shape) for name, each in arrays.items()}
    shapes = ranks.gather(mine, "kept statistics")[0]
    if shapes:
        everyones = {
            name: ranks.broadcast_array(arrays[name] if arrays else np.zeros(shape, _type_of(name)))
            for name, shape in shapes.items()
        }
        tally = Tally(plan, everyones.pop("edges"), reals.count, everyones.pop("origin"))
        tally.fill(everyones)
        return tally, True
    edges = edges_of(reals, plan.spec, ranks) if edges is None else edges
    tally = tally_of(reals, plan, edges, origin_of(reals, plan, ranks), ranks)
    if tally.fields.count == 0:
        raise RunError(f"--data {reals.source.name}: none of the samples to compare with can be read")
    if place and ranks.is_root:
        with contextlib.suppress(OSError):  # a full disk costs time at the next evaluation, and no run
            _write(*place, tally)
    return tally, False


def _type_of(name: str) -> Any:
    return np.float32 if name.startswith("kept/") else np.float64


def _read(path: str, key: str) -> dict[str, np.ndarray] | None:
    """The sums of a file; None if there are none, others, or damaged ones, as the archive's checksums show."""
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            if str(file["key"]) != key:
                return None
            return {name: file[name] for name in file.files if name not in _OF_OTHERS}
    except Exception:  # a damaged archive raises many kinds
        return None


def _write(path: str, key: str, tally: Tally) -> None:
    arrays = {**tally.arrays(), "edges": tally.edges, "origin": tally.origin}
    arrays = {name: np.asarray(each, _type_of(name)) for name, each in arrays.items()}
    of_others = {}
    if tally.features is not None and tally.features.count > 1:
        of_others = {"mu": tally.features.mean, "sigma": tally.features.covariance}
    whole = Path(path)
    whole.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(whole, own_partial(whole)) as partial, partial.open("wb") as file:
        np.savez(file, **arrays, **of_others, key=np.array(key))  # type: ignore[arg-type]
