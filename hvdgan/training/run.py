"""Builds the parts of a run, the same on every rank."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import keras

from hvdgan.checkpoints.versions import versions
from hvdgan.cli import shared_errors
from hvdgan.cli.config import Config, to_json
from hvdgan.cli.errors import UserError
from hvdgan.data import HeldOut, Source, cached, hold_out, open_source
from hvdgan.data.scan_cache import ScanCache
from hvdgan.distributed.batch_norm import SynchronisedBatchNormalization
from hvdgan.distributed.ranks import Ranks
from hvdgan.networks.kernels import change_classes, use_fast_kernels
from hvdgan.recipe import DataSpec, Recipe, mistakes
from hvdgan.recipe.mistakes import Mistake
from hvdgan.recipe.returned import make_recipe, stages_of
from hvdgan.recipe.schedule import Schedule
from hvdgan.training.monitoring.evaluation import Evaluator
from hvdgan.training.monitoring.samples import Sampler
from hvdgan.training.state import TrainState, build_state, prepare_keras
from hvdgan.training.steps.loss_scale import LossScale
from hvdgan.training.steps.optimizers import check_optimizers
from hvdgan.training.steps.step import StageStep

T = TypeVar("T")

_HOLDOUT = 0.05  # where the recipe evaluates and the user has not said


@dataclasses.dataclass(frozen=True)
class Run:
    """The parts of a run; every rank builds the same."""

    config: Config
    recipe: Recipe
    source: Source
    held_out: Source | None
    evaluated: Source | None
    """the held-out images that evaluations look at"""
    ranks: Ranks
    state: TrainState
    schedule: Schedule
    steps: tuple[StageStep, ...]
    """the traced step of each stage"""
    sampler: Sampler
    evaluator: Evaluator | None
    scans: ScanCache
    """what the next start need not look for again"""

    @property
    def run_dir(self) -> Path:
        return folder_of(self.config)

    @property
    def checkpoints(self) -> Path:
        return checkpoints_of(self.config)

    @property
    def config_path(self) -> Path:
        return self.run_dir / "config.json"

    @property
    def last_step(self) -> int:
        total = self.schedule.total_steps
        return total if self.config.max_steps is None else min(self.config.max_steps, total)

    def settings(self) -> dict[str, Any]:
        """What config.json holds."""
        return to_json(self.config, self.recipe.options)


def folder_of(config: Config) -> Path:
    """The run folder of a configuration."""
    return config.run_dir or Path("runs") / config.recipe.replace(":", ".")


def checkpoints_of(config: Config) -> Path:
    """Where a configuration's checkpoints are."""
    return folder_of(config) / "checkpoints"


def build(config: Config, recipe_class: type[Recipe], options: Any, ranks: Ranks) -> Run:
    """Build everything a run is made of; nothing is written.

    Args:
        config: the run's configuration.
        recipe_class: makes the networks and the stages.
        options: an instance of recipe_class.Options.
        ranks: this process among its peers.

    Raises:
        UserError: the data, the batch size or the recipe cannot be used.
        RunError: the ranks would not build the same.
    """
    ranks.agree({**to_json(config, options), **versions()}, "what to train")
    _check_batch(config, ranks)
    scans = ScanCache(folder_of(config) / "cache")
    everything = open_source(config, paired=recipe_class.paired, peers=ranks, scans=scans)
    everything = cached(everything, config.pipeline.cache, folder_of(config) / "cache", ranks)
    source, held_out = _split(everything, config, recipe_class, ranks, scans)
    spec = DataSpec(source.image_size, source.channels, len(source), source.num_classes)
    recipe, state, schedule, steps = on_all(
        ranks, recipe_class, lambda: _parts(config, recipe_class, options, spec, ranks), "the recipe"
    )
    variables = {name: f"{variable.dtype}{tuple(variable.shape)}" for name, variable in state.tensors().items()}
    stages = [[s.name, s.steps, [[u.name, list(u.owns), u.every] for u in s.updates]] for s in schedule.stages]
    broken = hashlib.sha256(json.dumps(source.bad_files).encode()).hexdigest()
    data = {"data fingerprint": source.fingerprint, "broken files": broken}
    ranks.agree({**data, "stages": stages, **variables}, "what they have built")
    sampler = Sampler(recipe, state, source, config.seed)
    evaluated = held_out.some(config.eval_images) if held_out else None
    evaluator = Evaluator(recipe, state, evaluated, ranks, config) if evaluated else None
    metrics = on_all(ranks, recipe_class, lambda: _trace(steps, sampler, evaluator, source), "the traces")
    if config.diff_augment and not any(step.forward.augments for step in steps):
        raise UserError("--diff-augment: no loss of the recipe calls batch.augment; leave the flag out")
    _check_best_metric(config, metrics)
    return Run(config, recipe, source, held_out, evaluated, ranks, state, schedule, steps, sampler, evaluator, scans)


