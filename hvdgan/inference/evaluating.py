"""Evaluates the checkpoints of a run after or beside its training, over all ranks, each once."""

import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hvdgan.checkpoints.files import find, newest_first, read_manifest, step_of
from hvdgan.data import Samples
from hvdgan.data.holdout import split
from hvdgan.distributed.affinity import reading_threads
from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import RunError, UserError, unwritable
from hvdgan.errors.shared_errors import from_root, on_all
from hvdgan.evaluation.comparison import Comparison, Say, plan_for, real_set, weights_facts
from hvdgan.evaluation.held_out import Evaluator, refuse_taken_names
from hvdgan.evaluation.sets import GeneratedSet, Reading, RealSet, SampleSet, left_out
from hvdgan.files.lock import Lock
from hvdgan.inference.inputs import maps_of, open_data, open_samples
from hvdgan.inference.standing import set_standing_statistics
from hvdgan.inference.trained import PRECISION, USED, TrainedNetworks, load_trained
from hvdgan.inference.whole_evaluation import WholeComparison, open_held_out
from hvdgan.recipe import recipe_errors
from hvdgan.recipe.loading import digests_of_files
from hvdgan.runs import evaluation_log
from hvdgan.settings.evaluation import EvaluationRequest

_POLL_SECONDS = 2.0


class CheckpointDeleted(RunError):
    """Training has deleted a checkpoint before it could be read."""


