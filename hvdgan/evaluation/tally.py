"""Sums over a set of samples, in float64, from which all distances are computed; memory does not grow with the set."""

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from hvdgan.cli.errors import RunError
from hvdgan.cli.shared_errors import on_all
from hvdgan.distributed.ranks import Ranks
from hvdgan.evaluation.class_score import ClassScore
from hvdgan.evaluation.fields import FieldSums
from hvdgan.evaluation.moments import ClassMoments, Moments
from hvdgan.evaluation.sets import SampleBatch, SampleSet
from hvdgan.evaluation.sliced import directions
from hvdgan.recipe import DataSpec
from hvdgan.recipe.showing import shown

KEPT = 10_000
"""samples whose features are kept for distances that need them one by one, at most: the first ones of the set"""
_SEED_OF_DIRECTIONS = 0
_LONGEST = 4096
"""numbers of a sample that are projected without features, at most"""
MOST_BYTES_OF_CLASSES = 2**29
"""bytes of the features' moments of all classes, at most"""
COLLECTED_BYTES = 2**25
"""bytes of features that are collected before they are multiplied: a product costs as much for one as for hundreds"""
Extract = Callable[[SampleBatch], tuple[np.ndarray, np.ndarray | None]]
"""function of samples as networks see them: their features (N, d) and class probabilities (N, c), or None"""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is summed over both sets.

    Args:
        spec: facts about the data.
        extract: features; None: the samples are compared without a network.
        dimension: number of features.
        probabilities: number of classes of the features' network; 0: it has none.
        classes: number of classes of the data, if both sets have them; else 0.
        fewest_of_class: number of samples of the rarest class of either set, at most.
    """

    spec: DataSpec
    extract: Extract | None = None
    dimension: int = 0
    probabilities: int = 0
    classes: int = 0
    fewest_of_class: int = 2

    @property
    def bytes_of_classes(self) -> int:
        """Bytes of the features' moments of all classes."""
        return self.classes * self.dimension**2 * 8

    @property
    def sums_classes(self) -> bool:
        """Whether the features' moments of each class are summed, too: a covariance needs two samples."""
        return self.fewest_of_class >= 2 and 0 < self.bytes_of_classes <= MOST_BYTES_OF_CLASSES

    @property
    def projected(self) -> int:
        """Number of the numbers of a sample whose projections are compared."""
        return self.dimension or shortened(np.zeros((1, *self.spec.shape), np.float32)).shape[1]


