"""Sums over a set of samples, in float64, from which all distances are computed; memory does not grow with the set."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import RunError
from hvdgan.errors.shared_errors import on_all
from hvdgan.evaluation.feature_extractors import Features
from hvdgan.evaluation.fields import FieldSums
from hvdgan.evaluation.formulas import ClassScore, Modes, directions
from hvdgan.evaluation.moments import ClassMoments, Moments
from hvdgan.evaluation.sets import SampleBatch, SampleSet
from hvdgan.recipe import DataSpec
from hvdgan.recipe.display import shown

KEPT = 10_000
"""samples whose features are kept for distances that need them one by one, at most: the first ones of the set"""
_SEED_OF_DIRECTIONS = 0
_LONGEST = 4096
"""numbers of a sample that are projected without features, at most"""
MOST_BYTES_OF_CLASSES = 2**29
"""bytes of the features' moments of all classes, at most"""
COLLECTED_BYTES = 2**25
"""bytes of features that are collected before they are multiplied: a product costs as much for one as for hundreds"""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is summed over both sets; `classes` is 0 unless both have labels."""

    spec: DataSpec
    features: Features
    classes: int = 0

    @property
    def sums_classes(self) -> bool:
        """Whether the features' moments of each class are summed, too."""
        return 0 < self.classes * self.features.dimension**2 * 8 <= MOST_BYTES_OF_CLASSES


class Tally:
    """Sums over a set of `count` samples, with edges of the histograms' bins and an origin of the features' moments."""

    def __init__(self, plan: Plan, edges: np.ndarray, count: int, origin: np.ndarray) -> None:
        self.plan, self.edges, self.origin = plan, edges, origin
        dimension, classes = plan.features.dimension, plan.features.classes
        self.fields = FieldSums(plan.spec.shape, edges, conditions=len(plan.spec.conditions))
        self.features = Moments(origin) if dimension else None
        self.of_classes = ClassMoments(plan.classes, origin) if plan.sums_classes else None
        self.scores = ClassScore(classes, count) if classes else None
        self.modes = Modes(classes) if plan.features.has_modes else None
        self._collected: list[tuple[np.ndarray, np.ndarray | None]] = []
        projected = dimension or shortened(np.zeros((1, *plan.spec.shape), np.float32)).shape[1]
        self._directions, kept = directions(_SEED_OF_DIRECTIONS, projected), min(count, KEPT)
        self._kept = {
            "features": np.zeros((kept, dimension), np.float32),
            "projections": np.zeros((kept, self._directions.shape[1]), np.float32),
            "labels": np.zeros(kept, np.float32),
            "present": np.zeros(kept, np.float32),
        }

    def add(self, some: SampleBatch) -> None:
        """Add samples; the moments have all of them when arrays() is called."""
        if not len(some.numbers):
            return
        _check_finite("sample", some.numbers, some.samples)
        spec, conditions = self.plan.spec, some.conditions
        with np.errstate(over="ignore", invalid="ignore"):  # exponentials and powers of maps may overflow
            in_units = shown(some.samples, spec)
        _check_finite("sample", some.numbers, in_units, " in the data's units")
        maps = spec.values and spec.values.conditions
        if conditions is not None and maps and spec.conditions:
            conditions = maps.inverse(conditions)
        self.fields.add(in_units, conditions)
        features, probabilities = None, None
        if self.plan.features.extract is not None:
            features, probabilities = self.plan.features.extract(some)
            _check_finite("features of sample", some.numbers, features)
            self._collected.append((features, some.labels))
            if sum(each.nbytes for each, _ in self._collected) >= COLLECTED_BYTES:
                self._multiply()
        if self.scores is not None and probabilities is not None:
            _check_finite("class probabilities of sample", some.numbers, probabilities)
            self.scores.add(probabilities, some.numbers)
            if self.modes is not None:
                self.modes.add(probabilities)
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
        own = (self.fields, self.features, self.of_classes, self.scores, self.modes)
        parts = dict(zip(("fields", "features", "classes", "scores", "modes"), own, strict=True))
        found = {f"kept/{name}": values for name, values in self._kept.items()}
        for name, part in parts.items():
            if part is not None:
                found |= {f"{name}/{key}": values for key, values in part.arrays().items()}
        return found

    def add_up(self, ranks: Ranks) -> None:
        """Add the sums of all ranks, by one reduction for each type of their numbers; every rank calls this."""
        arrays = list(self.arrays().values())  # for one rank, too: what is collected is multiplied
        if ranks.size == 1:
            return
        for dtype in dict.fromkeys(each.dtype for each in arrays):
            some = [each for each in arrays if each.dtype == dtype]
            whole = ranks.total(np.concatenate([each.ravel() for each in some]))
            for own, part in zip(some, np.split(whole, np.cumsum([each.size for each in some])[:-1]), strict=True):
                own[...] = part.reshape(own.shape)

    def fill(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take sums that arrays() of a tally of the same plan returned."""
        for name, own in self.arrays().items():
            own[...] = arrays[name]


def tally_of(chosen: SampleSet, plan: Plan, edges: np.ndarray, origin: np.ndarray, ranks: Ranks) -> Tally:
    """The sums over all samples of a set; every rank calls this, and computes its part."""

    def summed() -> Tally:
        tally = Tally(plan, edges, chosen.count, origin)
        for some in chosen.batches(ranks):
            tally.add(some)
        return tally

    tally = on_all(summed, ranks, "evaluation", names_rank=True)
    tally.add_up(ranks)
    return tally


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


def _check_finite(what: str, numbers: np.ndarray, values: np.ndarray, where: str = "") -> None:
    finite = np.isfinite(values).reshape(len(values), -1).all(axis=1)
    if not finite.all():
        raise RunError(
            f"evaluation: {what} {int(numbers[~finite][0])}{where} is not finite, and {int((~finite).sum())} of "
            f"{len(values)} of its batch are not: the networks have diverged, or the features or the data's units "
            "overflow; use an earlier checkpoint"
        )
