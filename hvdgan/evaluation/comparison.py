"""Compares generated with real samples over all ranks, and says all that the figures need to be compared."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from hvdgan.data import BadFile, Samples
from hvdgan.distributed.affinity import cores_of_rank
from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import RunError, UserError, in_one_line
from hvdgan.errors.shared_errors import agree, from_root
from hvdgan.evaluation.distances import FEWEST, distances, names
from hvdgan.evaluation.feature_extractors import open_features, recipe_features
from hvdgan.evaluation.held_out import Refuse
from hvdgan.evaluation.real_statistics import BINS, real_tally, stamp_of
from hvdgan.evaluation.sets import GeneratedSet, Reading, RealSet, SampleSet, in_short, left_out
from hvdgan.evaluation.tally import Plan, Tally, tally_of
from hvdgan.recipe import Recipe
from hvdgan.recipe.nets import Nets
from hvdgan.settings.config import Config
from hvdgan.settings.evaluation import FeatureConfig

Say = Callable[[str], None]
Sources = tuple[Samples, Samples | None]
"""mapped samples to train on, and held-out ones or None"""
_LARGEST_BATCH = 64
_BY_DEFAULT = 512
_SHARE = 0.02
"""part of a run's time that comparisons by default may take"""
_SECONDS = 1.5e-7
"""time that a number of a sample takes on a core, as long as no comparison has been measured"""


class Pace:
    """Lets the comparisons of a run take at most 2 % of its time; every rank gets the same answers."""

    def __init__(self, seconds: float, count: int, ranks: Ranks) -> None:
        self._next, self._count, self._ranks = seconds, count, ranks
        """time that the next comparison takes, as the last one has shown, and the number of its samples"""
        self._begin, self._was_said = time.perf_counter(), False
        self.spent = 0.0
        """time of the comparisons so far"""

    def add(self, seconds: float, later: float) -> None:
        """Add the time of a comparison, and how long the next one takes, which has the sums over the real samples."""
        self._next, self.spent = later, self.spent + seconds

    def allows(self, where: str, seen: int, say: Say) -> bool:
        """Check if there is time for a comparison, `seen` samples after the start, or say once why not."""
        mine = self.spent, self._next, time.perf_counter() - self._begin
        spent, seconds, passed = from_root(lambda: mine, self._ranks, "the time of a comparison")
        if not spent and self._count > _SHARE * seen:  # to generate a sample takes less than to train on one
            why = f"{self._count} samples are more than 2 % of the {seen:,} trained on since the start"
        elif spent + seconds > _SHARE * passed:
            why = f"with it they would take {spent + seconds:.1f} s, more than 2 % of {passed:.1f} s since the start"
        else:
            return True
        if not self._was_said:
            say(f"{where}: no comparison with real samples: {why}; --eval-samples {self._count} always compares")
        self._was_said = True
        return False

    def end(self, where: str, failure: Exception, say: Say) -> None:
        """Allow no comparison any more, because one has failed."""
        self._next, self._was_said = math.inf, True
        say(f"warning: {where}: samples are no longer compared with real ones: {in_one_line(failure)}")