class Evaluating:
    """Evaluates checkpoints of one run; every rank calls it, and rank 0 writes evaluation.jsonl into the run folder.

    Without a run folder nothing is written. `say` logs a line, on rank 0.
    """

    def __init__(self, run_dir: Path | None, asked: EvaluationRequest, ranks: Ranks, say: Say) -> None:
        self._run_dir, self._asked, self._ranks, self._say = run_dir, asked, ranks, say
        self._lock: Lock | None = None
        self._sources: tuple[Samples, Samples | None] | None = None
        self._fields: Samples | None = None
        self._last: Comparison | None = None
        self._code: dict[str, str] | None = None

    def __call__(self, checkpoint: Path) -> dict[str, Any]:
        """Evaluate a checkpoint, unless its figures are in the run folder; returns the record, also an earlier one."""
        self._on_files(self._take_lock, "the lock of the evaluations")

        try:
            load = functools.partial(load_trained, checkpoint, self._asked.recipe)
            trained = on_all(load, self._ranks, "the checkpoint", names_rank=True)
        except RunError as error:
            if not from_root(lambda: not checkpoint.exists(), self._ranks, "the checkpoint's presence"):
                raise
            raise CheckpointDeleted(
                f"{checkpoint} is gone, deleted by training as its --keep says, or by another program; name the run "
                "folder for the newest one, or train with a larger --keep"
            ) from error
        if self._code is None:  # before the data are opened, which can take minutes: the recipe is not loaded again
            self._code = digests_of_files(trained.recipe)
            self._asked = dataclasses.replace(self._asked, recipe=trained.config.recipe)
        with recipe_errors.of(trained.recipe):
            return self._evaluated(checkpoint, trained)

    def close(self) -> None:
        """Let other processes evaluate the run."""
        if self._lock is not None:
            self._lock.close()

    def _on_files(self, work: Callable[[Path], Any], name: str) -> Any:
        """Do work on the files of the run folder, if there is one, on rank 0."""
        if (run_dir := self._run_dir) is None:
            return None

        def attempt() -> Any:
            try:
                return work(run_dir)
            except OSError as error:
                raise unwritable(run_dir / evaluation_log.FILE, error) from error

        return from_root(attempt, self._ranks, name)

    def _take_lock(self, run_dir: Path) -> None:
        """Lock the run's evaluations for this process."""
        if self._lock is None:
            self._lock = evaluation_log.lock_evaluations(run_dir)
            for line in self._lock.remarks:
                self._say(line)

    def _evaluated(self, checkpoint: Path, trained: TrainedNetworks) -> dict[str, Any]:
        asked, run_dir, manifest = self._asked, self._run_dir, trained.manifest
        if trained.recipe.domains:
            raise UserError(
                f"{checkpoint}: hvdgan evaluate compares samples with one data set, and the run has the domains "
                f"{', '.join(trained.recipe.domains)}; its metrics.jsonl has what its evaluate() has measured"
            )
        if asked.truncation != 1.0 and not trained.recipe.truncates:
            raise UserError("--truncation: the recipe of this run cannot truncate; leave the flag out")
        comparison: Comparison | WholeComparison
        if asked.whole:
            self._fields = self._fields or open_held_out(trained, asked, self._ranks)
            held_out = None
            comparison = WholeComparison(trained, self._fields, asked, self._seed(trained), self._ranks)
        else:
            training, held_out = self._opened(trained)
            trained.recipe.data = dataclasses.replace(trained.recipe.data, constants=training.constants)
            comparison = self._comparison(trained, (training, held_out))
        how = self._how(trained)
        # A run that went back and resumed with other settings has other weights at the same step.
        weights = {name: facts for name, facts in manifest["tensors"].items() if name.startswith(USED)}
        of_data = [comparison.scale(), comparison.probe(), maps_of(trained.recipe.data).to_json()]
        key = evaluation_log.identity(manifest.get("run_id"), trained.step, weights, self._code, how, of_data)
        earlier = self._on_files(lambda folder: evaluation_log.found(folder, key), "the earlier evaluations")
        if earlier and run_dir:
            self._say(f"{checkpoint}: figures of {earlier.get('time')}, from {run_dir / evaluation_log.FILE}")
            return dict(earlier)
        self._stand(trained)
        values = {} if held_out is None or asked.images else self._held_out(trained, held_out)
        refuse_taken_names(trained.recipe, values, comparison.names)
        values |= comparison(self._say)
        record = evaluation_log.record_of(
            trained.step,
            values,
            {**comparison.facts(), **how, "precision": PRECISION if asked.images is None else None},
            run_id=manifest.get("run_id"),
            samples_seen=manifest.get("samples_seen"),
            checkpoint=str(checkpoint),
            identity=key,
            by="evaluate",
        )
        self._on_files(lambda folder: evaluation_log.append(folder, record), "the record of the evaluation")
        return record

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

    def _opened(self, trained: TrainedNetworks) -> tuple[Samples, Samples | None]:
        """The samples trained on and those held out, opened once; with --data its samples for both."""
        if self._sources is None:
            config, recipe, asked = trained.config, trained.recipe, self._asked
            everything = open_data(trained, asked.data, self._ranks, asked.axes)
            maps = maps_of(recipe.data)
            if asked.data is not None:
                self._sources = everything.mapped(maps), everything.mapped(maps)
            else:
                own = {"": everything}
                training, held_out = split(own, config.holdout, self._ranks, is_evaluated=recipe.evaluates())
                some = held_out[""].some(config.evaluation.eval_held_out).mapped(maps) if held_out else None
                self._sources = training[""].mapped(maps), some
        return self._sources

    def _stand(self, trained: TrainedNetworks) -> None:
        """Set standing statistics, the same on every rank."""
        asked, ranks = self._asked, self._ranks
        if (batches := asked.standing_statistics) is None:
            return
        seed = self._seed(trained)

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
        # The last bits may differ between devices.
        ranks.broadcast([*trained.state.statistics().values()])

    def _comparison(self, trained: TrainedNetworks, sources: tuple[Samples, Samples | None]) -> Comparison:
        asked, recipe, ranks, config = self._asked, trained.recipe, self._ranks, trained.config
        reading = Reading(asked.batch_size, reading_threads(config.pipeline.threads, ranks))
        real_count = asked.samples if asked.real_samples is None else asked.real_samples
        reals = real_set(recipe, sources, reading, count=real_count, mirrored=config.mirrored_axes)
        nets, how = trained.nets(asked.weights), (self._seed(trained), asked.samples, asked.truncation)
        chosen: SampleSet = GeneratedSet(recipe, nets, reals.source, reading, *how)
        if asked.images is not None:
            chosen = self._others(trained, asked.images, reading)
        again = self._last and self._last.with_samples(chosen)
        if again is None:
            others = {name: getattr(asked, name) for name in ("eval_features", "inception", "eval_resize")}
            given = {name: value for name, value in others.items() if value is not None}
            settings = dataclasses.replace(config.evaluation, **given)
            both, size = (chosen, reals), asked.batch_size
            plan = on_all(lambda: plan_for(settings, recipe, nets, both, size), ranks, "the features")
            again = Comparison(chosen, reals, plan, self._run_dir and self._run_dir / "cache", ranks)
            again.agree()
            if self._last is None:  # the recipe's features are opened again for each checkpoint
                for line in again.remarks():
                    self._say(line)
        self._last = again
        return again

    def _others(self, trained: TrainedNetworks, images: str, reading: Reading) -> RealSet:
        """Samples that another program made."""
        source, spec = open_samples(trained.config, trained.recipe.data, images, self._ranks, self._asked.axes)
        most = trained.config.max_bad_fraction
        return RealSet(source, spec, reading, count=self._asked.samples, max_bad_fraction=most)

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


