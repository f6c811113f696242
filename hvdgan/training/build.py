"""Builds a run, the same on every rank: its data, and the parts that its recipe defines."""

import contextlib
import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import keras

from hvdgan.data import Samples
from hvdgan.data.domains import KnownMaps, open_domains
from hvdgan.data.samples import arrays_seen
from hvdgan.distributed.affinity import reading_threads
from hvdgan.distributed.backend import versions
from hvdgan.distributed.batch_norm import synchronise
from hvdgan.distributed.joint_means import JointMean
from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import UserError, shared_errors
from hvdgan.evaluation.comparison import Comparison, comparison_in_training
from hvdgan.evaluation.held_out import Evaluator, refuse_taken_names
from hvdgan.evaluation.real_statistics import stamp_of
from hvdgan.networks import sums
from hvdgan.networks.kernels import choose_remapper, use_fast_kernels
from hvdgan.networks.layers import joint_means_of, layers_of
from hvdgan.recipe import DataSpec, Recipe, ada, recipe_errors
from hvdgan.recipe.augment import check_augmentations, check_flips
from hvdgan.recipe.contract import check_methods, make_recipe, stages_of, state_of
from hvdgan.recipe.data_spec import ArraysByName
from hvdgan.recipe.loading import digests_of_files
from hvdgan.recipe.recipe_errors import Mistake, check
from hvdgan.recipe.scheduled import ScheduledValues
from hvdgan.recipe.stage_plan import StagePlan, checked_stages
from hvdgan.recipe.stages import local_networks
from hvdgan.settings.config import EMA_DECAY, Config, to_json
from hvdgan.training.batch_sizes import check_micro_batches, check_packs
from hvdgan.training.digests import Digests, agree_on_frozen, digests_of
from hvdgan.training.grids import Sampler
from hvdgan.training.initial_weights import fill_frozen
from hvdgan.training.optimizers import check_optimizers
from hvdgan.training.rank_state import RankState
from hvdgan.training.repeatable import operations, refuse_unrepeatable
from hvdgan.training.step import StageStep
from hvdgan.training.train_state import DeclaredState, LossScale, TrainState, build_state, prepare_keras
from hvdgan.values.sample_values import are_pixels

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trainable:
    """What a recipe defines: itself with its options, its variables, its stages and the step of each."""

    recipe: Recipe
    state: TrainState
    plan: StagePlan
    steps: tuple[StageStep, ...]
    """traced step of each stage"""


def make_trainable(config: Config, recipe_class: type[Recipe], options: Any, spec: DataSpec, ranks: Ranks) -> Trainable:
    """Make what a recipe defines; contains no collective."""
    prepare_keras(config.precision, config.seed, "__init__()")
    recipe = make_recipe(recipe_class, options, spec)
    check_packs(ranks, config, recipe)
    prepare_keras(config.precision, config.seed)
    if config.ema_half_life is not None and not recipe.ema:
        raise UserError(
            f"--ema-half-life {config.ema_half_life:.12g}: the recipe averages no network (its ema is empty); "
            "leave the flag out"
        )
    state = build_state(recipe, config.ema_decay, config.freeze)
    fill_frozen(config, state)
    for name, layer in ((name, each) for name, net in state.networks.items() for each in (*layers_of(net), net)):
        what = f"network {name}, layer {layer.name} computes in float16, unscaled; give --precision mixed_float16"
        check(layer.compute_dtype != "float16" or config.precision == "mixed_float16", what, recipe.networks)
        what = "equalizes by the histogram of all samples, of which a rank has its own; leave it out"
        is_shared = isinstance(layer, keras.layers.Equalization)
        check(not is_shared, f"network {name}, layer {layer.name}: {what}", recipe.networks)
    _synchronise_batch_norm(state, ranks, config)
    use_fast_kernels(state.networks.values(), state.optimizers.values())
    if config.deterministic or not ranks.on_gpu:
        sums.fix_order()
    stages = stages_of(recipe)
    try:
        plan = StagePlan(
            checked_stages(stages, list(state.networks), config.stages, frozen=state.frozen, sharing=state.sharing)
        )
    except Mistake as mistake:
        mistake.at = mistake.at or recipe.stages
        raise
    declared = state_of(recipe)
    if config.ada is not None:
        declared["ada"] = ada.declared(spec, declared)
    kept = DeclaredState(declared, ranks, config.global_batch_size)
    local = state.sharing.relatives(local_networks(stages))
    schedules = ScheduledValues(stages, options, (spec.num_images, config.global_batch_size))
    _check_flags(schedules.variables, config)
    state = dataclasses.replace(state, declared_state=kept, schedules=schedules, local=local)
    if config.lr_scaling != "none" and (fixed := state.optimizers.keys() - state.learning_rates.keys()):
        raise UserError(
            f"--lr-scaling {config.lr_scaling}: the optimizer of {', '.join(sorted(fixed))} has a schedule of its own, "
            "which cannot be scaled; give the Update a Schedule"
        )
    for name, network in state.networks.items() if ranks.size > 1 else ():
        for variable in joint_means_of(network) if name not in state.local else ():
            variable.__class__ = JointMean
    check_optimizers(plan.stages, state)
    if config.precision == "mixed_float16":
        names = {update.name for stage in plan.stages for update in stage.updates}
        state.loss_scales.update({name: LossScale.new(name) for name in sorted(names)})
    steps = tuple(StageStep(recipe, state, stage, ranks, config) for stage in plan.stages)
    return Trainable(recipe=recipe, state=state, plan=plan, steps=steps)