class Comparison:
    """Compares a set of samples with real ones, over all ranks; a UserError if there are too few.

    `folder` keeps the sums over the real samples; None: they are not kept.
    """

    def __init__(self, chosen: SampleSet, reals: RealSet, plan: Plan, folder: Path | None, ranks: Ranks) -> None:
        self._chosen, self.reals, self._plan, self._folder, self._ranks = chosen, reals, plan, folder, ranks
        self.names = {f"eval/{name}" for name in names(plan)}
        """names of the distances, as metrics.jsonl has them"""
        self._real: Tally | None = None
        self.pace: Pace | None = None
        """when to compare, if nobody has said it"""
        self._counts = dict[str, int]()
        """numbers of the samples measured, and of those among them that are compared one by one"""
        if min(chosen.count, reals.count) < FEWEST:
            flag = "samples" if chosen.count < FEWEST else "real-samples"
            raise UserError(
                f"--eval-{flag}: {chosen.count} samples are compared with {reals.count} real ones; the distances need "
                f"at least {FEWEST} of each; raise it, or --{flag} of hvdgan.evaluate"
            )

    def __str__(self) -> str:
        return (
            f"{self._chosen.count:,} generated samples, compared with {self.reals.count:,} real ones; features: "
            f"{self._plan.features.name}"
        )

    @property
    def bad_files(self) -> list[BadFile]:
        """Broken samples of both sets that this rank has met."""
        return [*self.reals.bad_files, *self._chosen.bad_files]

    def agree(self) -> None:
        """Check that all ranks have the same features, whose file may differ between hosts; every rank calls this."""
        features = self._plan.features
        what: dict[str, Any] = {"name": features.name, "SHA-256": features.digest, "number": features.dimension}
        agree(what, self._ranks, "the features of evaluations")

    def trace(self, refuse: Refuse, where: str) -> None:
        """Trace what generates the samples, so that a mistake is found before they are compared."""
        if isinstance(self._chosen, GeneratedSet):
            refuse(self._chosen.traced, f"{where}: generate()")

    def remarks(self) -> Iterator[str]:
        """Lines to log at the start: figures named fid that are not the published one, and too few samples."""
        if self._plan.features.published is False:
            yield (
                "warning: the size or the MD5 of the --inception file is not that of the graph that published FIDs "
                "use, so eval/fid cannot be compared with them; hvdgan features fetch gets the published file"
            )
        dimension, fewest = self._plan.features.dimension, min(self._chosen.count, self.reals.count)
        if fewest <= dimension:
            yield (
                f"warning: {fewest:,} samples for {dimension:,} features: their covariance is singular, and the "
                f"Fréchet distance is too large; compare more than {dimension:,} samples, better {10 * dimension:,}"
            )

    def __call__(self, say: Say) -> dict[str, float]:
        """Return the distances by their names in metrics.jsonl, and log how they were found; every rank calls this."""
        # NumPy's library would start a thread for each core of the host in every rank, and they wait by spinning. This
        # takes longer than the small products without features.
        threads = cores_of_rank(self._ranks) if self._plan.features.dimension else 1
        with threadpool_limits(threads, user_api="blas"):
            return self._compared(say)

    def _compared(self, say: Say) -> dict[str, float]:
        is_first, begin = self._real is None, time.perf_counter()
        real = self._real_tally(say)
        begin_of_made = time.perf_counter()
        if real.fields.count < FEWEST:
            raise RunError(
                f"--data {self.reals.source.name}: {real.fields.count} of the {self.reals.count} samples to compare "
                f"with can be read; the distances need at least {FEWEST}"
            )
        made = tally_of(self._chosen, self._plan, real.edges, real.origin, self._ranks)
        self._check_measured(made, say)
        self._counts = {"samples": made.fields.count, "real_samples": real.fields.count}
        self._counts |= {"kept_samples": made.kept_count, "kept_real_samples": real.kept_count}
        found = distances(made, real, self._ranks)
        seconds = time.perf_counter() - begin_of_made
        if self.pace:
            self.pace.add(time.perf_counter() - begin, seconds)
        for line in self._about_classes(found) if is_first else ():
            say(line)
        say(
            f"{made.fields.count:,} samples compared with {real.fields.count:,} real ones in "
            f"{seconds:.1f} s (features: {self._plan.features.name})"
        )
        return {f"eval/{name}": value for name, value in found.items()}

    def _real_tally(self, say: Say) -> Tally:
        """The sums over the real samples; those of features that change are computed anew each time."""
        if self._real is not None and self._plan.features.digest is not None:
            return self._real
        begin, edges = time.perf_counter(), None if self._real is None else self._real.edges
        self._real, was_kept = real_tally(self.reals, self._plan, self._folder, self._ranks, edges)
        how = "read" if was_kept else "computed"
        say(f"statistics of {self._real.fields.count:,} real samples {how} in {time.perf_counter() - begin:.1f} s")
        broken = self.reals.count - self._real.fields.count
        if (missing := left_out(broken, self.reals.count, self.reals.bad_files, self._ranks)) is not None:
            say(f"--data {self.reals.source.name}: {missing}; they are left out")
        return self._real

    def _check_measured(self, made: Tally, say: Say) -> None:
        """Log how many of the chosen samples are left out, or refuse to measure the others; every rank calls this."""
        chosen, count = self._chosen, made.fields.count
        missing = left_out(chosen.count - count, chosen.count, chosen.bad_files, self._ranks)
        if missing is None:
            return
        flag, most = ("--images", chosen.max_bad_fraction) if isinstance(chosen, RealSet) else ("--data", 1.0)
        what = f"{flag} {chosen.source.name}: {missing}"
        if count < FEWEST:
            raise RunError(f"{what}; the distances need at least {FEWEST}; repair the broken ones")
        if chosen.count - count > most * chosen.count:
            raise RunError(f"{what}; repair or remove them: the run allows a fraction of {most:g} (--max-bad-fraction)")
        say(f"{what}; they are left out")

    def _about_classes(self, found: dict[str, float]) -> Iterator[str]:
        """Lines to log if distances within classes are left out or undefined although both sets have classes."""
        plan, chosen = self._plan, self._chosen
        if isinstance(chosen, RealSet) and chosen.has_classes and self.reals.has_classes and not plan.classes:
            yield (
                f"no distances within classes: --images {chosen.source.name} has the classes "
                f"{in_short(chosen.class_names)}, and the data have {in_short(self.reals.class_names)}"
            )
        if plan.classes and plan.features.dimension and not plan.sums_classes:
            yield (
                f"no eval/intra_{plan.features.frechet}: the sums of {plan.features.dimension:,} features within "
                f"{plan.classes:,} classes would not fit into 512 MiB on each rank"
            )
        if undefined := [f"eval/{name}" for name, value in found.items() if "intra" in name and math.isnan(value)]:
            yield f"{', '.join(undefined)}: undefined (null in the files), because a class has too few samples"

    def with_samples(self, chosen: SampleSet) -> "Comparison | None":
        """The comparison of other samples with the same real ones; None if the features change with the networks."""
        if self._plan.features.digest is None:
            return None
        other = Comparison(chosen, self.reals, self._plan, self._folder, self._ranks)
        other._real = self._real
        return other

    def scale(self) -> dict[str, Any]:
        """What the figures depend on besides the networks and the seed, as JSON types."""
        features = self._plan.features
        facts = {"samples": self._chosen.count, "real_samples": self.reals.count, "mirrored": self.reals.mirrored}
        facts |= {"features": features.digest or features.name, "resize": features.resize}
        return {**facts, "data": self.reals.source.fingerprint, **self._more()}

    def probe(self) -> list[Any]:
        """What else tells figures of the same scale apart: the files of the data, and features that change."""
        return [stamp_of(self.reals.source), self._plan.features.probe]

    def facts(self) -> dict[str, Any]:
        """What the figures need to be compared with others, as JSON types; to be called after an evaluation."""
        features, source = self._plan.features, self.reals.source
        return {
            **self._counts,
            "mirrored": self.reals.mirrored,
            "data": source.name,
            "data_fingerprint": source.fingerprint,
            "features": features.name,
            "features_sha256": None if features.name == "none" else features.digest,
            "dimension": features.dimension,
            "resize": features.resize,
            "published": features.published,
            "ranks": self._ranks.size,
            **self._more(),
        }

    def _more(self) -> dict[str, Any]:
        """The version of the bins of arrays' histograms, and what identifies samples that another program made."""
        bins = {} if self._plan.spec.is_pictures else {"bins": BINS}
        if not isinstance(self._chosen, RealSet):
            return bins
        source = self._chosen.source
        return {**bins, "images_fingerprint": source.fingerprint, "images_stamp": stamp_of(source)}


