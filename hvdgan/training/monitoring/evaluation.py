"""Metrics of the images held out, over all ranks."""

import math

import numpy as np
import tensorflow as tf

from hvdgan.cli.config import Config
from hvdgan.cli.errors import RunError
from hvdgan.cli.shared_errors import from_all
from hvdgan.data import BadFile, Source
from hvdgan.data.reader import ImageReader
from hvdgan.distributed.affinity import cores_of_rank
from hvdgan.distributed.ranks import Ranks
from hvdgan.recipe.draws import Random
from hvdgan.recipe.recipe import Recipe
from hvdgan.recipe.returned import measured, prepare
from hvdgan.training.state import TrainState
from hvdgan.training.steps.repeatable import refuse_unrepeatable

_FIRST_STEP = -2  # no training step, nor the samples': what is drawn here is the same at every evaluation


class Evaluator:
    """Runs a recipe's evaluate() over held-out images, each once, with the same draws every time.

    Args:
        recipe: measures.
        state: the networks, averaged where the run averages them.
        source: the held-out images to look at.
        ranks: that share the images.
        config: seed, batch size and threads are used.
    """

    def __init__(self, recipe: Recipe, state: TrainState, source: Source, ranks: Ranks, config: Config) -> None:
        self._recipe = recipe
        self._state = state
        self._source = source
        self._ranks = ranks
        self._config = config
        self._first, self._last = ranks.slice_of(config.global_batch_size)
        threads = config.pipeline.threads or cores_of_rank(ranks)
        self._reader = ImageReader(source, self._last - self._first, threads)
        self._function = tf.function(self._measure, autograph=False)

    def __call__(self) -> dict[str, float]:
        """The means by name over all images that can be read; every rank calls it and gets them.

        Raises:
            RunError: on every rank, where none can be read, or one of them reads data that is not what it was.
        """
        everyones = from_all(lambda: [*self._sums(), self.bad_files[:1]], self._ranks, "evaluation")
        total = sum(count for _, count, _ in everyones)
        if not total:
            first = next(": ".join(bad) for *_, some in everyones for bad in some)
            raise RunError(
                f"--data {self._source.name}: none of the {len(self._source)} images held out can be read; the first: "
                f"{first}"
            )
        return {name: math.fsum(theirs[name] for theirs, *_ in everyones) / total for name in everyones[0][0]}

    @property
    def bad_files(self) -> list[BadFile]:
        """The distinct broken images met by this rank so far."""
        return list(self._reader.bad.values())

    def remark(self, before: int | None) -> str | None:
        """A warning where this looks at other images than the evaluator of the run that goes on.

        Args:
            before: how many that one looked at; None: all that were held out, or there was none.
        """
        if before is None or before == len(self._source):
            return None
        return (
            f"warning: evaluations look at {len(self._source):,} held-out images, and looked at {before:,} before: "
            "their metrics, and the best of them, are compared all the same"
        )

    def trace(self) -> set[str]:
        """Trace what a call runs, without an image: a mistake in evaluate() must not wait until the first one is due.

        Returns:
            The names of the metrics.

        Raises:
            Mistake: evaluate() fails, or does not return metrics.
            UserError: it draws what it would not draw again.
        """
        count = self._last - self._first
        data = {"images": tf.TensorSpec((count, *self._source.shape), tf.uint8)}
        if self._source.labels is not None:
            data["labels"] = tf.TensorSpec((count,), tf.int32)
        traced = self._function.get_concrete_function(tf.TensorSpec((), tf.int64), data)
        where = f"recipe {type(self._recipe).__name__}: evaluate()"
        refuse_unrepeatable(traced, self._state.tensors().values(), where)
        return set(traced.structured_outputs)

    def _sums(self) -> tuple[dict[str, float], int]:
        """The sums by name over this rank's images that can be read, and how many they are."""
        sums: dict[str, float] = {}
        count = 0
        size = self._config.global_batch_size
        numbers = np.arange(math.ceil(len(self._source) / size))
        everything = numbers[:, None] * size + np.arange(self._first, self._last)
        for number, (images, readable) in enumerate(self._reader(everything)):
            indices = everything[number]
            data = {"images": tf.constant(images)}
            if self._source.labels is not None:
                data["labels"] = tf.constant(self._source.labels[np.minimum(indices, len(self._source) - 1)])
            for name, values in self._function(tf.constant(_FIRST_STEP - number, tf.int64), data).items():
                sums[name] = sums.get(name, 0.0) + float(np.sum(values.numpy(), where=readable, dtype=np.float64))
            count += int(readable.sum())
        return sums, count

    def _measure(self, step: tf.Tensor, data: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        config, count = self._config, self._last - self._first
        random = Random(config.seed, step, self._first, count)
        prepared = prepare(self._recipe, data["images"], data.get("labels"), random, "for the evaluation: ")
        values = measured(self._recipe, self._state.sampling_nets, prepared.batch("evaluate"), count)
        return {f"eval/{name}": value for name, value in values.items()}
