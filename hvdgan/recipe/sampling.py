"""Draws samples by their numbers: a sample does not depend on the number of samples drawn, nor on their batches."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from hvdgan.recipe.batch import Batch, scoped
from hvdgan.recipe.contract import prepare
from hvdgan.recipe.draws import Key, Random
from hvdgan.recipe.nets import Nets
from hvdgan.recipe.outputs import Arrays, sampled
from hvdgan.recipe.recipe import Recipe


class SampleRandom(Random):
    """Draws by the numbers of samples, (B,) int64: sample n of a seed gets the same draws in every batch."""

    def __init__(self, seed: int, numbers: tf.Tensor, scope: str = "") -> None:
        super().__init__(seed, numbers, 0, numbers.shape[0], scope)

    def scoped(self, scope: str) -> "SampleRandom":
        return SampleRandom(self.seed, self.at, f"{self.scope}/{scope}")

    def normal(self, key: Key, shape: Sequence[int]) -> tf.Tensor:
        return self._each(tf.random.stateless_normal, key, shape)

    def uniform(self, key: Key, shape: Sequence[int]) -> tf.Tensor:
        return self._each(tf.random.stateless_uniform, key, shape)

    def _each(self, draw: Callable[..., tf.Tensor], key: Key, shape: Sequence[int]) -> tf.Tensor:
        seed = tf.cast(self._seed(key), tf.int64)
        return tf.map_fn(
            lambda number: draw(tuple(shape), seed + [0, number], alg="philox"),
            self.at,
            fn_output_signature=tf.TensorSpec(tuple(shape), tf.float32),
        )

    def _seed(self, key: Key) -> tf.Tensor:
        """The seed of the sample with the number 0."""
        return key if tf.is_tensor(key) else tf.stack([self._digest(key), tf.zeros((), tf.int64)])


T = TypeVar("T")
Input = dict[str, np.ndarray]
"""the parts of a sample of the data, and what describes it: `labels`, `conditions` and `numbers`"""


@dataclasses.dataclass(frozen=True)
class Drawing:
    """Computes samples of a recipe with its networks."""

    recipe: Recipe
    nets: Nets
    seed: int = 0  # of the samples; with `interpolate` unused
    class_: int | None = None  # of all samples; None: the classes that the recipe draws, or the labels of the inputs
    truncation: float = 1.0  # distance of styles from their mean, 0 to 1; 1 for recipes that do not truncate
    interpolate: tuple[int, int] | None = None  # two seeds; samples lie between the first of each, on a sphere
    num: int = 2  # number of samples of the interpolation, >= 2

    def __call__(self, numbers: tf.Tensor, data: dict[str, tf.Tensor]) -> Arrays:
        """Compute the samples of these numbers, (B,) int64, as the recipe's sample() returns them."""
        return sampled(self.recipe, self.nets, self.batch(numbers, data))

    def batch(self, numbers: tf.Tensor, data: dict[str, tf.Tensor]) -> Batch:
        """The batch that samples are computed of; its labels are the drawn classes, if the recipe draws some.

        `data` are the parts of samples (B, ...) to start from, for recipes that need some, and what describes them.
        """
        seeds = self.interpolate or (self.seed,)
        ends = [SampleRandom(seed, tf.zeros_like(numbers) if self.interpolate else numbers) for seed in seeds]
        batch = prepare(self.recipe, data, ends[0])
        drawn = vars(batch)
        if self.interpolate is not None:
            positions = tf.minimum(tf.cast(numbers, tf.float32) / (self.num - 1), 1.0)
            drawn["latents"] = slerp(drawn["latents"], self.recipe.draw(ends[1].scoped("draw"))["latents"], positions)
        if self.class_ is not None:
            drawn["classes"] = tf.fill(drawn["classes"].shape, tf.cast(self.class_, drawn["classes"].dtype))
        if are_classes(drawn.get("classes")):
            batch.labels = drawn["classes"]
        batch.truncation = self.truncation
        return scoped(batch, "sample")


def draw_batches(
    drawing: Drawing, inputs: Iterator[Input], num: int, batch_size: int
) -> Iterator[tuple[dict[str, np.ndarray], list[Input]]]:
    """Draw samples 0 to num - 1 in order: arrays (N, ...) as networks see them, and what each started from."""
    function = tf.function(drawing, autograph=False)
    waiting: list[Input] = []
    done = 0
    while done < num:
        # Every batch is whole, so that the last samples do not depend on `num`.
        waiting += itertools.islice(inputs, batch_size - len(waiting))
        numbers = tf.range(done, done + batch_size, dtype=tf.int64)
        data = {name: tf.constant(np.stack([each[name] for each in waiting])) for name in waiting[0]}
        made = {name: array.numpy() for name, array in function(numbers, data).items()}
        count = len(made["images"])
        yield {name: array[: num - done] for name, array in made.items()}, waiting[: min(count, num - done)]
        # A recipe may return fewer samples than inputs; the remaining inputs begin the next batch.
        done += count
        waiting = waiting[count:]


def joined(batches: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The arrays of several batches of samples, one after the other."""
    return {name: np.concatenate([each[name] for each in batches]) for name in batches[0]}


def as_written(made: Mapping[str, T]) -> dict[str, T]:
    """Arrays of samples by their names in files and exports: without others, the samples themselves are `samples`."""
    return dict(made) if len(made) > 1 else {"samples": made["images"]}


def are_classes(drawn: Any) -> bool:
    """Check that a draw named "classes" holds classes: integers (B,)."""
    return tf.is_tensor(drawn) and drawn.dtype.is_integer and drawn.shape.rank == 1


def are_latents(drawn: Any) -> bool:
    """Check that a draw named "latents" can be interpolated: float32 (B, ...)."""
    return tf.is_tensor(drawn) and drawn.dtype == tf.float32 and drawn.shape.rank >= 1


def slerp(first: tf.Tensor, last: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Interpolate latents (B, ...) along the arc between them; positions (B,): 0 is exactly the first, 1 the last.

    Reference: Shoemake 1985, section 3.3; White 2016, arXiv:1609.04468, section 2.1.
    """
    shape = first.shape
    first, last = (tf.reshape(latents, (shape[0], -1)) for latents in (first, last))
    cosine = tf.reduce_sum(tf.math.l2_normalize(first, -1) * tf.math.l2_normalize(last, -1), -1)
    angle = tf.acos(tf.clip_by_value(cosine, -1.0, 1.0))
    parallel = tf.sin(angle) < 1e-4  # between equal or opposite directions there is no unique arc
    whole = tf.where(parallel, 1.0, tf.sin(angle))
    from_first = tf.where(parallel, 1.0 - positions, tf.sin((1.0 - positions) * angle) / whole)
    from_last = tf.where(parallel, positions, tf.sin(positions * angle) / whole)
    return tf.reshape(from_first[:, None] * first + from_last[:, None] * last, shape)
