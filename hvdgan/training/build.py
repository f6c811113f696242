"""Builds a run, the same on every rank: its data, and the parts that its recipe defines."""

import contextlib
import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import keras
import tensorflow as tf

from hvdgan.checkpoints.checkpoint import versions
from hvdgan.checkpoints.saver import check_best_metric
from hvdgan.data import Samples, cached, open_source
from hvdgan.data.domains import joined, refuse_unclear, settings_of
from hvdgan.data.holdout import split
from hvdgan.data.order import balanced
from hvdgan.data.statistics import with_statistics
from hvdgan.distributed.affinity import reading_threads
from hvdgan.distributed.batch_norm import SynchronisedBatchNormalization
from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import UserError, shared_errors
from hvdgan.evaluation.comparison import Comparison, comparison_in_training
from hvdgan.evaluation.held_out import Evaluator, refuse_taken_names
from hvdgan.evaluation.real_statistics import stamp_of
from hvdgan.networks.fast.kernels import use_fast_kernels
from hvdgan.networks.nested_layers import change_class, layers_of
from hvdgan.recipe import DataSpec, Recipe, ada, recipe_errors
from hvdgan.recipe.augment import check_augmentations, check_flips
from hvdgan.recipe.contract import check_methods, make_recipe, stages_of, state_of
from hvdgan.recipe.loading import digests_of_files
from hvdgan.recipe.recipe_errors import Mistake, check, described
from hvdgan.recipe.schedule import Schedule, checked_stages
from hvdgan.recipe.stages import local_networks
from hvdgan.settings.config import Config
from hvdgan.training.command import to_json
from hvdgan.training.frozen import Digests, agree_on_frozen, digests_of
from hvdgan.training.grids import Sampler
from hvdgan.training.optimizers import check_optimizers
from hvdgan.training.recipe_state import RecipeState
from hvdgan.training.repeatable import operations, refuse_unrepeatable
from hvdgan.training.state import LocalNetworks, LossScale, TrainState, build_state, prepare_keras
from hvdgan.training.step import StageStep
from hvdgan.values.sample_values import SampleValues, are_pixels

T = TypeVar("T")


class Parts(NamedTuple):
    """The parts that a recipe defines: the recipe with its options, its variables, its stages and the step of each."""

    recipe: Recipe
    state: TrainState
    schedule: Schedule
    steps: tuple[StageStep, ...]


def make_parts(config: Config, recipe_class: type[Recipe], options: Any, spec: DataSpec, ranks: Ranks) -> Parts:
    """Make the parts of a run; contains no collective."""
    prepare_keras(config.precision, config.seed, "__init__()")
    recipe = make_recipe(recipe_class, options, spec)
    check_packs(ranks, config, recipe)
    prepare_keras(config.precision, config.seed)
    if config.ema_half_life is not None and not recipe.ema:
        raise UserError(
            f"--ema-half-life {config.ema_half_life:.12g}: the recipe averages no network (its ema is empty); "
            "leave the flag out"
        )
    state = build_state(recipe, config.ema_decay)
    for name, layer in ((name, each) for name, net in state.networks.items() for each in (*layers_of(net), net)):
        what = f"network {name}, layer {layer.name} computes in float16, unscaled; give --precision mixed_float16"
        check(layer.compute_dtype != "float16" or config.precision == "mixed_float16", what, recipe.networks)
    _synchronise_batch_norm(state, ranks, config)
    use_fast_kernels(state.networks.values(), state.optimizers.values())
    stages = stages_of(recipe)
    try:
        schedule = Schedule(checked_stages(stages, list(state.networks), config.stages, frozen=state.frozen))
    except Mistake as mistake:
        mistake.at = mistake.at or recipe.stages
        raise
    declared = state_of(recipe, stages)
    if config.ada is not None:
        declared["ada"] = ada.declared(spec, declared)
    kept = RecipeState(declared, ranks, config.global_batch_size)
    local = LocalNetworks(local_networks(stages), state.tensors(), ranks)
    state = dataclasses.replace(state, recipe_state=kept, local=local)
    if config.lr_scaling != "none" and (fixed := state.networks.keys() - state.learning_rates.keys()):
        raise UserError(
            f"--lr-scaling {config.lr_scaling}: the optimizer of {', '.join(sorted(fixed))} has a schedule of its own, "
            "which cannot be scaled; give the schedule to the Update, as LearningRate"
        )
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
    recipe = f"recipe {type(parts.recipe).__name__}"
    for step in parts.steps:
        with _no_new_variables(step.networks, parts.recipe):
            step.trace(source)
        where = f"{recipe}, stage {step.stage.name}"
        for names, traced in step.traced.items():
            scopes = {f"{step.stage.name}/{name}": f"{where}, update {name}" for name in names}
            refuse_unrepeatable(traced, where, parts.state, scopes)
            _switch_off_remapper_if_it_fails(traced.graph)
    sampler.trace()
    refuse = functools.partial(refuse_unrepeatable, state=parts.state)
    evaluated = evaluator.trace(refuse) if evaluator else set()
    if comparison:
        distances = comparison.trace(refuse, recipe)
        refuse_taken_names(parts.recipe, evaluated, distances)
        evaluated |= distances
    for step in parts.steps:
        _check_plateau(step, evaluated)
    for flag, is_set in (("--diff-augment", bool(config.diff_augment)), ("--ada", config.ada is not None)):
        if is_set and not any(step.augments for step in parts.steps):
            raise UserError(f"{flag}: no loss of the recipe calls batch.augment; leave the flag out")
    if config.ada is not None and not any(ada.sign_of(step.stage.updates, step.metrics) for step in parts.steps):
        raise UserError(
            f"--ada: no loss of the recipe reports the metric {ada.METRIC}, the mean sign of the discriminator's "
            "logits of augmented real pictures; add it to the metrics that the loss returns"
        )
    return evaluated.union(*(step.metrics for step in parts.steps))


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