def _check_flags(names: Collection[str], config: Config) -> None:
    """Refuse a flag for what a schedule sets."""
    for name, flag, is_set in (
        ("ema_half_life", "--ema-half-life", config.ema_half_life is not None),
        ("ema_half_life", "--ema-decay", config.ema_decay not in (None, 0, EMA_DECAY)),
        ("augment", "--ada", config.ada is not None),
    ):
        if is_set and name in names:
            raise UserError(f"{flag}: the recipe's stages have a schedule {name}; leave the flag out")


def trace(run: "Run") -> set[str]:
    """Trace everything that a run executes, so that a mistake is found before the first step; no collective."""
    config, recipe = run.config, f"recipe {type(run.recipe).__name__}"
    for step in run.steps:
        with _no_new_variables(step.networks, run.recipe):
            step.trace(run.source)
        where = f"{recipe}, stage {step.stage.name}"
        for names, traced in step.traced.items():
            scopes = {f"{step.stage.name}/{name}": f"{where}, update {name}" for name in names}
            refuse_unrepeatable(traced, where, run.state, scopes)
    graphs = (traced.graph for step in run.steps for traced in step.traced.values())
    choose_remapper([each[-1] for each, _ in operations(graph)] for graph in graphs)
    run.ranks.activity.doing("tracing samples and evaluations")
    run.sampler.trace()
    refuse = functools.partial(refuse_unrepeatable, state=run.state)
    evaluated = run.evaluator.trace(refuse) if run.evaluator else set()
    if run.comparison and not run.comparison.pace:
        run.comparison.trace(refuse, recipe)
        refuse_taken_names(run.recipe, evaluated, run.comparison.names)
        evaluated |= run.comparison.names
    for step in run.steps:
        until, found = step.stage.until, step.metrics | evaluated
        if until and until.metric not in found:
            what = f"it ends on a plateau of {until.metric}, and its metrics are {', '.join(sorted(found))}"
            raise Mistake(f"stage {step.stage.name}: {what}", step.stage)
    for flag, is_set in (
        ("--diff-augment", bool(config.diff_augment)),
        ("--ada", config.ada is not None),
        ("schedule augment", "augment" in run.state.schedules.variables),
    ):
        if is_set and not any(step.augments for step in run.steps):
            raise UserError(f"{flag}: no loss of the recipe calls batch.augment; leave the flag out")
    if config.ada is not None and not any(ada.sign_of(step.stage.updates, step.metrics) for step in run.steps):
        raise UserError(
            f"--ada: no loss of the recipe reports the metric {ada.METRIC}, the mean sign of the discriminator's "
            "logits of augmented real pictures; add it to the metrics that the loss returns"
        )
    return evaluated.union(*(step.metrics for step in run.steps))


