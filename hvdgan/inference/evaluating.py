"""Evaluates the checkpoints of a run after or beside its training, over all ranks, each once."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hvdgan.checkpoints.files import MANIFEST, is_gone, read_manifest
from hvdgan.cli.errors import RunError, UserError, unwritable
from hvdgan.cli.files.lock import Lock
from hvdgan.cli.shared_errors import from_root, on_all
from hvdgan.data import Samples
from hvdgan.data.holdout import split
from hvdgan.distributed.affinity import reading_threads
from hvdgan.distributed.ranks import Ranks
from hvdgan.evaluation import results
from hvdgan.evaluation.comparison import Comparison, Say
from hvdgan.evaluation.held_out import Evaluator, refuse_taken_names
from hvdgan.evaluation.of_run import SamplingSettings, generated_set, measure_for, real_set, weights_facts
from hvdgan.evaluation.real_statistics import StatisticsCache, stamp_of
from hvdgan.evaluation.sets import RealSet, SampleSet, left_out
from hvdgan.inference.inputs import maps_of, open_data, open_samples
from hvdgan.inference.standing import set_standing_statistics
from hvdgan.inference.trained import PRECISION, USED, TrainedNetworks, Weights, load_trained
from hvdgan.recipe import mistakes
from hvdgan.recipe.augment import flip_axes
from hvdgan.training.code_state import digest_of_code


class CheckpointDeleted(RunError):
    """Training has deleted a checkpoint before it could be read."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
    """What is evaluated, and how.

    Args:
        num: number of samples.
        real_samples: number of real samples, all if there are fewer; 0: all; None: as many as samples.
        weights: averaged or trained.
        seed: seed of the samples; None: the run's.
        truncation: distance of styles from their mean, 0 to 1.
        batch_size: samples computed at a time on a rank.
        standing_statistics: number of generated batches whose BatchNorm statistics replace the moving ones, or None.
        data: value of --data; None: the data that the run was trained on.
        images: samples of another program to measure in place of generated ones; None: generated ones.
        axes: axes of the arrays that data and images name; None: those of the run's data.
        features: settings of the features that differ from those of the run, by the names of FeatureConfig.
    """

    num: int
    real_samples: int | None
    weights: Weights
    seed: int | None
    truncation: float
    batch_size: int
    standing_statistics: int | None
    data: str | None
    images: str | None
    axes: str | None = None
    features: dict[str, Any]


