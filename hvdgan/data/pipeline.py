"""A rank's slices of the global batches, read ahead by tf.data."""

import collections
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from hvdgan.cli.errors import RunError, UserError
from hvdgan.data.order import sample_indices
from hvdgan.data.source import BadFile, BadImage, Source, refuse_if_too_many

_FAILED = -1
"""stands for an image's index where reading it raised an exception"""
_TOGETHER = 8
"""images at most that one thread reads at a time: a call from TensorFlow into Python costs as much as a small image"""

_DECODED_TOGETHER = 64
"""records at most that are decoded in one call: each is an operation of the graph"""
_REMEMBERED = 256
"""batches whose indices are kept for an error's sake: more than are ever between reading and the step"""


class Batches:
    """Iterator over a rank's slices of the global batches, from start_step on, without end.

    What a batch holds is a function of the data, the seed and the step; nothing that came before start_step is read. An
    image that turns out broken is replaced by the next one in the data that is not, which is the same one on any rank.

    Args:
        source: the images.
        seed: the run's seed, >= 0.
        global_batch_size: images per step over all ranks.
        rank: gets the slice [rank * B, (rank + 1) * B) of the global batch, B = global_batch_size / size.
        size: number of ranks; divides global_batch_size, unless places are given.
        places: (first, past the last) of another slice than that; None: that one.
        start_step: the step of the first batch, >= 0.
        position: of that batch's first image in the order of all; None: that of a run whose batches were all of this
            size.
        threads: that read and decode; 0: one per core this process may use.
        prefetch: batches prepared ahead, >= 1.
        max_bad_fraction: the part of the data that may be broken, in [0, 1].
        device: that batches are copied to ahead of their step, such as "gpu:0"; None: they stay in the host's memory.

    Raises:
        UserError: size does not divide global_batch_size.
    """

    def __init__(
        self,
        source: Source,
        *,
        seed: int,
        global_batch_size: int,
        rank: int,
        size: int,
        places: tuple[int, int] | None = None,
        start_step: int,
        position: int | None = None,
        threads: int,
        prefetch: int,
        max_bad_fraction: float,
        device: str | None = None,
    ) -> None:
        if places is None:
            if global_batch_size % size:
                raise UserError(f"--global-batch-size {global_batch_size}: expected a multiple of the {size} ranks")
            places = rank * global_batch_size // size, (rank + 1) * global_batch_size // size
        first_place, past_last = places
        local_batch_size = past_last - first_place
        position = start_step * global_batch_size if position is None else position

        def indices_of(step: np.ndarray) -> np.ndarray:
            first = position + (int(step) - start_step) * global_batch_size
            indices = sample_indices(seed, first, global_batch_size, len(source))
            return indices[first_place:past_last]

        # AutoGraph would write what it makes of a function to the temporary folder, and leave it there at a hard exit.
        @tf.autograph.experimental.do_not_convert
        def slice_of(step: tf.Tensor) -> tf.Tensor:
            return tf.ensure_shape(tf.numpy_function(indices_of, [step], tf.int64), (local_batch_size,))

        self._loader = _Loader(source, max_bad_fraction)
        with tf.device("cpu:0"):
            steps = tf.data.Dataset.range(start_step, np.iinfo(np.int64).max)
            batches = _load(self._loader, steps.map(slice_of), local_batch_size, threads or _own_cores())
            batches = batches.prefetch(prefetch)
            if device:
                batches = batches.apply(tf.data.experimental.prefetch_to_device(device, buffer_size=1))
            # A list, so that close can drop the iterator, the only thing that keeps the threads, without touching self.
            self._iterators: list[Iterator[dict[str, tf.Tensor]]] = [iter(batches)]
        # Also runs at exit, since Python kills a thread that comes back to it later, inside TensorFlow's code.
        self._finalizer = weakref.finalize(self, _end, self._loader, self._iterators)

    def __iter__(self) -> "Batches":
        return self

    def __next__(self) -> dict[str, tf.Tensor]:
        """The next step's batch.

        Returns:
            images: uint8 (B, *source.shape); index: int64 (B,), the place in the source of every image; labels: int32
            (B,), where the source has them.

        Raises:
            RunError: too many images turned out broken.
        """
        if not self._iterators:
            raise ValueError("these batches are closed")
        try:
            batch = next(self._iterators[0])
        except tf.errors.OpError:
            self._loader.explain()
            raise
        if self._loader.failure is not None and (batch["index"].numpy() == _FAILED).any():
            raise self._loader.failure
        return batch

    @property
    def loaded(self) -> int:
        """How often images have been read, a few each time: it grows as long as reading gets on."""
        return self._loader.loaded

    @property
    def bad_files(self) -> list[BadFile]:
        """The distinct broken files met by this rank so far, those found when opening included."""
        return self._loader.bad_files()

    def close(self) -> None:
        """Stop reading ahead and wait for the threads; may be called twice."""
        self._finalizer()

    def __enter__(self) -> "Batches":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Loader:
    """Reads images by index; called by several of tf.data's threads at once."""

    def __init__(self, source: Source, max_bad_fraction: float) -> None:
        self.source = source
        self.failure: Exception | None = None
        self.stopped = False
        self.loaded = 0
        self._max_bad_fraction = max_bad_fraction
        self._lock = threading.Lock()
        self._bad: dict[int, BadFile] = {}
        self._latest: collections.deque[np.ndarray] = collections.deque(maxlen=_REMEMBERED)

    def __call__(self, indices: np.ndarray) -> tuple[np.ndarray, ...]:
        """Images (B, *source.shape), their indices (B,) after substitution, and labels (B,) where the source has them.

        An exception does not leave here, since TensorFlow would log its traceback and raise a type of its own: it is
        kept in `failure`, and the indices become _FAILED.
        """
        self.loaded += 1
        if not self.stopped:
            try:
                return self._with_labels(*self._read(indices))
            except Exception as error:
                self.failure = self.failure or error
        nothing = np.zeros((len(indices), *self.source.shape), np.uint8)
        return self._with_labels(nothing, np.full_like(indices, _FAILED))

    def records(self, indices: np.ndarray) -> tuple[np.ndarray, ...]:
        """As a call, with records (B,) for images, which have yet to be decoded."""
        self.loaded += 1
        if not self.stopped:
            try:
                records = np.array(self.source.fetch_records(indices), object)
                self._latest.append(indices)
                return self._with_labels(records, indices)
            except Exception as error:
                self.failure = self.failure or error
        return self._with_labels(np.full(len(indices), b"", object), np.full_like(indices, _FAILED))

    def explain(self) -> None:
        """A record could be read and not be decoded: TensorFlow does not know which, so look for it."""
        for indices in list(self._latest):
            for index in indices.tolist():
                self.source.fetch(index)  # raises an error that names it

    def bad_files(self) -> list[BadFile]:
        with self._lock:
            return [*self.source.bad_files, *self._bad.values()]

    def _with_labels(self, images: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, ...]:
        labels = self.source.labels
        return (images, indices) if labels is None else (images, indices, labels[indices])

    def _read(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self._bad.keys().isdisjoint(indices.tolist()):
            try:
                return self.source.fetch_batch(indices), indices
            except BadImage:
                pass  # found again, and noted, one by one
        images, used = zip(*(self._read_or_substitute(int(index)) for index in indices), strict=True)
        return np.stack(images), np.array(used, np.int64)

    def _read_or_substitute(self, index: int) -> tuple[np.ndarray, int]:
        """The image, or the next one that can be read, and its index."""
        num_images = len(self.source)
        for candidate in range(index, index + num_images):
            candidate %= num_images
            if candidate in self._bad:
                continue
            try:
                return self.source.fetch(candidate), candidate
            except BadImage as bad:
                self._remember(candidate, bad.bad_file)
        raise RunError(f"--data {self.source.name}: none of its {num_images} images can be read")

    def _remember(self, index: int, bad_file: BadFile) -> None:
        with self._lock:
            self._bad[index] = bad_file
        refuse_if_too_many(
            RunError,
            name=self.source.name,
            bad_files=self.bad_files(),
            total=self.source.total,
            max_bad_fraction=self._max_bad_fraction,
        )


def read_together(source: Source, batch_size: int) -> int:
    """How many images one call reads: a divisor of the batch."""
    if source.decode is not None:
        return group(batch_size, _DECODED_TOGETHER)
    # Files are decoded in parallel, a few by each call; whatever has a batch at hand hands out a batch.
    return batch_size if source.batched else group(batch_size, _TOGETHER)


def _load(loader: _Loader, indices: tf.data.Dataset, local_batch_size: int, threads: int) -> tf.data.Dataset:
    """From indices (B,) to batches, in their order."""
    source = loader.source
    if source.decode is not None:
        dataset = _decoded(loader, indices, local_batch_size, threads)
    else:
        together = read_together(source, local_batch_size)
        dataset = _called(loader, source, indices.unbatch().batch(together, drop_remainder=True), tf.uint8, threads)
        dataset = _joined(dataset, local_batch_size, together)
    options = tf.data.Options()
    options.autotune.enabled = False
    # Waiting for files must not occupy the threads that TensorFlow computes with.
    options.threading.private_threadpool_size = threads
    return dataset.with_options(options)


def _decoded(loader: _Loader, indices: tf.data.Dataset, local_batch_size: int, threads: int) -> tf.data.Dataset:
    """Python only finds and reads the records, a batch in one call; TensorFlow decodes them on all threads."""
    decode = loader.source.decode
    assert decode is not None
    together = read_together(loader.source, local_batch_size)
    shape = (together, *loader.source.shape)

    @tf.autograph.experimental.do_not_convert
    def grouped(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {name: tf.reshape(values, (-1, together)) for name, values in batch.items()}

    @tf.autograph.experimental.do_not_convert
    def decoded(group: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        def nothing() -> tf.Tensor:
            return tf.zeros(shape, tf.uint8)

        # Where reading failed there is nothing to decode, and the error is to be told by name.
        images = tf.cond(group["index"][0] == _FAILED, nothing, lambda: decode(group["images"]))
        return {**group, "images": tf.ensure_shape(images, shape)}

    dataset = _called(loader.records, loader.source, indices, tf.string, threads)
    if together < local_batch_size:
        dataset = dataset.map(grouped).unbatch()
    return _joined(dataset.map(decoded, num_parallel_calls=threads, deterministic=True), local_batch_size, together)


def _called(
    function: Callable[[np.ndarray], tuple[np.ndarray, ...]],
    source: Source,
    indices: tf.data.Dataset,
    kind: tf.DType,
    threads: int,
) -> tf.data.Dataset:
    """What a function of the loader gives for each of some indices (B,), by name."""
    types: dict[str, tf.DType] = {"images": kind, "index": tf.int64}
    if source.labels is not None:
        types["labels"] = tf.int32

    @tf.autograph.experimental.do_not_convert
    def call(some: tf.Tensor) -> dict[str, tf.Tensor]:
        loaded = dict(zip(types, tf.numpy_function(function, [some], list(types.values())), strict=True))
        count = some.shape[0]
        shapes = {"images": (count, *source.shape)} if kind == tf.uint8 else {}
        return {name: tf.ensure_shape(loaded[name], shapes.get(name, (count,))) for name in types}

    return indices.map(call, num_parallel_calls=threads, deterministic=True)


def _joined(dataset: tf.data.Dataset, local_batch_size: int, together: int) -> tf.data.Dataset:
    """Batches of groups of so many images."""
    if together == local_batch_size:
        return dataset

    @tf.autograph.experimental.do_not_convert
    def join(groups: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {name: tf.reshape(values, (local_batch_size, *values.shape[2:])) for name, values in groups.items()}

    return dataset.batch(local_batch_size // together, drop_remainder=True).map(join)


def group(local_batch_size: int, most: int) -> int:
    """How many images make a group: a divisor of the batch."""
    return max(group for group in range(1, most + 1) if local_batch_size % group == 0)


def _end(loader: _Loader, iterators: list[Any]) -> None:
    loader.stopped = True
    iterators.clear()


def _own_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
