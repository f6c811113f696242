"""The two sets that are compared: real samples and generated ones, each shared out over the ranks by its number."""

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from hvdgan.data import BadFile, Samples
from hvdgan.data.batches import SampleReader, specs_of
from hvdgan.data.order import sample_indices
from hvdgan.errors.shared_errors import Peers
from hvdgan.recipe import DataSpec, Recipe
from hvdgan.recipe.augment import AXES
from hvdgan.recipe.batch import unpack
from hvdgan.recipe.contract import drawn_by
from hvdgan.recipe.nets import Nets
from hvdgan.recipe.outputs import Arrays, generated
from hvdgan.recipe.sampling import Drawing, SampleRandom, are_classes

_ORDER_SEED = 0
"""seed of the order in which the data are taken: any first part of the set is a fair choice, the same in every run"""


class SampleBatch(NamedTuple):
    """Some samples of a set.

    numbers: their numbers in the set, int64 (N,).
    samples: samples as networks see them, float32 (N, ..., C).
    labels: their classes, (N,), or None.
    conditions: their conditions as networks see them, (N, k), or None.
    arrays: further arrays by the names that the data have for them, (N, ...) float32.
    """

    numbers: np.ndarray
    samples: np.ndarray
    labels: np.ndarray | None
    conditions: np.ndarray | None
    arrays: Mapping[str, np.ndarray]

    def where(self, kept: np.ndarray) -> "SampleBatch":
        """Those samples for which a mask (N,) is true."""
        labels, conditions = (None if each is None else each[kept] for each in self[2:4])
        arrays = {name: array[kept] for name, array in self.arrays.items()}
        return SampleBatch(self.numbers[kept], self.samples[kept], labels, conditions, arrays)


class Reading(NamedTuple):
    """How samples are read and computed."""

    batch_size: int
    """samples at a time"""
    threads: int
    """threads that read"""


class RealSet:
    """Samples of a mapped source, in an order that does not depend on the run; broken ones are left out.

    `count` samples are taken, or all for 0; `mirrored` are axes along which the set also holds each sample mirrored.
    """

    def __init__(
        self,
        source: Samples,
        spec: DataSpec,
        reading: Reading,
        *,
        count: int,
        mirrored: Sequence[str] = (),
        max_bad_fraction: float = 1.0,
    ) -> None:
        self.source, self.mirrored, self.max_bad_fraction = source, list(mirrored), max_bad_fraction
        subsets = (itertools.combinations(mirrored, some) for some in range(len(mirrored) + 1))
        self._mirrors = [tuple(AXES[name] for name in names) for names in itertools.chain.from_iterable(subsets)]
        self.spec, self._reading = spec, reading
        self._images = min(count or len(source), len(source))
        self.count = self._images * len(self._mirrors)
        self._reader = SampleReader(source, reading.threads)

    def first(self, count: int) -> "RealSet":
        """The set of some first samples of the order, none of them mirrored."""
        return RealSet(self.source, self.spec, self._reading, count=min(count, self._images))

    @property
    def array_names(self) -> set[str]:
        """Names of the data's further arrays that its samples have."""
        return {*self.spec.array_shapes}

    @property
    def has_classes(self) -> bool:
        """Whether the data have classes."""
        return self.source.num_classes > 1

    @property
    def class_names(self) -> list[str]:
        """Names of the classes 0, 1, ...; their numbers, if the data name none."""
        names = self.source.class_names
        return [str(number) for number in range(self.source.num_classes)] if names is None else list(names)

    @property
    def _order(self) -> np.ndarray:
        """Places of the samples in the source."""
        return sample_indices(_ORDER_SEED, 0, self._images, len(self.source))

    @property
    def bad_files(self) -> list[BadFile]:
        """Distinct broken samples that this rank has met."""
        return [bad for _, bad in sorted(self._reader.bad.items())]

    def batches(self, peers: Peers) -> Iterator[SampleBatch]:
        """Read this rank's part of the set, a batch at a time."""
        size, last = self._reading.batch_size, self._images - 1
        places = np.arange(peers.rank * size, self._images, peers.size * size)[:, None] + np.arange(size)
        indices = np.where(places <= last, self._order[np.minimum(places, last)], len(self.source))
        for numbers, some, (parts, readable) in zip(places, indices, self._reader(indices), strict=True):
            seen = unpack(parts, self.spec)
            samples, arrays = seen.images.numpy(), {name: each.numpy() for name, each in seen.arrays.items()}
            facts = self.source.facts(np.minimum(some, len(self.source) - 1))
            for number, axes in enumerate(self._mirrors):
                yield SampleBatch(
                    numbers * len(self._mirrors) + number,
                    np.flip(samples, axes),
                    facts.get("labels"),
                    facts.get("conditions"),
                    {name: np.flip(each, axes) if each.ndim == samples.ndim else each for name, each in arrays.items()},
                ).where(readable)