class Evaluating:
    """Evaluates checkpoints of one run. Every rank calls it; rank 0 writes evaluation.jsonl.

    Args:
        run_dir: run folder; None: the checkpoint lies outside of one, and nothing is written.
        asked: samples, features and data that are asked for.
        ranks: ranks that share the work.
        say: function that logs a line; only rank 0's is called with effect.
    """

    def __init__(self, run_dir: Path | None, asked: EvaluationRequest, ranks: Ranks, say: Say) -> None:
        self._run_dir, self._asked, self._ranks, self._say = run_dir, asked, ranks, say
        self._done: set[tuple[Path, int]] = set()
        self._sources: tuple[Samples, Samples | None] | None = None
        self._last: Comparison | None = None
        self._settings: dict[str, Any] | None = None
        self._code: str | None = None

    def is_done(self, checkpoint: Path) -> bool:
        """Whether a checkpoint was evaluated in this way; False as long as none was evaluated here.

        Raises:
            RunError: the checkpoint cannot be read.
        """
        if self._settings is None or self._run_dir is None:
            return False
        # Those that are done stay done until they are replaced: many checkpoints are looked at, and few read.
        written = _time_of(checkpoint)
        if (checkpoint, written) not in self._done:
            key = _identity(read_manifest(checkpoint), self._settings)
            self._done |= {(checkpoint, written)} if results.found(self._run_dir, key) else set()
        return (checkpoint, written) in self._done

    def is_claimed(self, checkpoint: Path) -> bool:
        """Whether another process evaluates a checkpoint in this way; False as long as none was evaluated here.

        Raises:
            RunError: the checkpoint cannot be read.
        """
        if self._settings is None or self._run_dir is None:
            return False
        return results.is_claimed(self._run_dir, _identity(read_manifest(checkpoint), self._settings))

    def __call__(self, checkpoint: Path) -> dict[str, Any] | None:
        """Evaluate a checkpoint, unless its figures are in the run folder, or another process computes them.

        Args:
            checkpoint: folder of the checkpoint.

        Returns:
            The record, also an earlier one; None if another process evaluates the checkpoint.

        Raises:
            UserError: the data or the features cannot be opened.
            Gone: on every rank, if the checkpoint is no longer there.
            RunError: on every rank, if the checkpoint is damaged, or a sample is not finite.
        """

        def load() -> TrainedNetworks | None:
            try:
                return load_trained(checkpoint)
            except RunError:
                if is_gone(checkpoint):
                    return None
                raise

        trained = on_all(load, self._ranks, "the checkpoint", names_rank=True)
        # It may have been deleted after some of the ranks had read it.
        there = self._ranks.gather(trained is not None, "checkpoints that are still there")
        if trained is None or not all(there):
            raise CheckpointDeleted(
                f"{checkpoint} is gone, deleted by training as its --keep says, or by another program; name the run "
                "folder for the newest one, or train with a larger --keep"
            )
        if self._code is None:  # before the data are opened, which can take minutes: the recipe is not loaded again
            self._code = digest_of_code(trained.recipe)
        with mistakes.of(trained.recipe):
            return self._evaluated(checkpoint, trained)

    def _evaluated(self, checkpoint: Path, trained: TrainedNetworks) -> dict[str, Any] | None:
        asked = self._asked
        if asked.truncation != 1.0 and not trained.recipe.truncates:
            raise UserError("--truncation: the recipe of this run cannot truncate; leave the flag out")
        training, held_out = self._opened(trained)
        trained.recipe.data = dataclasses.replace(trained.recipe.data, constants=training.constants)
        comparison = self._comparison(trained, (training, held_out))
        how = self._how(trained)
        # The fingerprint of a folder covers names and sizes, so files that were written over have the same one.
        stamp = stamp_of(comparison.reals.source)
        told_by = {"data_stamp": stamp, "probe": comparison.probe, **self._defined(trained)}
        self._settings = {**how, **comparison.identity(), **told_by}
        manifest = trained.manifest
        key = _identity(manifest, self._settings)
        with self._claimed(key) as earlier:
            if earlier != _OURS:
                if earlier is not None and self._run_dir is not None:
                    self._say(f"{checkpoint}: figures of {earlier.get('time')}, from {self._run_dir / results.FILE}")
                return earlier
            self._stand(trained)
            values = {} if held_out is None or asked.images else self._held_out(trained, held_out)
            refuse_taken_names(trained.recipe, values, comparison.names)
            values |= comparison(self._say)
            record = results.record_of(
                trained.step,
                values,
                {**comparison.facts(), **how, "precision": PRECISION if asked.images is None else None},
                run_id=manifest.get("run_id"),
                samples_seen=manifest.get("samples_seen"),
                checkpoint=str(checkpoint),
                identity=key,
                by="evaluate",
            )
            self._write(record)
        return record

    def _defined(self, trained: TrainedNetworks) -> dict[str, Any]:
        """What tells the functions of the user's own that figures depend on from any others, as JSON types."""
        return {"recipe_sha256": self._code, "values": maps_of(trained.recipe.data).to_json()}

    def _how(self, trained: TrainedNetworks) -> dict[str, Any]:
        """How the samples are made, as JSON types; those of another program do not depend on the run."""
        asked = self._asked
        weights = weights_facts(trained.config, trained.recipe, averaged=asked.weights == "averaged")
        how: dict[str, Any] = {"seed": self._seed(trained), "truncation": asked.truncation, **weights}
        if asked.images is not None:
            how = dict.fromkeys(how)
        how |= {"images": asked.images, "standing_statistics": asked.standing_statistics}
        # Without standing statistics, the batches change the last bits alone.
        return how if asked.standing_statistics is None else {**how, "batch_size": asked.batch_size}

    def _write(self, record: dict[str, Any]) -> None:
        def append() -> None:
            if self._run_dir is not None:
                try:
                    results.append(self._run_dir, record)
                except OSError as error:
                    raise unwritable(self._run_dir / results.FILE, error) from error

        from_root(append, self._ranks, "the record of the evaluation")

    @contextlib.contextmanager
    def _claimed(self, key: str) -> Iterator[dict[str, Any] | None]:
        """Yield _OURS if the evaluation is to be done here, its record if it is done, None if another one does it."""
        run_dir = self._run_dir
        claims: list[Lock] = []

        def look() -> dict[str, Any] | None:
            if run_dir is None:
                return _OURS
            try:
                # The claim comes first: otherwise another process could finish between the two looks.
                claim = results.claim(run_dir, key)
                claims.extend([claim] if claim else [])
                return results.found(run_dir, key) or (_OURS if claim else None)
            except OSError as error:
                raise unwritable(run_dir, error) from error

        try:
            yield from_root(look, self._ranks, "the evaluations of the run")
        finally:
            if run_dir is not None:
                for claim in claims:
                    results.release(run_dir, key, claim)

    def _opened(self, trained: TrainedNetworks) -> tuple[Samples, Samples | None]:
        """The samples trained on and those held out, opened once; with --data its samples for both."""
        if self._sources is None:
            config, recipe, asked = trained.config, trained.recipe, self._asked
            everything = open_data(config, recipe.data, asked.data, self._ranks, asked.axes)
            maps = maps_of(recipe.data)
            if asked.data is not None:
                self._sources = everything.mapped(maps), everything.mapped(maps)
            else:
                training, held_out = split(everything, config.holdout, self._ranks, is_evaluated=recipe.evaluates())
                some = held_out.some(config.evaluation.eval_images).mapped(maps) if held_out else None
                self._sources = training.mapped(maps), some
        return self._sources

    def _stand(self, trained: TrainedNetworks) -> None:
        """Set standing statistics, the same on every rank."""
        asked, ranks = self._asked, self._ranks
        if (batches := asked.standing_statistics) is None:
            return
        seed, statistics = self._seed(trained), trained.state.statistics

        def compute() -> None:
            set_standing_statistics(
                trained,
                asked.weights,
                asked.data,
                batches=batches,
                batch_size=asked.batch_size,
                seed=seed,
                truncation=asked.truncation,
                axes=asked.axes,
            )

        on_all(compute, ranks, "the standing statistics", names_rank=True)
        statistics.write(ranks.broadcast_array(statistics.read()))  # the last bits may differ between devices

    def _comparison(self, trained: TrainedNetworks, sources: tuple[Samples, Samples | None]) -> Comparison:
        asked, recipe, ranks, config = self._asked, trained.recipe, self._ranks, trained.config
        ways = SamplingSettings(
            count=asked.num,
            batch_size=asked.batch_size,
            threads=reading_threads(config.pipeline.threads, ranks),
            seed=self._seed(trained),
            truncation=asked.truncation,
            mirrored=flip_axes(config),
            real_count=asked.real_samples,
        )
        reals, nets = real_set(recipe, sources, ways), trained.nets(asked.weights)
        chosen: SampleSet
        if asked.images is None:
            chosen = generated_set(recipe, nets, reals.source, ways)
        else:
            chosen = self._others(trained, asked.images, ways)
        again = self._last and self._last.with_samples(chosen)
        if again is None:
            settings = dataclasses.replace(config.evaluation, **asked.features)
            spec = chosen.spec if isinstance(chosen, RealSet) else recipe.data
            measure = on_all(
                lambda: measure_for(settings, recipe, nets, spec, (chosen, reals), asked.batch_size),
                ranks,
                "the features",
            )
            folder = self._run_dir and self._run_dir / "cache"
            again = Comparison(chosen, reals, measure, StatisticsCache(folder, measure.digest), ranks)
            again.agree()
            if self._last is None:  # the recipe's features are opened again for each checkpoint
                for line in filter(None, (again.about_features(), again.warning())):
                    self._say(line)
        self._last = again
        return again

    def _others(self, trained: TrainedNetworks, images: str, ways: SamplingSettings) -> RealSet:
        """Samples that another program made."""
        source, spec = open_samples(trained.config, trained.recipe.data, images, self._ranks, self._asked.axes)
        return RealSet(
            source,
            spec,
            count=ways.count,
            batch_size=ways.batch_size,
            threads=ways.threads,
            max_bad_fraction=trained.config.max_bad_fraction,
        )

    def _held_out(self, trained: TrainedNetworks, held_out: Samples) -> dict[str, float]:
        """The means of what the recipe's evaluate() measures of the held-out samples."""
        if not trained.recipe.evaluates():
            return {}
        state = trained.state
        if self._asked.weights == "trained":
            state = dataclasses.replace(state, ema={})
        # Slices may differ by a sample, so that any number of ranks can share the batches of the training.
        ranks = dataclasses.replace(self._ranks, slice_unit=1)
        evaluator = Evaluator(trained.recipe, state.sampling_nets, held_out, ranks, trained.config)
        values, bad_files = evaluator(), evaluator.bad_files
        broken = sum(ranks.gather(len(bad_files), "broken samples held out"))
        if (missing := left_out(broken, len(held_out), bad_files, ranks)) is not None:
            self._say(f"--data {held_out.name}, held out: {missing}; they are left out")
        return values

    def _seed(self, trained: TrainedNetworks) -> int:
        return trained.config.seed if self._asked.seed is None else self._asked.seed


_OURS: dict[str, Any] = {"step": None}
"""in place of a record: the evaluation is to be done here"""


def _identity(manifest: dict[str, Any], settings: dict[str, Any]) -> str:
    # A run that went back and resumed with other settings has other weights at the same step.
    tensors = {name: facts for name, facts in manifest["tensors"].items() if name.startswith(USED)}
    return results.identity(str(manifest.get("run_id")), manifest["step"], {**settings, "tensors": tensors})


def _time_of(checkpoint: Path) -> int:
    """When the manifest of a checkpoint was written (ns); 0 if it cannot be found."""
    try:
        return (checkpoint / MANIFEST).stat().st_mtime_ns
    except OSError:
        return 0
