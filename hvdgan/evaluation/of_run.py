"""Makes the comparison of a run's samples with its data, as the settings say."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from hvdgan.cli.config import Config
from hvdgan.cli.errors import UserError
from hvdgan.cli.evaluation_config import FeatureConfig
from hvdgan.data import Samples
from hvdgan.distributed.ranks import Ranks
from hvdgan.evaluation.comparison import Comparison, Measure
from hvdgan.evaluation.features import Features, fixed_samples, open_features, probe
from hvdgan.evaluation.real_statistics import StatisticsCache
from hvdgan.evaluation.sets import GeneratedSet, RealSet, SampleBatch, SampleSet
from hvdgan.evaluation.tally import Plan
from hvdgan.recipe import DataSpec, Recipe
from hvdgan.recipe.augment import flip_axes
from hvdgan.recipe.batch import Batch
from hvdgan.recipe.drawing import SampleRandom
from hvdgan.recipe.nets import Nets
from hvdgan.recipe.results import features_of
from hvdgan.recipe.showing import shown

_LARGEST_BATCH = 64
_MOST_FEATURES = 16_384
"""features of a sample, at most: their covariance takes 2 GB, and an evaluation needs several of these"""


@dataclasses.dataclass(frozen=True)
class SamplingSettings:
    """How samples are generated and read.

    count: number of samples.
    real_count: number of real samples, all if there are fewer; 0: all; None: as many as samples.
    batch_size: samples computed at a time.
    threads: threads that read.
    seed: seed of the samples.
    truncation: distance of styles from their mean, 0 to 1.
    mirrored: names of the axes along which the real set also holds each sample mirrored; see real_set().
    """

    count: int
    batch_size: int
    threads: int
    seed: int
    truncation: float = 1.0
    mirrored: Sequence[str] = ()
    real_count: int | None = None


def comparison_in_training(
    config: Config,
    recipe: Recipe,
    nets: Nets,
    sources: tuple[Samples, Samples | None],
    ranks: Ranks,
    *,
    threads: int,
    folder: Path,
) -> Comparison | None:
    """The comparison of a run that trains; None without --eval-samples. Contains no collective.

    Args:
        config: settings of the run.
        recipe: recipe of the run.
        nets: networks of the run in inference mode.
        sources: mapped samples to train on, and held-out ones or None.
        ranks: ranks of the run.
        threads: threads that read.
        folder: folder of the run that keeps the sums over the real samples.

    Raises:
        UserError: the features cannot be opened, or there are too few samples.
        Mistake: the recipe is wrong.
    """
    settings = config.evaluation
    if not settings.eval_samples:
        given = {"features": settings.eval_features, "real-samples": settings.eval_real_samples}
        for name, value in given.items():
            if value not in ("none", None):
                raise UserError(f"--eval-{name} {value}: no samples are compared; add --eval-samples, such as 10000")
        return None
    batch_size = min(_LARGEST_BATCH, -(-config.global_batch_size // ranks.size))
    ways = SamplingSettings(
        settings.eval_samples,
        batch_size,
        threads,
        config.seed,
        mirrored=flip_axes(config),
        real_count=settings.eval_real_samples,
    )
    reals = real_set(recipe, sources, ways)
    chosen = generated_set(recipe, nets, reals.source, ways)
    measure = measure_for(settings, recipe, nets, recipe.data, (chosen, reals), batch_size)
    return Comparison(chosen, reals, measure, StatisticsCache(folder, measure.digest), ranks)


def real_set(recipe: Recipe, sources: tuple[Samples, Samples | None], ways: SamplingSettings) -> RealSet:
    """The real samples: those trained on, or the held-out ones if the recipe's samples start from data.

    The latter are not mirrored, because the samples that are made of them are not.

    Args:
        recipe: recipe of the run.
        sources: mapped samples to train on, and held-out ones or None.
        ways: settings of the reading.
    """
    training, held_out = sources
    source = held_out if recipe.shows_data and held_out is not None else training
    return RealSet(
        source,
        recipe.data,
        count=ways.count if ways.real_count is None else ways.real_count or len(source),
        batch_size=ways.batch_size,
        threads=ways.threads,
        mirrored=() if recipe.shows_data else ways.mirrored,
    )


def generated_set(recipe: Recipe, nets: Nets, source: Samples, ways: SamplingSettings) -> GeneratedSet:
    """The samples that networks generate, which start from those of a source where the recipe needs some."""
    return GeneratedSet(
        recipe,
        nets,
        source,
        seed=ways.seed,
        count=ways.count,
        batch_size=ways.batch_size,
        threads=ways.threads,
        truncation=ways.truncation,
    )


def measure_for(
    settings: FeatureConfig,
    recipe: Recipe,
    nets: Nets,
    spec: DataSpec,
    both: tuple[SampleSet, RealSet],
    batch_size: int,
) -> Measure:
    """The features and sums with which two sets are compared, as the settings say.

    Args:
        settings: features and their resizing.
        recipe: recipe, whose own features may be asked for.
        nets: networks in inference mode.
        spec: facts about the samples of both sets.
        both: the two sets.
        batch_size: samples computed at a time.

    Raises:
        UserError: the features cannot be opened, or are not the data's.
        Mistake: the recipe's features() is missing or wrong.
    """
    classes = _classes_of(*both)
    if settings.eval_features == "recipe":
        if isinstance(both[0], RealSet) and not classes:  # their labels mean other classes than the data's
            spec = dataclasses.replace(spec, num_classes=0)
        measure = measure_of_recipe(recipe, nets, spec, batch_size=batch_size, classes=classes)
    else:
        name, method = settings.eval_features, settings.eval_resize
        features = open_features(name, spec, inception=settings.inception, resize=method)
        measure = measure_of(spec, features, batch_size=batch_size, classes=classes)
    fewest = min(each.fewest_of_class for each in both) if classes else 0
    return dataclasses.replace(measure, plan=dataclasses.replace(measure.plan, fewest_of_class=fewest))


def measure_of(spec: DataSpec, features: Features | None, *, batch_size: int, classes: int) -> Measure:
    """Compare samples in the features of a network, or without one."""
    if features is None:
        return Measure(Plan(spec, classes=classes))

    def extract(some: SampleBatch) -> tuple[np.ndarray, np.ndarray | None]:
        whole = _filled(some.samples, batch_size)
        found, probabilities = features(shown(whole, spec) if spec.is_pictures else whole)
        count = len(some.numbers)
        return found[:count], None if probabilities is None else probabilities[:count]

    _check_dimension(features.dimension, features.name)
    plan = Plan(spec, extract, features.dimension, features.classes, classes)
    frechet = "fid" if features.is_inception else "frechet"
    return Measure(plan, features.name, features.digest, features.resize, frechet, features.published)


def measure_of_recipe(recipe: Recipe, nets: Nets, spec: DataSpec, *, batch_size: int, classes: int) -> Measure:
    """Compare samples in the recipe's own features, which change with the networks."""

    def compute(images: tf.Tensor, labels: tf.Tensor | None, conditions: tf.Tensor | None) -> tf.Tensor:
        random = SampleRandom(0, tf.zeros((batch_size,), tf.int64))
        return features_of(recipe, nets, Batch(images, labels, random, {}, conditions=conditions))

    function = tf.function(compute, autograph=False)

    def extract(some: SampleBatch) -> tuple[np.ndarray, None]:
        labels, conditions = some.labels if spec.num_classes else None, some.conditions if spec.conditions else None
        parts = some.samples, labels, conditions
        whole = [None if part is None else tf.constant(_filled(part, batch_size)) for part in parts]
        return function(*whole).numpy()[: len(some.numbers)], None

    def first(sample: np.ndarray) -> np.ndarray:
        conditions = np.zeros((1, len(spec.conditions)), np.float32)
        return extract(SampleBatch(np.zeros(1, np.int64), sample[None], np.zeros(1, np.int32), conditions))[0]

    found = np.concatenate([first(each) for each in fixed_samples(spec)])
    _check_dimension(found.shape[1], "recipe")
    return Measure(Plan(spec, extract, found.shape[1], classes=classes), "recipe", None, probe=probe(found))