def _parts(
    config: Config, recipe_class: type[Recipe], options: Any, spec: DataSpec, ranks: Ranks
) -> tuple[Recipe, TrainState, Schedule, tuple[StageStep, ...]]:
    """What the recipe makes; no rank waits for another here."""
    recipe = make_recipe(recipe_class, options, spec)
    prepare_keras(config.precision)
    keras.utils.set_random_seed(config.seed)
    state = build_state(recipe, config.ema_decay)
    if config.sync_batch_norm:
        synchronised = {keras.layers.BatchNormalization: SynchronisedBatchNormalization}
        norms = change_classes(state.networks.values(), synchronised)
        if not norms:
            raise UserError("--sync-batch-norm: no network has a BatchNormalization layer; leave the flag out")
        for norm in norms:
            norm.set_ranks(ranks, ranks.weights(config.global_batch_size)[ranks.rank])
    use_fast_kernels(state.networks.values(), state.optimizers.values())
    if config.lr_scaling != "none" and (fixed := state.networks.keys() - state.learning_rates.keys()):
        raise UserError(
            f"--lr-scaling {config.lr_scaling}: the optimizer of {', '.join(sorted(fixed))} has a schedule of its own, "
            "which cannot be scaled; give the schedule to the Update, as LearningRate"
        )
    try:
        schedule = Schedule(stages_of(recipe), list(state.networks), config.stages)
    except Mistake as mistake:
        mistake.at = mistake.at or recipe.stages
        raise
    check_optimizers(schedule.stages, state)
    if config.precision == "mixed_float16":
        names = {update.name for stage in schedule.stages for update in stage.updates}
        state.loss_scales.update({name: LossScale.new(name) for name in sorted(names)})
    return recipe, state, schedule, tuple(StageStep(recipe, state, stage, ranks, config) for stage in schedule.stages)


def _trace(steps: Sequence[StageStep], sampler: Sampler, evaluator: Evaluator | None, source: Source) -> set[str]:
    """Trace all that will run, so that no mistake waits until it is due; returns the names of all metrics."""
    for step in steps:
        step.trace(source.image_size, source.channels, labelled=source.labels is not None)
    sampler.trace()
    return (evaluator.trace() if evaluator else set()).union(*(step.metrics for step in steps))


def on_all(ranks: Ranks, recipe: type[Recipe], work: Callable[[], T], name: str) -> T:
    """Do work of the recipe on every rank; an error on one rank ends the run on all.

    Raises:
        RunError: the error of the work on the first rank that failed.
    """

    def checked() -> T:
        with mistakes.of(recipe):
            return work()

    # A file that the recipe reads may be missing on one host only.
    return shared_errors.on_all(checked, ranks, name, names_rank=True)


def _split(
    source: Source, config: Config, recipe: type[Recipe], ranks: Ranks, scans: ScanCache
) -> tuple[Source, HeldOut | None]:
    """What to train on, and what is held out."""
    if config.holdout is not None:
        if config.holdout and not recipe.evaluates():
            raise UserError(f"--holdout {config.holdout:g}: the recipe has no evaluate(); leave the flag out")
        return hold_out(source, config.holdout, ranks, scans)
    try:
        return hold_out(source, _HOLDOUT if recipe.evaluates() else 0.0, ranks, scans)
    except UserError:
        return source, None  # a handful of images: nobody has asked for an evaluation


def _check_best_metric(config: Config, names: set[str]) -> None:
    metric = config.best_metric
    if metric is not None and metric not in names:
        raise UserError(f"--best-metric {metric}: the run has {', '.join(sorted(names))}")


def _check_batch(config: Config, ranks: Ranks) -> None:
    first, last = ranks.slice_of(config.global_batch_size)
    if (last - first) % config.accumulate:
        raise UserError(
            f"--accumulate {config.accumulate}: a rank's {last - first} images of each global batch of "
            f"{config.global_batch_size} cannot be cut into so many equal micro-batches"
        )
