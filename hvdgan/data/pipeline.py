"""Reads a rank's slices of the global batches ahead of the steps.

Where one call reads a whole batch, threads of Python do so, because tf.data would need as long to hand over 4 MB as it
takes to read them. tf.data does so where several calls read parts of a batch, and for GPUs, to which it copies a batch
while the step before computes.
"""

import collections
import functools
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvdgan.data.base.aligned_memory import aligned
from hvdgan.data.base.source import BadFile, Source
from hvdgan.data.loader import FAILED, Loader
from hvdgan.data.order import sample_indices
from hvdgan.data.read_ahead import ReadAhead

_MOST_FETCHED = 8
"""images that one thread reads per call, at most: a call from TensorFlow into Python costs as much as a small image"""

_Indices = Callable[[int], np.ndarray]
"""function of a position at which a batch begins, for the indices of this rank's slice, int64 (B,)"""


class Batches:
    """Iterator over a rank's slices of the global batches, without end.

    A batch is a function of the data, the seed and the position. Nothing before the first position is read. A broken
    image is replaced by the next readable one in the data, which is the same on every rank.

    Args:
        source: the images.
        seed: seed of the run, >= 0.
        global_batch_size: images per step over all ranks.
        places: this rank's slice of each global batch, (first place, one past the last).
        position: place of the first batch in the order of all samples, >= 0.
        threads: threads that read and decode, >= 1.
        prefetch: batches prepared ahead, >= 1.
        max_bad_fraction: largest allowed fraction of broken images, in [0, 1].
        device: device that batches are copied to, such as "gpu:0"; None: they stay on the host.
        ahead: batches that are copied ahead, >= 1; of use are as many as there may be steps whose end nobody waits for.
    """

    def __init__(
        self,
        source: Source,
        *,
        seed: int,
        global_batch_size: int,
        places: tuple[int, int],
        position: int,
        threads: int,
        prefetch: int,
        max_bad_fraction: float,
        device: str | None,
        ahead: int = 1,
    ) -> None:
        first, past = places

        def indices_of(begin: int) -> np.ndarray:
            return sample_indices(seed, int(begin), global_batch_size, len(source))[first:past]

        self._loader = Loader(source, max_bad_fraction)
        if device is None and images_per_call(source, past - first) == past - first:
            names = ("images", "index", *source.facts(np.zeros(1, np.int64)))
            read = functools.partial(_read, self._loader, indices_of, names)
            begins = itertools.count(position, global_batch_size)
            batches: Iterator[dict[str, tf.Tensor]] = ReadAhead(read, begins, threads, threads + prefetch)
        else:
            with tf.device("cpu:0"):
                positions = tf.data.Dataset.range(position, np.iinfo(np.int64).max, global_batch_size)
                dataset = _load(self._loader, positions, indices_of, past - first, threads).prefetch(prefetch)
                batches = _OnDevice(dataset, device, ahead) if device else iter(dataset)
        # Only the iterator keeps the threads alive. In a list, it can be dropped without a reference to self.
        self._iterators = [batches]
        # Also called at exit: Python kills a thread that returns to it later, inside TensorFlow's code.
        self._finalizer = weakref.finalize(self, _end, self._loader, self._iterators)

    def __iter__(self) -> "Batches":
        return self

    def __next__(self) -> dict[str, tf.Tensor]:
        """The next step's batch. The places of its samples are on the host, all else on the device, if one was named.

        Returns:
            images: (B, *source.record_shape) of the source's type; index: int64 (B,), each sample's place in the
            source; and the source's facts about them, such as labels (B,): int32, or int64 on a device.

        Raises:
            RunError: too many images are broken, or the data have changed.
        """
        if not self._iterators:
            raise ValueError("these batches are closed")
        batch = next(self._iterators[0])
        if self._loader.failure is not None and (batch["index"].numpy() == FAILED).any():
            raise self._loader.failure
        return batch

    @property
    def loaded(self) -> int:
        """Number of reading calls so far; it grows while reading makes progress."""
        return self._loader.loaded

    @property
    def bad_files(self) -> list[BadFile]:
        """The distinct broken files that this rank has met, including those found on opening."""
        return self._loader.bad_files()

    def close(self) -> None:
        """Stop reading ahead and wait for the threads; may be called twice."""
        self._finalizer()

    def __enter__(self) -> "Batches":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _OnDevice(Iterator[dict[str, tf.Tensor]]):
    """Iterator over batches that are copied to a device ahead of their steps; what no step reads stays on the host.

    Labels become int64: a tf.function takes its arguments of type int32 from the host's memory, so TensorFlow would
    wait for the device before each step, and copy the labels back. No image is int32 or int64 (hvdgan/data/arrays).

    TensorFlow copies in the background, through pinned memory, on a stream of its own. It does not stage NumPy's memory
    in pinned memory, so the batch is first copied to TensorFlow's. A copy waits for all steps that the device had been
    given when the copy was requested, so a batch that is requested late would seem to wait for its data.

    Args:
        dataset: batches on the host.
        device: name of the device.
        ahead: number of batches that are copied ahead.
    """

    def __init__(self, dataset: tf.data.Dataset, device: str, ahead: int) -> None:
        self._staying = staying = ["index"]
        self._kept = kept = collections.deque[tuple[np.ndarray, ...]]()

        def keep(*numbers: np.ndarray) -> None:
            kept.append(tuple(np.array(each) for each in numbers))

        # It must not refer to self, which could then be freed by the garbage collector alone, with its threads.
        @tf.autograph.experimental.do_not_convert
        def divide(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            with tf.control_dependencies([tf.numpy_function(keep, [batch[name] for name in staying], [])]):
                return {name: _sent(batch[name]) for name in batch if name not in staying}

        copied = dataset.map(divide).apply(tf.data.experimental.prefetch_to_device(device, buffer_size=ahead))
        self._batches = iter(copied)

    def __next__(self) -> dict[str, tf.Tensor]:
        batch = next(self._batches)
        with tf.device("cpu:0"):
            kept = {name: tf.constant(each) for name, each in zip(self._staying, self._kept.popleft(), strict=True)}
        return {**batch, **kept}


def _sent(values: tf.Tensor) -> tf.Tensor:
    """Values in TensorFlow's own memory, and in a type that stays on the device."""
    return tf.cast(values, tf.int64) if values.dtype == tf.int32 else tf.raw_ops.DeepCopy(x=values)


def images_per_call(source: Source, batch_size: int) -> int:
    """Number of images that one call reads, a divisor of the batch size."""
    # Files are decoded in parallel, a few by each call. A source that is faster by batches reads whole batches.
    return batch_size if source.batched else largest_divisor(batch_size, _MOST_FETCHED)


def largest_divisor(batch_size: int, most: int) -> int:
    """The largest divisor of the batch size that is not above `most`."""
    return max(count for count in range(1, most + 1) if batch_size % count == 0)


def _read(loader: Loader, indices_of: _Indices, names: Sequence[str], begin: int) -> dict[str, tf.Tensor]:
    """The batch that begins at a position of the order, with names for its parts."""
    return {name: _tensor(values) for name, values in zip(names, loader.images(indices_of(begin)), strict=True)}


def _tensor(values: np.ndarray) -> tf.Tensor:
    """A tensor in the memory of an array, which nobody may change afterwards; tf.constant would copy it."""
    return tf.experimental.dlpack.from_dlpack(aligned(values).__dlpack__())


def _load(
    loader: Loader, positions: tf.data.Dataset, indices_of: _Indices, batch_size: int, threads: int
) -> tf.data.Dataset:
    """From the positions at which batches begin to the batches, in their order."""

    # AutoGraph would write the converted function to the temporary folder, where a hard exit leaves it.
    @tf.autograph.experimental.do_not_convert
    def slice_of(begin: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(indices_of, [begin], tf.int64), (batch_size,))

    indices = positions.map(slice_of)
    count = images_per_call(loader.source, batch_size)
    groups = indices if count == batch_size else indices.unbatch().batch(count, drop_remainder=True)
    dataset = _called(loader, groups, threads)
    if count < batch_size:
        dataset = _joined(dataset, batch_size, count)
    options = tf.data.Options()
    options.autotune.enabled = False
    # Waiting for files must not occupy the threads that TensorFlow computes with.
    options.threading.private_threadpool_size = threads
    return dataset.with_options(options)


def _called(loader: Loader, indices: tf.data.Dataset, threads: int) -> tf.data.Dataset:
    """What the loader reads for groups of indices (count,), by name."""
    source = loader.source
    facts = source.facts(np.zeros(1, np.int64))
    types = {"images": tf.as_dtype(source.dtype), "index": tf.int64}
    types |= {name: tf.as_dtype(fact.dtype) for name, fact in facts.items()}

    @tf.autograph.experimental.do_not_convert
    def call(some: tf.Tensor) -> dict[str, tf.Tensor]:
        loaded = dict(zip(types, tf.numpy_function(loader.images, [some], list(types.values())), strict=True))
        count = some.shape[0]
        shapes = {name: (count, *fact.shape[1:]) for name, fact in facts.items()}
        shapes["images"] = (count, *source.record_shape)
        return {name: tf.ensure_shape(loaded[name], shapes.get(name, (count,))) for name in types}

    return indices.map(call, num_parallel_calls=threads, deterministic=True)


def _joined(groups: tf.data.Dataset, batch_size: int, count: int) -> tf.data.Dataset:
    """Batches of groups of `count` images."""

    @tf.autograph.experimental.do_not_convert
    def join(group: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {name: tf.reshape(values, (batch_size, *values.shape[2:])) for name, values in group.items()}

    return groups.batch(batch_size // count, drop_remainder=True).map(join)


def _end(loader: Loader, iterators: list[Any]) -> None:
    loader.stopped = True
    for each in iterators:
        if isinstance(each, ReadAhead):
            each.close()
    iterators.clear()
