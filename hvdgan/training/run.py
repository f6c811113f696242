"""Builds a run, the same on every rank: its data, and the parts that its recipe defines."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import keras
import tensorflow as tf

from hvdgan.checkpoints.checkpoint import versions
from hvdgan.checkpoints.saver import check_best_metric
from hvdgan.cli import shared_errors
from hvdgan.cli.config import Config
from hvdgan.cli.errors import UserError
from hvdgan.data import HeldOut, Samples, cached, open_source
from hvdgan.data.holdout import split
from hvdgan.data.statistics import with_statistics
from hvdgan.distributed.affinity import reading_threads
from hvdgan.distributed.batch_norm import SynchronisedBatchNormalization
from hvdgan.distributed.ranks import Ranks
from hvdgan.evaluation.comparison import Comparison, comparison_in_training
from hvdgan.evaluation.held_out import Evaluator, refuse_taken_names
from hvdgan.networks.fast.choice import use_fast_kernels
from hvdgan.networks.nested_layers import change_class, layers_of
from hvdgan.recipe import DataSpec, Recipe, mistakes
from hvdgan.recipe.augment import check_augmentations
from hvdgan.recipe.loading import digests_of_files
from hvdgan.recipe.mistakes import Mistake
from hvdgan.recipe.results import make_recipe, stages_of
from hvdgan.recipe.schedule import Schedule
from hvdgan.recipe.stage_checks import checked_stages
from hvdgan.training.command import to_json
from hvdgan.training.compiler import check_jit
from hvdgan.training.frozen import Digests, agree_on_frozen, digests_of
from hvdgan.training.loss_scale import LossScale
from hvdgan.training.optimizers import check_optimizers
from hvdgan.training.repeatable import refuse_unrepeatable
from hvdgan.training.samples import Sampler
from hvdgan.training.state import TrainState, build_state, prepare_keras
from hvdgan.training.step import StageStep
from hvdgan.values.sample_values import SampleValues, are_pixels

_MOST_STEPS = 2**63 - 1  # steps are counted in int64


T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Parts:
    """The parts that a recipe defines.

    Args:
        recipe: recipe with its options.
        state: networks, optimizers and averages.
        schedule: stages of the run.
        steps: step of each stage.
    """

    recipe: Recipe
    state: TrainState
    schedule: Schedule
    steps: tuple[StageStep, ...]


def make_parts(config: Config, recipe_class: type[Recipe], options: Any, spec: DataSpec, ranks: Ranks) -> Parts:
    """Make the parts of a run; contains no collective."""
    prepare_keras(config.precision, config.seed, "__init__()")
    recipe = make_recipe(recipe_class, options, spec)
    prepare_keras(config.precision, config.seed)
    if config.ema_half_life is not None and not recipe.ema:
        raise UserError(
            f"--ema-half-life {config.ema_half_life:.12g}: the recipe averages no network (its ema is empty); "
            "leave the flag out"
        )
    state = build_state(recipe, config.ema_decay)
    _synchronise_batch_norm(state, ranks, config)
    use_fast_kernels(state.networks.values(), state.optimizers.values())
    try:
        schedule = Schedule(checked_stages(stages_of(recipe), list(state.networks), config.stages, frozen=state.frozen))
    except Mistake as mistake:
        mistake.at = mistake.at or recipe.stages
        raise
    if schedule.total_steps > _MOST_STEPS:
        stages = ",".join(f"{stage.name}={stage.steps}" for stage in schedule.stages)
        raise UserError(f"--stages {stages}: expected at most {_MOST_STEPS:,} steps of all stages together")
    _check_rates(config, state)
    check_optimizers(schedule.stages, state)
    if config.precision == "mixed_float16":
        names = {update.name for stage in schedule.stages for update in stage.updates}
        state.loss_scales.update({name: LossScale.new(name) for name in sorted(names)})
    steps = tuple(StageStep(recipe, state, stage, ranks, config) for stage in schedule.stages)
    return Parts(recipe, state, schedule, steps)


def trace(
    config: Config,
    parts: Parts,
    sampler: Sampler,
    evaluator: Evaluator | None,
    comparison: Comparison | None,
    source: Samples,
) -> set[str]:
    """Trace everything that a run executes, so that a mistake is found before the first step; no collective."""
    for step in parts.steps:
        step.trace(source)
    sampler.trace()

    def refuse(traced: "tf.types.experimental.ConcreteFunction", where: str) -> None:
        refuse_unrepeatable(traced, parts.state, where)

    evaluated = evaluator.trace(refuse) if evaluator else set()
    if comparison:
        distances = comparison.trace(refuse, f"recipe {type(parts.recipe).__name__}")
        refuse_taken_names(parts.recipe, evaluated, distances)
        evaluated |= distances
    for step in parts.steps:
        _check_plateau(step, evaluated)
    if config.diff_augment and not any(step.forward.augments for step in parts.steps):
        raise UserError("--diff-augment: no loss of the recipe calls batch.augment; leave the flag out")
    return evaluated.union(*(step.metrics for step in parts.steps))


def _synchronise_batch_norm(state: TrainState, ranks: Ranks, config: Config) -> None:
    plain = keras.layers.BatchNormalization
    norms = [
        (name, layer)
        for name, network in state.networks.items()
        for layer in layers_of(network)
        if isinstance(layer, plain)
    ]
    if config.sync_batch_norm and not norms:
        raise UserError("--sync-batch-norm: no network has a BatchNormalization layer; leave the flag out")
    for name, norm in norms:
        if not (config.sync_batch_norm or norm.synchronized):
            continue
        kind = type(norm)
        if kind.call is not plain.call:
            raise Mistake(
                f"network {name}, layer {norm.name}: {kind.__name__} has a call() of its own, which --sync-batch-norm "
                "or synchronized=True would not reach; let the layer hold a BatchNormalization and call that",
                kind,
            )
        synchronised = SynchronisedBatchNormalization
        # Of a user's subclass all but call() stays.
        change_class(norm, synchronised if kind is plain else type(kind.__name__, (kind, synchronised), {}))
        norm.set_ranks(ranks, ranks.weights(config.global_batch_size)[ranks.rank])


def _check_rates(config: Config, state: TrainState) -> None:
    if config.lr_scaling != "none" and (fixed := state.networks.keys() - state.learning_rates.keys()):
        raise UserError(
            f"--lr-scaling {config.lr_scaling}: the optimizer of {', '.join(sorted(fixed))} has a schedule of its own, "
            "which cannot be scaled; give the schedule to the Update, as LearningRate"
        )


def _check_plateau(step: StageStep, evaluated: set[str]) -> None:
    until = step.stage.until
    if until and until.metric not in step.metrics | evaluated:
        raise Mistake(
            f"stage {step.stage.name}: it ends on a plateau of {until.metric}, and its metrics are "
            f"{', '.join(sorted(step.metrics | evaluated))}",
            step.stage,
        )


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that is built, the same on every rank.

    Args:
        config: configuration.
        recipe: recipe with its options.
        source: images to train on.
        held_out: images held out; None if there are none.
        evaluated: held-out images that evaluations use.
        ranks: ranks of the run.
        state: networks, optimizers and averages.
        schedule: stages of the run.
        steps: traced step of each stage.
        sampler: sampler of the grids.
        evaluator: evaluator of the held-out images.
        comparison: comparison of generated with real samples.
        code: digests of the files of the user's code, by their paths.
        frozen: digests of frozen networks, and of what else is read and never changed.
    """

    config: Config
    recipe: Recipe
    source: Samples
    held_out: Samples | None
    evaluated: Samples | None
    ranks: Ranks
    state: TrainState
    schedule: Schedule
    steps: tuple[StageStep, ...]
    sampler: Sampler
    evaluator: Evaluator | None
    comparison: Comparison | None
    code: Mapping[str, str]
    frozen: Digests

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
        """Number of steps at which the run ends."""
        total = self.schedule.total_steps
        return total if self.config.max_steps is None else min(self.config.max_steps, total)

    def settings(self) -> dict[str, Any]:
        """Return the contents of config.json."""
        return to_json(self.config, self.recipe.options)