@contextlib.contextmanager
def _no_new_variables(networks: Mapping[str, keras.Model], recipe: Recipe) -> Iterator[None]:
    """Refuse networks that make variables while the block traces them: no optimizer would know these."""
    known = {id(variable) for network in networks.values() for variable in network.variables}
    try:
        yield
    finally:
        for name, network in networks.items():
            for path in (variable.path for variable in network.variables if id(variable) not in known):
                what = f"network {name} makes {path} in training only"
                raise Mistake(f"{what}; build it by {name}(x, training=True)", recipe.networks)


def _synchronise_batch_norm(state: TrainState, ranks: Ranks, config: Config) -> None:
    """Take the statistics of the layers that ask for it, or with --sync-batch-norm of all, over all ranks."""
    plain, weight = keras.layers.BatchNormalization, ranks.weights(config.global_batch_size)[ranks.rank]
    layers = {id(layer): (name, layer) for name, network in state.networks.items() for layer in layers_of(network)}
    norms = [(name, layer) for name, layer in layers.values() if isinstance(layer, plain)]
    if config.sync_batch_norm and not norms:
        raise UserError("--sync-batch-norm: no network has a BatchNormalization layer; leave the flag out")
    for name, norm in norms:
        if config.sync_batch_norm or norm.synchronized:
            kind = type(norm)
            if kind.call is not plain.call:
                raise Mistake(
                    f"network {name}, layer {norm.name}: {kind.__name__} has a call() of its own, which "
                    "--sync-batch-norm or synchronized=True would not reach; let the layer hold a BatchNormalization "
                    "and call that",
                    kind,
                )
            synchronise(norm, ranks, weight)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run(Trainable):
    """A run that is built, the same on every rank."""

    config: Config
    source: Samples
    held_out: Samples | None
    evaluated: Samples | None
    """held-out images that evaluations use"""
    ranks: Ranks
    rank_state: RankState
    """the variables whose values differ between the ranks"""
    sampler: Sampler
    evaluator: Evaluator | None
    comparison: Comparison | None
    code: Mapping[str, str]
    """digests of the files of the user's code, by their paths"""

    @functools.cached_property
    def frozen(self) -> Digests:
        """Digests of what the traced graphs read and no checkpoint holds."""
        return digests_of(self.state)

    @property
    def run_dir(self) -> Path:
        return folder_of(self.config)

    @property
    def checkpoints(self) -> Path:
        return self.run_dir / "checkpoints"

    @property
    def config_path(self) -> Path:
        return self.run_dir / "config.json"

    @functools.cached_property
    def stamps(self) -> list[Any]:
        """What changes with the files of each domain, or None; found once on rank 0, as there may be millions."""
        return [stamp_of(each) for each in self.source.domains.values()] if self.ranks.is_root else []

    @property
    def last_step(self) -> int:
        """Number of steps at which the run ends."""
        total = self.plan.total_steps
        return total if self.config.max_steps is None else min(self.config.max_steps, total)

    def settings(self) -> dict[str, Any]:
        """Return the contents of config.json."""
        return to_json(self.config, self.recipe.options)


def folder_of(config: Config) -> Path:
    """Return the run folder of a configuration."""
    return config.run_dir or Path("runs") / config.recipe.replace(":", ".")


