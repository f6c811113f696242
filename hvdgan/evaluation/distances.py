"""Computes the distances of two sets from their sums, the same on every rank."""

import math

import numpy as np

from hvdgan.distributed.ranks import Ranks
from hvdgan.errors.shared_errors import on_all
from hvdgan.evaluation.fields import Rings, field_distances
from hvdgan.evaluation.formulas import Work, frechet_distance, kid, neighbours, sliced_wasserstein
from hvdgan.evaluation.moments import ClassMoments, Moments, places_of_classes
from hvdgan.evaluation.tally import Plan, Tally

FEWEST = 6
"""samples of each set that the distances need, at least: nearest neighbours are looked up to the fifth"""
_SEED_OF_SUBSETS = 0


def distances(fake: Tally, real: Tally, ranks: Ranks) -> dict[str, float]:
    """Compare generated with real samples; every rank calls this."""
    frechet = fake.plan.features.frechet
    found = dict(field_distances(fake.fields, real.fields))
    found["sliced_wasserstein"] = sliced_wasserstein(fake.kept("projections"), real.kept("projections"))
    if fake.plan.classes:
        found["intra_sliced_wasserstein"] = _intra_sliced(fake, real)
    if fake.features is None or real.features is None:
        return found
    found[frechet] = _frechet(fake.features, real.features)
    if fake.of_classes is not None and real.of_classes is not None:
        found[f"intra_{frechet}"] = _intra_frechet(fake.of_classes, real.of_classes)

    def share(work: Work, count: int) -> np.ndarray:
        return _shared(work, count, ranks)

    features = fake.kept("features"), real.kept("features")
    found["kid"], found["kid_deviation"] = kid(*features, seed=_SEED_OF_SUBSETS, share=share)
    found |= neighbours(*features, share=share)
    if fake.scores is not None:
        found["inception_score"], found["inception_score_deviation"] = fake.scores.value()
    return found | (fake.modes.values() if fake.modes is not None else {})


def _frechet(fake: Moments, real: Moments) -> float:
    return frechet_distance(fake.mean, fake.covariance, real.mean, real.covariance)


def _intra_frechet(fake: ClassMoments, real: ClassMoments) -> float:
    if min(fake.counts.min(), real.counts.min()) < 2:
        return math.nan
    return float(np.mean([_frechet(fake.of(label), real.of(label)) for label in range(len(real.counts))]))


def _intra_sliced(fake: Tally, real: Tally) -> float:
    both = [(each.kept("projections"), dict(places_of_classes(each.kept("labels")))) for each in (fake, real)]
    if any(label not in places for _, places in both for label in range(fake.plan.classes)):
        return math.nan
    pairs = ([rows[places[label]] for rows, places in both] for label in range(fake.plan.classes))
    return float(np.mean([sliced_wasserstein(*pair) for pair in pairs]))


def _shared(work: Work, count: int, ranks: Ranks) -> np.ndarray:
    """The results of numbered items, each computed by one rank; an error of one is raised on all."""
    first, past = count * ranks.rank // ranks.size, count * (ranks.rank + 1) // ranks.size
    mine = on_all(lambda: np.asarray(work(first, past), np.float64), ranks, "distances", names_rank=True)
    everyones = np.zeros((count, *mine.shape[1:]))
    everyones[first:past] = mine
    return ranks.total(everyones)


def names(plan: Plan) -> set[str]:
    """The names of the distances that distances() returns."""
    spec, features = plan.spec, plan.features
    found = {"histogram", "sliced_wasserstein"}
    found |= {"spectrum"} if Rings(spec.shape[:-1]).count else set()
    found |= {"channel_correlation"} if spec.channels > 1 else set()
    found |= {"condition_correlation"} if spec.conditions else set()
    found |= {"intra_sliced_wasserstein"} if plan.classes else set()
    if not features.dimension:
        return found
    found |= {features.frechet, "kid", "kid_deviation", "precision", "recall", "density", "coverage"}
    found |= {f"intra_{features.frechet}"} if plan.sums_classes else set()
    found |= {"modes", "mode_good", "mode_kl"} if features.has_modes else set()
    return found | ({"inception_score", "inception_score_deviation"} if features.classes else set())