def _switch_off_remapper_if_it_fails(graph: tf.Graph) -> None:
    """Switch the remapper off if it would fail on this graph; otherwise leave it on.

    It fuses a convolution, its bias and a leaky ReLU into one kernel, and fails if the gradient of the leaky ReLU reads
    the biased convolution: nothing is fused, and every rank prints an error. The gradient of hvdgan's leaky ReLU layer
    reads the layer's output (hvdgan/networks/fast/kernels.py); those of tf.nn.leaky_relu and of the activation
    "leaky_relu" read its input.
    """
    found = (chain[-1] for chain, _ in operations(graph))
    if any(each.type == "LeakyReluGrad" and each.inputs[1].op.type == "BiasAdd" for each in found):
        tf.config.optimizer.set_experimental_options({"remapping": False})


def _synchronise_batch_norm(state: TrainState, ranks: Ranks, config: Config) -> None:
    plain = keras.layers.BatchNormalization
    layers = ((name, layer) for name, network in state.networks.items() for layer in layers_of(network))
    norms = [(name, layer) for name, layer in layers if isinstance(layer, plain)]
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
    """A run that is built, the same on every rank."""

    config: Config
    recipe: Recipe
    source: Samples
    held_out: Samples | None
    evaluated: Samples | None
    """held-out images that evaluations use"""
    ranks: Ranks
    state: TrainState
    schedule: Schedule
    steps: tuple[StageStep, ...]
    """traced step of each stage"""
    sampler: Sampler
    evaluator: Evaluator | None
    comparison: Comparison | None
    code: Mapping[str, str]
    """digests of the files of the user's code, by their paths"""
    frozen: Digests

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
        total = self.schedule.total_steps
        return total if self.config.max_steps is None else min(self.config.max_steps, total)

    def settings(self) -> dict[str, Any]:
        """Return the contents of config.json."""
        return to_json(self.config, self.recipe.options)


def folder_of(config: Config) -> Path:
    """Return the run folder of a configuration."""
    return config.run_dir or Path("runs") / config.recipe.replace(":", ".")


class KnownMaps(NamedTuple):
    """The fingerprint of the data that a checkpoint was trained on, and the maps of each domain with all statistics."""

    fingerprint: str
    values: Sequence[SampleValues]


def build(
    config: Config, recipe_class: type[Recipe], options: Any, ranks: Ranks, known: KnownMaps | None = None
) -> Run:
    """Build a run, and write nothing; every rank calls this.

    The statistics of `known` maps, of the checkpoint to resume, serve if the data are the same.

    Raises:
        UserError: the data, the batch size or the recipe cannot be used.
        RunError: the ranks would build different runs.
    """
    ranks = dataclasses.replace(ranks, deterministic=config.deterministic)
    shared_errors.agree({**to_json(config, options), **versions()}, ranks, "what to train")
    check_micro_batches(ranks, config)
    source, held_out, evaluated = _open(config, recipe_class, ranks, known)
    for each in source.domains.values():
        flag = "--flip-axes" if config.arrays.flip_axes else "--flip"
        check_flips(config.mirrored_axes, flag, each.layout.seen, each.layout.input_seen)
        check_augmentations(config.diff_augment, each.layout.seen)
    spec = spec_of(source, recipe_class.domains)
    parts = _on_all(ranks, recipe_class, lambda: make_parts(config, recipe_class, options, spec, ranks), "the recipe")
    recipe, state = parts.recipe, parts.state
    code = digests_of_files(recipe, config.recipe, config.data)
    shared_errors.agree(code, ranks, "the files of the recipe")
    shared_errors.agree(_facts(source, parts), ranks, "what they have built")
    sampler = Sampler(recipe, state, source, config.seed)
    evaluator = Evaluator(recipe, state.sampling_nets, evaluated, ranks, config) if evaluated else None
    threads, cache = reading_threads(config.pipeline.threads, ranks), folder_of(config) / "cache"
    sets = config, recipe, state.sampling_nets, (source, evaluated), ranks
    compared = functools.partial(comparison_in_training, *sets, threads=threads, folder=cache)
    comparison = _on_all(ranks, recipe_class, compared, "the evaluation")
    if comparison:
        comparison.agree()
    metrics = _on_all(
        ranks, recipe_class, lambda: trace(config, parts, sampler, evaluator, comparison, source), "the traces"
    )
    check_best_metric(config.best_metric, metrics)
    frozen = digests_of(state)
    agree_on_frozen(frozen, ranks)
    made = parts.schedule, parts.steps, sampler, evaluator, comparison, code, frozen
    return Run(config, recipe, source, held_out, evaluated, ranks, state, *made)


