"""Compares generated with real samples over all ranks, and says all that the figures need to be compared."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from hvdgan.cli.errors import RunError, UserError
from hvdgan.cli.shared_errors import agree
from hvdgan.data import BadFile
from hvdgan.distributed.affinity import cores_of_rank
from hvdgan.distributed.ranks import Ranks
from hvdgan.evaluation.distances import FEWEST, distances, names
from hvdgan.evaluation.held_out import Refuse
from hvdgan.evaluation.real_statistics import BINS, StatisticsCache, real_tally, stamp_of
from hvdgan.evaluation.sets import GeneratedSet, RealSet, SampleSet, in_short, left_out
from hvdgan.evaluation.tally import KEPT, Plan, Tally, tally_of

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Measure:
    """The features and sums with which two sets are compared.

    Args:
        plan: sums over each set.
        name: name of the features in the record.
        digest: digest that identifies the features; None: they change with the networks.
        resize: way in which pictures are resized for them: clean, legacy or none.
        frechet: name of the Fréchet distance.
        published: True if fid is that of the file that published FIDs use; None: no distance is named fid.
        probe: text that tells features that change with the networks from those of other weights, or None.
    """

    plan: Plan
    name: str = "none"
    digest: str | None = "none"
    resize: str = "none"
    frechet: str = "frechet"
    published: bool | None = None
    probe: str | None = None

    @property
    def names(self) -> set[str]:
        """The names of the distances, as metrics.jsonl has them."""
        return {f"eval/{name}" for name in names(self.plan, self.frechet)}


class Comparison:
    """Compares a set of samples with real ones, over all ranks.

    Args:
        chosen: samples to measure.
        reals: real samples.
        measure: features and sums in which they are compared.
        kept: place where the sums over the real samples are kept.
        ranks: ranks that share the work.
    """

    def __init__(
        self, chosen: SampleSet, reals: RealSet, measure: Measure, kept: StatisticsCache, ranks: Ranks
    ) -> None:
        self._chosen, self._reals, self._measure, self._kept, self._ranks = chosen, reals, measure, kept, ranks
        self._real: Tally | None = None
        self._counts = chosen.count, min(chosen.count, KEPT)
        """numbers of the samples measured, and of those among them that are compared one by one"""
        if min(chosen.count, reals.count) < FEWEST:
            flag, of_evaluate = ("samples", "num") if chosen.count < FEWEST else ("real-samples", "real-samples")
            raise UserError(
                f"--eval-{flag}: {chosen.count} samples are compared with {reals.count} real ones; the distances need "
                f"at least {FEWEST} of each; raise it, or --{of_evaluate} of hvdgan.evaluate"
            )

    def __str__(self) -> str:
        return (
            f"{self._chosen.count:,} generated samples, compared with {self._reals.count:,} real ones; features: "
            f"{self._measure.name}"
        )

    @property
    def names(self) -> set[str]:
        """The names of the distances, as metrics.jsonl has them."""
        return self._measure.names

    @property
    def probe(self) -> str | None:
        """What tells features that change with the networks from those of other weights."""
        return self._measure.probe

    @property
    def reals(self) -> RealSet:
        """The real samples."""
        return self._reals

    @property
    def bad_files(self) -> list[BadFile]:
        """Broken samples of both sets that this rank has met."""
        return [*self._reals.bad_files, *self._chosen.bad_files]

    def agree(self) -> None:
        """Check that all ranks have the same features; every rank calls this.

        Raises:
            RunError: on every rank, if a file of the features is another one on some host.
        """
        measure, plan = self._measure, self._measure.plan
        facts: dict[str, Any] = {"name": measure.name, "SHA-256": measure.digest, "resizing": measure.resize}
        facts |= {"number": plan.dimension, "number of classes": plan.probabilities}
        agree(facts, self._ranks, "the features of evaluations")

    def trace(self, refuse: Refuse, where: str) -> set[str]:
        """Trace what generates the samples, so that a mistake in it is found before the first evaluation is due.

        Args:
            refuse: function that refuses a traced function which a resumed run could not repeat.
            where: name of the recipe, for messages.

        Returns:
            The names of the distances.

        Raises:
            Mistake: generate() fails, or returns something else.
            UserError: it draws random numbers that a resumed run could not repeat.
        """
        if isinstance(self._chosen, GeneratedSet):
            refuse(self._chosen.traced, f"{where}: generate()")
        return self.names

    def warning(self) -> str | None:
        """A line to log if there are too few samples for the features, else None."""
        dimension, fewest = self._measure.plan.dimension, min(self._chosen.count, self._reals.count)
        if fewest > dimension:
            return None
        return (
            f"warning: {fewest:,} samples for {dimension:,} features: their covariance is singular, and the Fréchet "
            f"distance is too large; compare more than {dimension:,} samples, better {10 * dimension:,}"
        )

    def about_features(self) -> str | None:
        """A line to log if figures named fid are of another network than published ones, else None."""
        if self._measure.published is not False:
            return None
        return (
            "warning: the size or the MD5 of the --inception file is not that of the graph that published FIDs use, so "
            "eval/fid cannot be compared with them; python -m hvdgan.features fetch gets the published file"
        )

    def _about_few_in_classes(self, made: Tally, real: Tally) -> str | None:
        """A line to log if a class has too few samples for the features, else None."""
        classes, dimension = self._measure.plan.classes, self._measure.plan.dimension
        if made.of_classes is None or real.of_classes is None:
            return None
        counts = np.minimum(made.of_classes.counts, real.of_classes.counts)
        if counts.min() > dimension:
            return None
        names, label, needed = self._reals.class_names, int(np.argmin(counts)), dimension * classes
        name = names[label] if label < len(names) else label
        return (
            f"warning: {int(counts.min()):,} samples of class {name} for {dimension:,} features: their covariance is "
            f"singular, and eval/intra_{self._measure.frechet} is too large, or undefined; compare more than "
            f"{needed:,} samples, better {10 * needed:,}, if the data have as many"
        )

    def _about_absent_classes(self, made: Tally, real: Tally) -> str | None:
        """A line to log if a class has no samples to compare one by one, else None."""
        for what, each in (("samples", made), ("real samples", real)):
            labels = each.kept("labels").astype(np.int64)
            absent = np.setdiff1d(np.arange(self._measure.plan.classes), labels)
            if len(absent):
                names = self._reals.class_names
                some = [names[label] if label < len(names) else str(label) for label in absent]
                return (
                    f"eval/intra_sliced_wasserstein is undefined, which the files say as null: none of the first "
                    f"{len(labels):,} {what} is of class {in_short(some)}"
                )
        return None

    def _about_classes(self) -> str | None:
        """A line to log if distances within classes are left out although both sets have classes, else None."""
        plan, chosen = self._measure.plan, self._chosen
        if isinstance(chosen, RealSet) and chosen.has_classes and self._reals.has_classes and not plan.classes:
            return (
                f"no distances within classes: --images {chosen.source.name} has the classes "
                f"{in_short(chosen.class_names)}, and the data have {in_short(self._reals.class_names)}"
            )
        if plan.classes and plan.dimension and not plan.sums_classes:
            size = f"{plan.bytes_of_classes / 2**20:,.0f} MiB on each rank"
            return f"no eval/intra_{self._measure.frechet}: " + (
                f"the sums of {plan.dimension:,} features within {plan.classes:,} classes would take {size}"
                if plan.fewest_of_class >= 2
                else f"the rarest of {plan.classes:,} classes has {plan.fewest_of_class} of the samples that are "
                "compared, and a covariance needs 2"
            )
        return None

    def __call__(self, say: Say) -> dict[str, float]:
        """Return the distances by their names in metrics.jsonl, on every rank; every rank calls this.

        Args:
            say: function that logs a line; only rank 0's is called with effect.

        Raises:
            RunError: on every rank, if a sample or a feature is not finite, or too many samples cannot be read.
        """
        # NumPy's library would start a thread for each core of the host in every rank, and they wait by spinning.
        with threadpool_limits(cores_of_rank(self._ranks), user_api="blas"):
            return self._compared(say)

    def _compared(self, say: Say) -> dict[str, float]:
        begin, before = time.perf_counter(), self._real
        real = self._real_tally(say)
        if real.fields.count < FEWEST:
            raise RunError(
                f"--data {self._reals.source.name}: {real.fields.count} of the {self._reals.count} samples to compare "
                f"with can be read; the distances need at least {FEWEST}"
            )
        made = tally_of(self._chosen, self._measure.plan, real.edges, real.origin, self._ranks)
        self._check_measured(made, say)
        self._counts = made.fields.count, made.kept_count
        if before is None:
            for line in filter(None, (self._about_few_in_classes(made, real), self._about_absent_classes(made, real))):
                say(line)
        found = distances(made, real, self._measure.frechet, self._ranks)
        say(
            f"{made.fields.count:,} samples compared with {real.fields.count:,} real ones in "
            f"{time.perf_counter() - begin:.1f} s (features: {self._measure.name})"
        )
        return {f"eval/{name}": value for name, value in found.items()}

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

    def with_samples(self, chosen: SampleSet) -> "Comparison | None":
        """The comparison of other samples with the same real ones, whose sums are not computed again.

        Returns:
            None if the features change with the networks.
        """
        if self._measure.digest is None:
            return None
        other = Comparison(chosen, self._reals, self._measure, self._kept, self._ranks)
        other._real = self._real
        return other

    def identity(self) -> dict[str, Any]:
        """What the figures depend on besides the networks and the seed, as JSON types."""
        facts = {"samples": self._chosen.count, "real_samples": self._reals.count, "mirrored": self._reals.mirrored}
        named = {"features": self._measure.name, "sha256": self._measure.digest, "resize": self._measure.resize}
        return {**facts, **named, **self._bins(), "data": self._reals.source.fingerprint, **self._files()}

    def facts(self) -> dict[str, Any]:
        """What the figures need to be compared with others, as JSON types; to be called after an evaluation."""
        measure, source = self._measure, self._reals.source
        return {
            "samples": self._counts[0],
            "real_samples": self._reals.count if self._real is None else self._real.fields.count,
            "kept_samples": self._counts[1],
            "kept_real_samples": min(self._reals.count, KEPT) if self._real is None else self._real.kept_count,
            "mirrored": self._reals.mirrored,
            "data": source.name,
            "data_fingerprint": source.fingerprint,
            "features": measure.name,
            "features_sha256": None if measure.name == "none" else measure.digest,
            "dimension": measure.plan.dimension,
            "resize": measure.resize,
            "published": measure.published,
            "ranks": self._ranks.size,
            **self._bins(),
            **self._files(),
        }

    def _bins(self) -> dict[str, Any]:
        """The version of the bins of arrays' histograms; those of pictures are their levels."""
        return {} if self._measure.plan.spec.is_pictures else {"bins": BINS}

    def _files(self) -> dict[str, Any]:
        """What identifies samples that another program made, as JSON types; empty for generated ones."""
        if not isinstance(self._chosen, RealSet):
            return {}
        source = self._chosen.source
        return {"images_fingerprint": source.fingerprint, "images_stamp": stamp_of(source)}

    def _real_tally(self, say: Say) -> Tally:
        """The sums over the real samples; those of features that change are computed anew each time."""
        if self._real is not None and self._measure.digest is not None:
            return self._real
        begin, plan = time.perf_counter(), self._measure.plan
        values = plan.spec.values
        facts = {
            "resize": self._measure.resize,
            "values": None if values is None else values.to_json(),
            "shape": list(plan.spec.shape),
            "sums": [plan.dimension, plan.probabilities, plan.classes, plan.sums_classes],
            "mirrored": self._reals.mirrored,
        }
        edges = None if self._real is None else self._real.edges
        self._real, was_kept = real_tally(self._reals, plan, self._kept, self._ranks, facts, edges)
        how = "read" if was_kept else "computed"
        say(f"statistics of {self._real.fields.count:,} real samples {how} in {time.perf_counter() - begin:.1f} s")
        broken = self._reals.count - self._real.fields.count
        missing = left_out(broken, self._reals.count, self._reals.bad_files, self._ranks)
        about_missing = missing and f"--data {self._reals.source.name}: {missing}; they are left out"
        for line in filter(None, (about_missing, self._about_classes())):
            say(line)
        return self._real