def checkpoints_of(path: Path, ranks: Ranks, *, every: bool) -> tuple[Path | None, list[Path]]:
    """The run folder of a path, and its checkpoints (all, or the newest), the oldest first; every rank calls this.

    The run folder is None for a checkpoint that lies outside of one.
    """

    def look() -> list[list[str]]:
        found = find(path)
        if found.parent.name != "checkpoints":  # as of . and ../step-00001000.safetensors
            found = Path(os.path.abspath(found))
        of_run = [str(found.parent.parent)] if found.parent.name == "checkpoints" else []
        all_of_them = [str(each) for each in _saved(path)] if every else []
        return [of_run, all_of_them or [str(found)]]

    of_run, checkpoints = from_root(look, ranks, "the checkpoints")
    return (Path(of_run[0]) if of_run else None), [Path(each) for each in checkpoints]


def refuse_checkpoint(path: Path, ranks: Ranks) -> None:
    """Refuse to follow what gets no new checkpoints; a run folder may not be there yet. Every rank calls this."""

    def look() -> None:
        if path.is_file() or newest_first(path):
            raise UserError(f"--watch: {path} is a file or holds checkpoints; expected a run folder, as runs/dcgan")

    from_root(look, ranks, "the run folder")


def follow(run_dir: Path, ranks: Ranks, say: Say) -> Iterator[Path]:
    """Yield each checkpoint of a run once, also new ones, until that of the last step; every rank iterates.

    The run folder may not be there yet.
    """
    seen, is_waiting = set[tuple[Path, int]](), False

    def look() -> str | None:
        """The next checkpoint, or an empty string; None if there will be none."""
        saved = _saved(run_dir)
        for each in saved:
            # A run that went back writes a checkpoint again.
            if (known := (each, _time_of(each))) not in seen:
                seen.add(known)
                return str(each)
        return None if saved and _has_last(saved) else ""

    while (chosen := from_root(look, ranks, "new checkpoints")) is not None:
        if chosen:
            is_waiting = False
            yield Path(chosen)
            continue
        if not is_waiting:
            say(f"{run_dir}: waiting for the next checkpoint")
        is_waiting = True
        time.sleep(_POLL_SECONDS)


def _saved(run_dir: Path) -> list[Path]:
    """The checkpoints of a run folder, the oldest first."""
    return newest_first(run_dir / "checkpoints")[::-1]


def _has_last(saved: Sequence[Path]) -> bool:
    """Whether the newest of a run's checkpoints is that of its last step, as the newest sound manifest says."""
    for checkpoint in reversed(saved):
        try:
            manifest = read_manifest(checkpoint)
        except RunError:
            continue
        ended, most = manifest["progress"]["ended"], manifest["config"].get("max_steps")
        total = sum(ended.get(str(number), steps) for number, (_, steps) in enumerate(manifest["stages"]))
        return bool(step_of(saved[-1]) >= (total if most is None else min(most, total)))
    return False


def _time_of(checkpoint: Path) -> int:
    """When a checkpoint was written (ns); 0 if it cannot be found."""
    try:
        return checkpoint.stat().st_mtime_ns
    except OSError:
        return 0