def comparison_in_training(
    config: Config, recipe: Recipe, nets: Nets, sources: Sources, ranks: Ranks, *, threads: int, folder: Path
) -> Comparison | None:
    """The comparison of a run that trains; None if there is none. Contains no collective."""
    settings, by_default = config.evaluation, config.evaluation.eval_samples is None
    if not settings.eval_samples:
        given = {"features": settings.eval_features, "real-samples": settings.eval_real_samples}
        for name, value in given.items():
            if value not in ("none", None):
                raise UserError(f"--eval-{name} {value}: no samples are compared; add --eval-samples, such as 10000")
    if settings.eval_samples == 0 or (by_default and recipe.domains):
        return None
    batch_size = min(_LARGEST_BATCH, -(-config.global_batch_size // ranks.size))
    reading, count = Reading(batch_size, threads), settings.eval_samples or _BY_DEFAULT
    real_count = count if settings.eval_real_samples is None else settings.eval_real_samples
    reals = real_set(recipe, sources, reading, count=real_count, mirrored=config.mirrored_axes)
    if by_default and reals.count < FEWEST:
        return None
    chosen = GeneratedSet(recipe, nets, reals.source, reading, seed=config.seed, count=count)
    plan = plan_for(settings, recipe, nets, (chosen, reals), batch_size)
    comparison = Comparison(chosen, reals, plan, None if by_default else folder, ranks)
    if by_default:
        numbers = (count + reals.count) * math.prod(recipe.data.shape)
        comparison.pace = Pace(_SECONDS * numbers / ranks.size, count, ranks)
    return comparison


def weights_facts(config: Config, recipe: Recipe, *, averaged: bool) -> dict[str, Any]:
    """Which weights the samples are drawn with, as JSON types."""
    if not (averaged and recipe.ema) or config.ema_decay == 0:
        return {"weights": "trained"}
    return {"weights": "averaged", "ema_decay": config.ema_decay, "ema_half_life": config.ema_half_life}


def real_set(recipe: Recipe, sources: Sources, reading: Reading, *, count: int, mirrored: Sequence[str]) -> RealSet:
    """The real samples: those trained on, or the held-out ones if the recipe's samples start from data.

    The latter are not mirrored, because the samples that are made of them are not.
    """
    training, held_out = sources
    source = held_out if recipe.shows_data and held_out is not None else training
    return RealSet(source, recipe.data, reading, count=count, mirrored=() if recipe.shows_data else mirrored)


def plan_for(
    settings: FeatureConfig, recipe: Recipe, nets: Nets, both: tuple[SampleSet, RealSet], batch_size: int
) -> Plan:
    """What is summed over two sets, with the features that the settings name."""
    spec = both[0].spec if isinstance(both[0], RealSet) else recipe.data
    classes, name = _classes_of(*both), settings.eval_features
    if name == "recipe":
        # Labels of other samples may mean other classes than the data's.
        known = dataclasses.replace(spec, num_classes=0) if isinstance(both[0], RealSet) and not classes else spec
        if spec.array_shapes:  # those of both sets; features() that reads others is refused
            shapes = {name: spec.array_shapes[name] for name in sorted(both[0].array_names & both[1].array_names)}
            known = dataclasses.replace(known, array_shapes=shapes)
        return Plan(known, recipe_features(recipe, nets, known, batch_size=batch_size), classes)
    inception, resize = settings.inception, settings.eval_resize
    return Plan(spec, open_features(name, spec, inception=inception, resize=resize, batch_size=batch_size), classes)


def _classes_of(chosen: SampleSet, reals: RealSet) -> int:
    """Number of classes that both sets have; 0 if one has none, or if those of another program are not the data's."""
    if not (chosen.has_classes and reals.has_classes):
        return 0
    # Each folder of samples numbers its own classes, so the same number may mean another class.
    is_other = isinstance(chosen, RealSet) and chosen.class_names != reals.class_names
    return 0 if is_other else reals.source.num_classes