class Tally:
    """Sums over a set of samples."""

    def __init__(self, plan: Plan, edges: np.ndarray, count: int, origin: np.ndarray | None = None) -> None:
        self.plan, self.edges, self.count = plan, edges, count
        self.origin = np.zeros(plan.dimension) if origin is None else origin
        kept = min(count, KEPT)
        self.fields = FieldSums(plan.spec.shape, edges, conditions=len(plan.spec.conditions))
        self.features = Moments.none(self.origin) if plan.dimension else None
        self.of_classes = ClassMoments(plan.classes, self.origin) if plan.sums_classes else None
        self._collected: list[tuple[np.ndarray, np.ndarray | None]] = []
        self.scores = ClassScore(plan.probabilities, count) if plan.probabilities else None
        self._directions = directions(_SEED_OF_DIRECTIONS, plan.projected)
        self._kept = {
            "features": np.zeros((kept, plan.dimension), np.float32),
            "projections": np.zeros((kept, self._directions.shape[1]), np.float32),
            "labels": np.zeros(kept, np.float32),
            "present": np.zeros(kept, np.float32),
        }

    def add(self, some: SampleBatch) -> None:
        """Add samples; the moments have all of them when arrays() is called."""
        if not len(some.numbers):
            return
        _check_finite("sample", some.numbers, some.samples)
        in_units = _in_units(some.samples, self.plan.spec)
        _check_finite("sample", some.numbers, in_units, " in the data's units")
        self.fields.add(in_units, physical_conditions(some.conditions, self.plan.spec))
        features, probabilities = None, None
        if self.plan.extract is not None:
            features, probabilities = self.plan.extract(some)
            _check_finite("features of sample", some.numbers, features)
            self._collected.append((features, some.labels))
            if sum(each.nbytes for each, _ in self._collected) >= COLLECTED_BYTES:
                self._multiply()
        if self.scores is not None:
            assert probabilities is not None
            self.scores.add(probabilities, some.numbers)
        self._keep(some, features)

    def _multiply(self) -> None:
        """Add the collected features to the moments."""
        if not self._collected:
            return
        features, labels = zip(*self._collected, strict=True)
        together, self._collected = np.concatenate(features), []
        assert self.features is not None
        self.features.add(together)
        if self.of_classes is not None:
            self.of_classes.add(together, np.concatenate(labels))

    def _keep(self, some: SampleBatch, features: np.ndarray | None) -> None:
        first = some.numbers < len(self._kept["present"])
        if not first.any():
            return
        places = some.numbers[first]
        vectors = shortened(some.samples[first]) if features is None else features[first]
        self._kept["projections"][places] = vectors.astype(np.float64) @ self._directions
        self._kept["present"][places] = 1
        if features is not None:
            self._kept["features"][places] = vectors
        if some.labels is not None:
            self._kept["labels"][places] = some.labels[first]

    def kept(self, name: str) -> np.ndarray:
        """The kept features, projections or labels of the samples that could be read, in their order."""
        return self._kept[name][self._kept["present"] > 0]

    @property
    def kept_count(self) -> int:
        """Number of samples that are kept and could be read."""
        return int(np.count_nonzero(self._kept["present"]))

    def arrays(self) -> dict[str, np.ndarray]:
        """All sums by name, floating-point; those of several ranks add up."""
        self._multiply()
        parts = {"fields": self.fields, "features": self.features, "classes": self.of_classes, "scores": self.scores}
        found = {f"kept/{name}": values for name, values in self._kept.items()}
        for name, part in parts.items():
            if part is not None:
                found |= {f"{name}/{key}": values for key, values in part.arrays().items()}
        return found

    def fill(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take sums that arrays() returned."""
        if {name: each.shape for name, each in self.arrays().items()} != {n: each.shape for n, each in arrays.items()}:
            raise ValueError("these are the sums of another plan")
        part = {
            name: {key.partition("/")[2]: values for key, values in arrays.items() if key.startswith(f"{name}/")}
            for name in {key.partition("/")[0] for key in arrays}
        }
        self._kept = part["kept"]
        self.fields = FieldSums.of_arrays(part["fields"], self.plan.spec.shape, self.edges)
        if self.features is not None:
            self.features = Moments.of_arrays(part["features"], self.origin)
        if self.scores is not None:
            self.scores = ClassScore.of_arrays(part["scores"], self.count)
        if self.of_classes is not None:
            self.of_classes = ClassMoments.of_arrays(part["classes"], self.origin)


def tally_of(chosen: SampleSet, plan: Plan, edges: np.ndarray, origin: np.ndarray, ranks: Ranks) -> Tally:
    """The sums over all samples of a set; every rank calls this, and computes its part."""

    def summed() -> Tally:
        tally = Tally(plan, edges, chosen.count, origin)
        for some in chosen.batches(ranks):
            tally.add(some)
        return tally

    tally = on_all(summed, ranks, "evaluation", names_rank=True)
    tally.fill(_totals(tally.arrays(), ranks))
    return tally


def _totals(arrays: Mapping[str, np.ndarray], ranks: Ranks) -> dict[str, np.ndarray]:
    """The sums of all ranks' arrays, by one reduction for each type of their numbers."""
    if ranks.size == 1:
        return dict(arrays)
    found: dict[str, np.ndarray] = {}
    for dtype in dict.fromkeys(each.dtype for each in arrays.values()):
        some = {name: each for name, each in arrays.items() if each.dtype == dtype}
        whole = ranks.total(np.concatenate([each.ravel() for each in some.values()]))
        parts = np.split(whole, np.cumsum([each.size for each in some.values()])[:-1])
        found |= {name: part.reshape(each.shape) for (name, each), part in zip(some.items(), parts, strict=True)}
    return found


def shortened(samples: np.ndarray) -> np.ndarray:
    """Samples (N, ..., C) as vectors (N, d) of at most 4,096 numbers: axes in space are halved to means, if need be."""
    axis = 1
    while samples[0].size > _LONGEST and max(samples.shape[1:-1], default=1) > 1:
        axis = 1 + int(np.argmax(samples.shape[1:-1]))
        length = samples.shape[axis] // 2 * 2
        pairs = np.take(samples, np.arange(length), axis=axis)
        shape = (*samples.shape[:axis], length // 2, 2, *samples.shape[axis + 1 :])
        samples = pairs.reshape(shape).mean(axis=axis + 1)
    return samples.reshape(len(samples), -1)


def physical_conditions(conditions: np.ndarray | None, spec: DataSpec) -> np.ndarray | None:
    """Conditions (N, k) in the units of the data; None where the data have none."""
    if conditions is None or not spec.conditions or spec.values is None or spec.values.conditions is None:
        return None
    return spec.values.conditions.inverse(conditions)


def _in_units(samples: np.ndarray, spec: DataSpec) -> np.ndarray:
    """Samples in the units of the data; infinite where an exponential or a power of the maps overflows."""
    with np.errstate(over="ignore", invalid="ignore"):  # the caller checks that they are finite
        return shown(samples, spec)


def _check_finite(what: str, numbers: np.ndarray, values: np.ndarray, where: str = "") -> None:
    finite = np.isfinite(values).reshape(len(values), -1).all(axis=1)
    if not finite.all():
        raise RunError(
            f"evaluation: {what} {int(numbers[~finite][0])}{where} is not finite, and {int((~finite).sum())} of "
            f"{len(values)} of its batch are not: the networks have diverged, or the features or the data's units "
            "overflow; use an earlier checkpoint"
        )