def _check_dimension(dimension: int, name: str) -> None:
    if dimension > _MOST_FEATURES:
        raise UserError(
            f"--eval-features {name}: {dimension:,} features of a sample, whose covariance would take "
            f"{dimension**2 * 8 / 1e9:.0f} GB; expected at most {_MOST_FEATURES:,}; end the network with a global "
            "pooling, or name other features, which a resumed run may do, too"
        )


def _filled(values: np.ndarray, count: int) -> np.ndarray:
    """Values (N, ...) with their last one repeated until there are `count`, so that one shape is traced."""
    return np.concatenate([values, np.repeat(values[-1:], count - len(values), axis=0)])


def _classes_of(chosen: SampleSet, reals: RealSet) -> int:
    """Number of classes that both sets have; 0 if one has none, or if those of another program are not the data's."""
    if not (chosen.has_classes and reals.has_classes):
        return 0
    # Each folder of samples numbers its own classes, so the same number may mean another class.
    is_other = isinstance(chosen, RealSet) and chosen.class_names != reals.class_names
    return 0 if is_other else reals.source.num_classes


def weights_facts(config: Config, recipe: Recipe, *, averaged: bool) -> dict[str, Any]:
    """Which weights the samples are drawn with, as JSON types."""
    if not (averaged and recipe.ema) or config.ema_decay == 0:
        return {"weights": "trained"}
    return {"weights": "averaged", "ema_decay": config.ema_decay, "ema_half_life": config.ema_half_life}