def folder_of(config: Config) -> Path:
    """Return the run folder of a configuration."""
    return config.run_dir or Path("runs") / config.recipe.replace(":", ".")


def checkpoints_of(config: Config) -> Path:
    """Return the folder of a configuration's checkpoints."""
    return folder_of(config) / "checkpoints"


@dataclasses.dataclass(frozen=True)
class KnownMaps:
    """The value maps of data that a checkpoint was trained on.

    Args:
        fingerprint: fingerprint of the data.
        values: their maps, with all statistics.
    """

    fingerprint: str
    values: SampleValues


def build(
    config: Config, recipe_class: type[Recipe], options: Any, ranks: Ranks, known: KnownMaps | None = None
) -> Run:
    """Build a run, and write nothing; every rank calls this.

    Args:
        config: configuration of the run.
        recipe_class: class of the recipe.
        options: instance of recipe_class.Options.
        ranks: ranks of the run.
        known: maps of the checkpoint to resume, whose statistics serve if the data are the same; None: there is none.

    Raises:
        UserError: the data, the batch size or the recipe cannot be used.
        RunError: the ranks would build different runs.
    """
    shared_errors.agree({**to_json(config, options), **versions()}, ranks, "what to train")
    _check_micro_batches(ranks, config)
    check_jit(config, ranks)
    source, held_out = _open(config, recipe_class, ranks, known)
    check_augmentations(config, source.layout.seen, source.layout.input_seen)
    spec = spec_of(source)
    parts = _on_all(ranks, recipe_class, lambda: make_parts(config, recipe_class, options, spec, ranks), "the recipe")
    recipe, state = parts.recipe, parts.state
    shared_errors.agree(digests_of_files(recipe), ranks, "the files of the recipe")
    shared_errors.agree(_facts(source, parts), ranks, "what they have built")
    sampler = Sampler(recipe, state, source, config.seed)
    evaluated = held_out.some(config.evaluation.eval_held_out).mapped(source.values) if held_out else None
    evaluator = Evaluator(recipe, state.sampling_nets, evaluated, ranks, config) if evaluated else None
    comparison = _on_all(
        ranks, recipe_class, lambda: _compared(config, parts, (source, evaluated), ranks), "the evaluation"
    )
    if comparison:
        comparison.agree()
    metrics = _on_all(
        ranks, recipe_class, lambda: trace(config, parts, sampler, evaluator, comparison, source), "the traces"
    )
    check_best_metric(config.best_metric, metrics)
    frozen = digests_of(state)
    agree_on_frozen(frozen, ranks)
    made = parts.schedule, parts.steps, sampler, evaluator, comparison, digests_of_files(recipe), frozen
    return Run(config, recipe, source, held_out.samples if held_out else None, evaluated, ranks, state, *made)