def build(
    config: Config, recipe_class: type[Recipe], options: Any, ranks: Ranks, known: KnownMaps | None = None
) -> Run:
    """Build a run, and write nothing; every rank calls this.

    The statistics of `known` maps, of the checkpoint to resume, serve if the data are the same.
    """
    shared_errors.agree({**to_json(config, options), **versions()}, ranks, "what to train")
    check_micro_batches(ranks, config)
    with recipe_errors.of(recipe_class):
        check_methods(recipe_class)
    if recipe_class.domains and config.evaluation.eval_samples:
        raise UserError(
            f"--eval-samples {config.evaluation.eval_samples}: samples are compared with those of one data set, and "
            f"the recipe has the domains {', '.join(recipe_class.domains)}; leave the flag out, its evaluate() measures"
        )
    ranks.activity.doing("opening the data")
    source, held_out, evaluated = open_domains(
        config,
        recipe_class.domains,
        ranks,
        paired=recipe_class.paired,
        is_evaluated=recipe_class.evaluates(),
        known=known,
    )
    for each in source.domains.values():
        flag = "--flip-axes" if config.arrays.flip_axes else "--flip"
        others = {f"array {name}": shape for name, shape in arrays_seen(each, each.values).items()}
        if (inputs := each.layout.input_seen) is not None:
            others["inputs"] = inputs
        check_flips(config.mirrored_axes, flag, each.layout.seen, others)
        check_augmentations(config.diff_augment, each.layout.seen)
    spec = spec_of(source, recipe_class.domains)
    ranks.activity.doing("building the networks")
    make = functools.partial(make_trainable, config, recipe_class, options, spec, ranks)
    made = _on_all(ranks, recipe_class, make, "the recipe")
    recipe, state = made.recipe, made.state
    code = digests_of_files(recipe, config.recipe, config.data)
    shared_errors.agree(code, ranks, "the files of the recipe")
    shared_errors.agree(_facts(source, made), ranks, "what they have built")
    sampler = Sampler(recipe, state, source, config.seed)
    evaluator = Evaluator(recipe, state.sampling_nets, evaluated, ranks, config) if evaluated else None
    threads, folder = reading_threads(config.pipeline.threads, ranks), folder_of(config) / "cache"

    def compared() -> Comparison | None:
        nets, sources = state.sampling_nets, (source, evaluated)
        return comparison_in_training(config, recipe, nets, sources, ranks, threads=threads, folder=folder)

    comparison = _on_all(ranks, recipe_class, compared, "the evaluation")
    if comparison:
        comparison.agree()
    run = Run(
        **vars(made),
        config=config,
        source=source,
        held_out=held_out,
        evaluated=evaluated,
        ranks=ranks,
        rank_state=RankState(state, ranks, config.global_batch_size),
        sampler=sampler,
        evaluator=evaluator,
        comparison=comparison,
        code=code,
    )
    names = _on_all(ranks, recipe_class, lambda: trace(run), "the traces")
    if comparison and comparison.pace:
        if names & comparison.names:  # what the recipe measures has the name of a distance
            run = dataclasses.replace(run, comparison=None)
        else:
            names |= comparison.names
    if config.best_metric is not None and config.best_metric not in names:
        raise UserError(f"--best-metric {config.best_metric}: the run has {', '.join(sorted(names))}")
    agree_on_frozen(run.frozen, ranks)
    return run


def spec_of(source: Samples, domains: Sequence[str] = ()) -> DataSpec:
    """Describe mapped samples to a recipe, and those of all its domains if it has several."""
    if domains:
        specs = [spec_of(each) for each in source.domains.values()]
        return dataclasses.replace(specs[0], domains=dict(zip(domains, specs, strict=True)))
    values, layout, constants = source.values, source.layout, source.constants
    return DataSpec(
        shape=layout.seen,
        num_images=len(source),
        num_classes=source.num_classes,
        input_shape=layout.input_seen,
        array_shapes=ArraysByName(arrays_seen(source, values)),
        constants_shape=None if constants is None else (*layout.seen[:-1], constants.shape[-1]),
        conditions=() if values.conditions is None else values.conditions.channels,
        values=values,
        layout=layout,
        constants=constants,
        pixels=source.is_pictures or are_pixels(values, layout, source.stored_dtype),
        class_names=tuple(source.class_names or ()),
        missing=source.missing,
        rate=source.rate,
    )


def _facts(source: Samples, made: Trainable) -> dict[str, Any]:
    """Return what the ranks compare: the data, the stages and the variables."""
    return {
        "data fingerprint": source.fingerprint,
        "broken files": hashlib.sha256(
            json.dumps([each.bad_files for each in source.domains.values()]).encode()
        ).hexdigest(),
        "stages": [
            [
                stage.name,
                stage.steps,
                stage.together,
                [[each.name, [*each.owns], each.every, each.reduce, each.optimizer] for each in stage.updates],
            ]
            for stage in made.plan.stages
        ],
        **{name: f"{variable.dtype}{tuple(variable.shape)}" for name, variable in made.state.tensors().items()},
    }


def _on_all(ranks: Ranks, recipe: type[Recipe], work: Callable[[], T], name: str) -> T:
    """Do work of the recipe on every rank; an error on one rank ends the run on all."""

    def checked() -> T:
        with recipe_errors.of(recipe):
            return work()

    # A file that the recipe reads may be missing on one host only.
    return shared_errors.on_all(checked, ranks, name, names_rank=True)