def _open(
    config: Config, recipe_class: type[Recipe], ranks: Ranks, known: KnownMaps | None
) -> tuple[Samples, Samples | None, Samples | None]:
    """Open the data of each domain and split them; the samples to train on alone determine the maps.

    Returns:
        The samples to train on, mapped; those held out; and those of them that evaluations use, mapped.
    """
    with recipe_errors.of(recipe_class):
        check_methods(recipe_class)
    if recipe_class.domains and config.evaluation.eval_samples:
        raise UserError(
            f"--eval-samples {config.evaluation.eval_samples}: samples are compared with those of one data set, and "
            f"the recipe has the domains {', '.join(recipe_class.domains)}; leave the flag out, its evaluate() measures"
        )
    sources = dict[str, Samples]()
    for name, settings in settings_of(config, recipe_class.domains, ranks).items():
        opened = open_source(settings, paired=recipe_class.paired, peers=ranks)
        sources[name] = cached(opened, config.pipeline.cache, ranks)
    refuse_unclear(config, sources, ranks)
    sources, held_out = split(sources, config.holdout, ranks, is_evaluated=recipe_class.evaluates())
    if config.balance:
        sources = {name: balanced(each, config.balance) for name, each in sources.items()}
    are_known = known is not None and known.fingerprint == joined(sources).fingerprint
    maps = known.values if known and are_known else [None] * len(sources)
    for (name, source), values in zip(sources.items(), maps, strict=True):
        sources[name] = source.mapped(with_statistics(source, ranks, values))
    if not held_out:
        return joined(sources), None, None
    most = config.evaluation.eval_held_out
    evaluated = {name: held.some(most).mapped(sources[name].values) for name, held in held_out.items()}
    return joined(sources), joined({name: held.samples for name, held in held_out.items()}), joined(evaluated)


def spec_of(source: Samples, domains: Sequence[str] = ()) -> DataSpec:
    """Describe mapped samples to a recipe, and those of all its domains if it has several."""
    if domains:
        specs = [spec_of(each) for each in source.domains.values()]
        return dataclasses.replace(specs[0], domains=dict(zip(domains, specs, strict=True)))
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
        "broken files": hashlib.sha256(
            json.dumps([each.bad_files for each in source.domains.values()]).encode()
        ).hexdigest(),
        "stages": [
            [
                stage.name,
                stage.steps,
                [[update.name, [*update.owns], update.every, update.reduce] for update in stage.updates],
            ]
            for stage in parts.schedule.stages
        ],
        **{name: f"{variable.dtype}{tuple(variable.shape)}" for name, variable in parts.state.tensors().items()},
    }


def _on_all(ranks: Ranks, recipe: type[Recipe], work: Callable[[], T], name: str) -> T:
    """Do work of the recipe on every rank; an error on one rank ends the run on all."""

    def checked() -> T:
        with recipe_errors.of(recipe):
            return work()

    # A file that the recipe reads may be missing on one host only.
    return shared_errors.on_all(checked, ranks, name, names_rank=True)


def check_packs(ranks: Ranks, config: Config, recipe: Recipe) -> None:
    """Refuse a slice of the global batch that the recipe's losses cannot cut into packs."""
    fits = isinstance(recipe.pack, int) and recipe.pack > 0
    check(fits, f"pack is {described(recipe.pack)}; it must be a number of samples, as in pack = 4")
    first, past = ranks.slice_of(config.global_batch_size)
    if (count := (past - first) // config.accumulate) % recipe.pack:
        unit = ranks.size * config.accumulate * recipe.pack
        where = "rank's" if config.accumulate == 1 else "micro-batch's"
        raise UserError(
            f"--global-batch-size {config.global_batch_size}: a {where} {count} samples cannot be cut into packs of "
            f"{recipe.pack}; take a multiple of {unit}"
        )


def check_micro_batches(ranks: Ranks, config: Config) -> None:
    """Refuse a slice of the global batch that --accumulate cannot cut."""
    first, past = ranks.slice_of(config.global_batch_size)
    if (past - first) % config.accumulate:
        raise UserError(
            f"--accumulate {config.accumulate}: a rank's {past - first} images of each global batch of "
            f"{config.global_batch_size} cannot be cut into {config.accumulate} equal micro-batches"
        )