def _compared(config: Config, parts: Parts, sources: tuple[Samples, Samples | None], ranks: Ranks) -> Comparison | None:
    threads, folder = reading_threads(config.pipeline.threads, ranks), folder_of(config) / "cache"
    nets = parts.state.sampling_nets
    return comparison_in_training(config, parts.recipe, nets, sources, ranks, threads=threads, folder=folder)


def _open(
    config: Config, recipe_class: type[Recipe], ranks: Ranks, known: KnownMaps | None
) -> tuple[Samples, HeldOut | None]:
    """Open the data and split them; the numbers of those to train on, which alone determine the maps, are mapped."""
    everything = open_source(config, paired=recipe_class.paired, peers=ranks)
    everything = cached(everything, config.pipeline.cache, ranks)
    source, held_out = split(everything, config.holdout, ranks, is_evaluated=recipe_class.evaluates())
    are_known = known is not None and known.fingerprint == source.fingerprint
    return source.mapped(with_statistics(source, ranks, known.values if known and are_known else None)), held_out


def spec_of(source: Samples) -> DataSpec:
    """Describe mapped samples to a recipe."""
    values, layout = source.values, source.layout
    return DataSpec(
        layout.seen,
        len(source),
        source.num_classes,
        layout.input_seen,
        None if source.constants is None else (*layout.seen[:-1], source.constants.shape[-1]),
        () if values.conditions is None else values.conditions.channels,
        values,
        layout,
        source.constants,
        source.is_pictures or are_pixels(values, layout, source.stored_dtype),
        tuple(source.class_names or ()),
        source.missing,
    )


def _facts(source: Samples, parts: Parts) -> dict[str, Any]:
    """Return what the ranks compare: the data, the stages and the variables."""
    return {
        "data fingerprint": source.fingerprint,
        "broken files": hashlib.sha256(json.dumps(source.bad_files).encode()).hexdigest(),
        "stages": [
            [stage.name, stage.steps, [[update.name, list(update.owns), update.every] for update in stage.updates]]
            for stage in parts.schedule.stages
        ],
        **{name: f"{variable.dtype}{tuple(variable.shape)}" for name, variable in parts.state.tensors().items()},
    }


def _on_all(ranks: Ranks, recipe: type[Recipe], work: Callable[[], T], name: str) -> T:
    """Do work of the recipe on every rank; an error on one rank ends the run on all."""

    def checked() -> T:
        with mistakes.of(recipe):
            return work()

    # A file that the recipe reads may be missing on one host only.
    return shared_errors.on_all(checked, ranks, name, names_rank=True)


def _check_micro_batches(ranks: Ranks, config: Config) -> None:
    first, past = ranks.slice_of(config.global_batch_size)
    if (past - first) % config.accumulate:
        raise UserError(
            f"--accumulate {config.accumulate}: a rank's {past - first} images of each global batch of "
            f"{config.global_batch_size} cannot be cut into {config.accumulate} equal micro-batches"
        )
