"""Makes the parts of a run that its recipe defines: networks, optimizers, the schedule and the traced steps."""

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from hvdgan.cli.config import Config
from hvdgan.cli.errors import UserError
from hvdgan.data import Samples
from hvdgan.distributed.batch_norm import SynchronisedBatchNormalization
from hvdgan.distributed.ranks import Ranks
from hvdgan.evaluation.comparison import Comparison
from hvdgan.evaluation.held_out import Evaluator, refuse_taken_names
from hvdgan.networks.fast.choice import use_fast_kernels
from hvdgan.networks.nested_layers import change_class, layers_of
from hvdgan.recipe import DataSpec, Recipe
from hvdgan.recipe.mistakes import Mistake
from hvdgan.recipe.results import make_recipe, stages_of
from hvdgan.recipe.schedule import Schedule
from hvdgan.recipe.stage_checks import checked_stages
from hvdgan.training.learning_rate import check_optimizers
from hvdgan.training.loss_scale import LossScale
from hvdgan.training.repeatable import refuse_unrepeatable
from hvdgan.training.samples import Sampler
from hvdgan.training.state import TrainState, build_state, prepare_keras
from hvdgan.training.step import StageStep

_MOST_STEPS = 2**63 - 1  # steps are counted in int64


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
