"""Evaluates the networks on the held-out images, over all ranks."""

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator

import numpy as np
import tensorflow as tf

from hvdgan.data import BadFile, Samples
from hvdgan.data.batches import SampleReader, specs_of
from hvdgan.data.domains import in_domain, named
from hvdgan.distributed.affinity import reading_threads
from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import RunError
from hvdgan.errors.shared_errors import from_all
from hvdgan.recipe.batch import scoped
from hvdgan.recipe.contract import prepare
from hvdgan.recipe.draws import Random
from hvdgan.recipe.nets import Nets
from hvdgan.recipe.outputs import measured
from hvdgan.recipe.recipe import Recipe
from hvdgan.recipe.recipe_errors import Mistake
from hvdgan.settings.config import Config

Refuse = Callable[["tf.types.experimental.ConcreteFunction", str], None]
"""what refuses a traced function that a resumed run could not repeat, by its name in the message"""
# Neither a training step nor the samples' step: every evaluation draws the same, and nothing else draws it.
_FIRST_STEP = -2


class Evaluator:
    """Runs a recipe's evaluate() over held-out images, each once, with the same draws every time.

    Of several domains, as many as the smallest has are looked at, the k-th ones together.
    """

    def __init__(self, recipe: Recipe, nets: Nets, source: Samples, ranks: Ranks, config: Config) -> None:
        self._recipe, self._nets, self._source, self._ranks, self._config = recipe, nets, source, ranks, config
        self._first, self._last = _slice_of(config.global_batch_size, ranks)
        threads = reading_threads(config.pipeline.threads, ranks)
        self._readers = {name: SampleReader(each, threads) for name, each in source.domains.items()}
        self.count = min(map(len, source.domains.values()))
        """number of images that an evaluation looks at, of each domain"""
        self.measure = tf.function(self._values, autograph=False)
        """compiled function of a number of the draws and a batch: the values of each image by name"""

    def __call__(self) -> dict[str, float]:
        """Return the means by name over all readable images, on every rank; every rank calls this."""
        everyones = from_all(lambda: [*self.sums(), self.bad_files[:1]], self._ranks, "evaluation")
        total = sum(count for _, count, _ in everyones)
        if not total:
            first = next(": ".join(bad) for *_, some in everyones for bad in some)
            raise RunError(
                f"--data {self._source.name}: none of the {self.count} images held out can be read; the first: {first}"
            )
        return {name: math.fsum(theirs.get(name, 0.0) for theirs, *_ in everyones) / total for name in everyones[0][0]}

    @property
    def bad_files(self) -> list[BadFile]:
        """Distinct broken images that this rank has met, by their index: threads meet them in any order."""
        found = (
            (index, in_domain(bad, name)) for name, each in self._readers.items() for index, bad in each.bad.items()
        )
        return [bad for _, bad in sorted(found)]

    def remark(self, before: int | None) -> str | None:
        """Return a warning if the interrupted run evaluated another number of images; None if not, or unknown."""
        if before is None or before == self.count:
            return None
        return (
            f"warning: evaluations look at {self.count:,} held-out images, and looked at {before:,} before; "
            "the best checkpoint is chosen among metrics of both"
        )

    def trace(self, refuse: Refuse) -> set[str]:
        """Trace evaluate(), so that a mistake is found before the first evaluation; returns the names of metrics."""
        data = specs_of(self._source, self._last - self._first)
        traced = self.measure.get_concrete_function(tf.TensorSpec((), tf.int64), data)
        refuse(traced, f"recipe {type(self._recipe).__name__}: evaluate()")
        return set(traced.structured_outputs)

    def sums(self) -> tuple[dict[str, float], int]:
        """Return the sums by name over this rank's readable images, and the number of those images."""
        sums: dict[str, float] = {}
        count = 0
        if self._first == self._last:
            return sums, count
        size = self._config.global_batch_size
        numbers = np.arange(math.ceil(self.count / size))
        everything = numbers[:, None] * size + np.arange(self._first, self._last)
        for number, (data, readable) in zip(numbers, self._read(everything), strict=True):
            step = tf.constant(_FIRST_STEP - int(number), tf.int64)
            for name, values in self.measure(step, data).items():
                sums[name] = sums.get(name, 0.0) + float(np.sum(values.numpy(), where=readable, dtype=np.float64))
            count += int(readable.sum())
        return sums, count

    def _read(self, everything: np.ndarray) -> Iterator[tuple[dict[str, tf.Tensor], np.ndarray]]:
        """Yield batches of the samples of these numbers, of each domain, and a mask of those that can be used."""
        for indices, *found in zip(everything, *(each(everything) for each in self._readers.values()), strict=True):
            data = dict[str, tf.Tensor]()
            for (name, source), (parts, _) in zip(self._source.domains.items(), found, strict=True):
                facts = source.facts(np.minimum(indices, len(source) - 1))
                data |= named(name, {key: tf.constant(part) for key, part in {**parts, **facts}.items()})
            yield data, np.logical_and.reduce([readable for _, readable in found])

    def _values(self, step: tf.Tensor, data: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        config, count = self._config, self._last - self._first
        random = Random(config.seed, step, self._first, count)
        batch = prepare(self._recipe, data, random, "for the evaluation: ")
        values = measured(self._recipe, self._nets, scoped(batch, "evaluate"), count)
        return {f"eval/{name}": value for name, value in values.items()}


def refuse_taken_names(recipe: Recipe, evaluated: Collection[str], distances: Collection[str]) -> None:
    """Refuse metrics of evaluate() that have the names of distances, which would take their place in the record."""
    if taken := sorted(set(evaluated) & set(distances)):
        names = ", ".join(name.removeprefix("eval/") for name in taken)
        raise Mistake(f"evaluate() returns {names}, and a distance has that name; name it otherwise", recipe.evaluate)


def _slice_of(batch_size: int, ranks: Ranks) -> tuple[int, int]:
    """The first and past the last of this rank's images in a batch of the run, on which the random draws depend."""
    if ranks.rank >= batch_size:
        return batch_size, batch_size
    return dataclasses.replace(ranks, size=min(ranks.size, batch_size)).slice_of(batch_size)