class GeneratedSet:
    """Samples that networks generate: sample i depends on the seed and i alone, not on ranks or batches.

    Labels, conditions and inputs are those of the data, in the order of RealSet.
    """

    def __init__(
        self,
        recipe: Recipe,
        nets: Nets,
        source: Samples,
        reading: Reading,
        seed: int,
        count: int,
        truncation: float = 1.0,
    ) -> None:
        self.source, self.count = source, count
        self._recipe, self._nets, self._batch_size = recipe, nets, reading.batch_size
        self._drawing = Drawing(recipe, nets, seed=seed, truncation=truncation)
        self._reader = SampleReader(source, reading.threads)
        self._function = tf.function(self._compute, autograph=False)

    @functools.cached_property
    def has_classes(self) -> bool:
        """Whether the recipe draws the classes of its samples."""
        drawn = drawn_by(self._recipe, SampleRandom(0, tf.constant([0], tf.int64)))
        return self._recipe.data.num_classes > 1 and are_classes(drawn.get("classes"))

    @property
    def array_names(self) -> set[str]:
        """Names of the data's further arrays that its samples have."""
        return {*self.traced.structured_outputs[0]} - {"images"}

    @property
    def bad_files(self) -> list[BadFile]:
        """Distinct broken samples that this rank has met, from which no sample could start."""
        return [bad for _, bad in sorted(self._reader.bad.items())]

    @functools.cached_property
    def traced(self) -> "tf.types.experimental.ConcreteFunction":
        """The traced function of sample numbers and data."""
        numbers = tf.TensorSpec((self._batch_size,), tf.int64)
        return self._function.get_concrete_function(numbers, specs_of(self.source, self._batch_size))

    def batches(self, peers: Peers) -> Iterator[SampleBatch]:
        """Generate this rank's part of the set, a batch at a time."""
        each = int(self.traced.structured_outputs[0]["images"].shape[0])  # may be fewer than the recipe gets
        first = np.arange(peers.rank * each, self.count, peers.size * each)
        numbers = first[:, None] + np.arange(self._batch_size)
        indices = np.stack([self._order(int(number)) for number in first]) if len(first) else numbers
        for some, places, (parts, readable) in zip(numbers, indices, self._starts(indices), strict=True):
            data = {name: tf.constant(each) for name, each in {**parts, **self.source.facts(places)}.items()}
            made = self._function(tf.constant(some), data)
            arrays = {name: array.numpy()[:each] for name, array in made[0].items()}
            labels, conditions = (part if part is None else part.numpy()[:each] for part in made[1:])
            kept = readable[:each] & (some[:each] < self.count)
            yield SampleBatch(some[:each], arrays.pop("images"), labels, conditions, arrays).where(kept)

    def _order(self, first: int) -> np.ndarray:
        return sample_indices(_ORDER_SEED, first, self._batch_size, len(self.source))

    def _starts(self, indices: np.ndarray) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
        """Samples to start from; blank ones, unless the recipe looks at them."""
        if self._recipe.shows_data:
            yield from self._reader(indices)
            return
        blank, everywhere = self.source.blank(self._batch_size), np.ones(self._batch_size, bool)
        for _ in indices:
            yield blank, everywhere

    def _compute(
        self, numbers: tf.Tensor, data: dict[str, tf.Tensor]
    ) -> tuple[Arrays, tf.Tensor | None, tf.Tensor | None]:
        batch = self._drawing.batch(numbers, data)
        made = generated(self._recipe, self._nets, batch)
        known = dict(batch.arrays) if self._recipe.shows_data else {}  # else they are blank
        known |= {name: array for name, array in made.items() if name in ("images", *self._recipe.data.array_shapes)}
        return known, batch.labels, batch.conditions


SampleSet = RealSet | GeneratedSet
"""a set of samples that the ranks share"""


def left_out(missing: int, count: int, bad_files: Sequence[BadFile], peers: Peers) -> str | None:
    """How many of all ranks' samples could not be read, and the first of them, in words; None if all could.

    Every rank calls this with the broken samples that it has met.
    """
    if not missing:
        return None
    some = peers.gather([": ".join(bad) for bad in bad_files[:1]], "broken samples")
    first = next((f"; the first: {text}" for texts in some for text in texts), "")
    return f"{missing:,} of {count:,} samples cannot be read{first}"


def in_short(names: Sequence[str]) -> str:
    """The first five names, in words."""
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
