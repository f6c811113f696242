"""Reads samples ahead on threads: a rank's slices of the global batches without end, or each sample once.

In training a broken sample is replaced by the next good one, the same on any number of ranks; in evaluations it is left
out.
"""

import collections
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from hvdgan.data.bad_files import BadFile, BadImage, refuse_if_too_many
from hvdgan.data.domains import in_domain, named, seed_of
from hvdgan.data.order import draws_at, ends_of, sample_indices
from hvdgan.data.samples import Samples
from hvdgan.data.store import ALIGNMENT
from hvdgan.errors import RunError

_HOST = "cpu:0"

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batches:
    """Iterator over a rank's slices of the global batches, without end: a function of data, seed and position.

    Each of the `threads` reads whole batches, `prefetch` of them ahead, and copies them to the device, if one is named.
    A slice is (first place, one past the last) of each global batch; nothing before the first position is read.
    """

    def __init__(
        self,
        source: Samples,
        *,
        seed: int,
        global_batch_size: int,
        places: tuple[int, int],
        position: int,
        threads: int,
        prefetch: int,
        max_bad_fraction: float,
        device: str | None,
    ) -> None:
        self._loaders = loaders = {name: _Loader(each, max_bad_fraction) for name, each in source.domains.items()}
        first, past = places
        weights = {name: each.weights for name, each in source.domains.items()}
        ends = {name: None if each is None else ends_of(each) for name, each in weights.items()}

        # It must not refer to self, which the threads would then keep alive.
        def read(begin: int) -> dict[str, tf.Tensor]:
            found = dict[str, tf.Tensor]()
            for number, (name, loader) in enumerate(loaders.items()):
                of_domain = seed_of(seed, number)
                order = sample_indices(of_domain, begin, global_batch_size, len(loader.source), ends[name])
                parts = loader(order[first:past], draws_at(of_domain, begin, global_batch_size)[first:past]).items()
                found |= named(name, {key: _tensor(part, None if key == "index" else device) for key, part in parts})
            return found

        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="reader")
        self._batches = _ahead(self._pool, read, itertools.count(position, global_batch_size), threads + prefetch)
        # It does not wait for the threads, of which any may be the one that collects garbage.
        self._finalizer = weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)

    def __iter__(self) -> "Batches":
        return self

    def __next__(self) -> dict[str, tf.Tensor]:
        """The next step's batch, on the device if one was named, except `index`.

        It has the parts of source.fetch_batch(), `index` int64 (B,), the samples' places in the source, and its facts
        about them; those of another domain have its name before theirs, such as B/images.
        """
        if not self._finalizer.alive:
            raise ValueError("these batches are closed")
        return next(self._batches)

    @property
    def loaded(self) -> int:
        """Number of reading calls so far; it grows while reading makes progress."""
        return sum(loader.loaded for loader in self._loaders.values())

    @property
    def bad_files(self) -> list[BadFile]:
        """The distinct broken samples that this rank has met, including those found on opening."""
        return [in_domain(bad, name) for name, loader in self._loaders.items() for bad in loader.bad_files()]

    def close(self) -> None:
        """Stop reading ahead and wait for the threads; may be called twice."""
        self._finalizer()
        self._pool.shutdown(wait=True)

    def __enter__(self) -> "Batches":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class SampleReader:
    """Reads batches of a source's samples in a given order, each once; broken ones are not replaced."""

    def __init__(self, source: Samples, threads: int) -> None:
        self.bad: dict[int, BadFile] = {}
        """the broken samples so far, by index"""
        self._source, self._threads = source, threads

    def __call__(self, indices: np.ndarray) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
        """Read samples of these numbers, int64 (N, batch_size), ahead of the caller, each thread one batch.

        Yields the parts of the samples, zeros for broken ones and for numbers >= len(source), and a mask of those that
        were read.
        """
        with ThreadPoolExecutor(self._threads) as pool:
            yield from _ahead(pool, self._read, iter(indices), self._threads + 1)

    def _read(self, indices: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        there = indices < len(self._source)
        samples = self._source.blank(len(indices))

        def put(places: Any, parts: dict[str, np.ndarray]) -> None:
            for name, part in parts.items():
                samples[name][places] = part

        try:
            if there.any():
                put(there, self._source.fetch_batch(indices[there]))
        except BadImage:
            for place in np.flatnonzero(there).tolist():
                try:
                    put(place, self._source.fetch(int(indices[place])))
                except BadImage as error:
                    there[place], self.bad[int(indices[place])] = False, error.bad_file
        return samples, there


class _Loader:
    """Reads the samples of batches and replaces broken ones; several threads call it at once."""

    def __init__(self, source: Samples, max_bad_fraction: float) -> None:
        self.source, self._max_bad_fraction = source, max_bad_fraction
        self.loaded = 0
        self._lock = threading.Lock()
        self._bad: dict[int, BadFile] = {}

    def __call__(self, indices: np.ndarray, draws: np.ndarray) -> dict[str, np.ndarray]:
        """The parts of samples, their indices (B,) after substitution, and the facts about them."""
        self.loaded += 1
        parts, indices = self._fetch(indices, draws)
        return {**parts, "index": indices, **self.source.facts(indices)}

    def bad_files(self) -> list[BadFile]:
        with self._lock:
            return [*self.source.bad_files, *self._bad.values()]

    def _fetch(self, indices: np.ndarray, draws: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        if self._bad.keys().isdisjoint(indices.tolist()):
            try:
                return self.source.fetch_batch(indices, draws), indices
            except BadImage:
                pass  # found again, and noted, one by one
        each = zip(indices.tolist(), draws[:, None], strict=True)
        samples, used = zip(*itertools.starmap(self._fetch_or_substitute, each), strict=True)
        return stacked(samples), np.array(used, np.int64)

    def _fetch_or_substitute(self, index: int, draws: np.ndarray) -> tuple[dict[str, np.ndarray], int]:
        """The sample, or the next one that is trained on and can be read, and its index."""
        count, weights = len(self.source), self.source.weights
        for candidate in (each % count for each in range(index, index + count)):
            if candidate in self._bad or (weights is not None and not weights[candidate]):
                continue
            try:
                return self.source.fetch(candidate, draws), candidate
            except BadImage as bad:
                self._note_bad(candidate, bad.bad_file)
        raise RunError(f"--data {self.source.name}: none of its {count} samples can be read")

    def _note_bad(self, index: int, bad_file: BadFile) -> None:
        with self._lock:
            self._bad[index] = bad_file
        refuse_if_too_many(
            RunError,
            name=self.source.name,
            bad_files=self.bad_files(),
            total=self.source.total,
            max_bad_fraction=self._max_bad_fraction,
        )


def stacked(samples: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The parts of several samples together."""
    return {name: np.stack([each[name] for each in samples]) for name in samples[0]}


def _tensor(values: np.ndarray, device: str | None) -> tf.Tensor:
    """A tensor on a device, or on the host.

    On a device int32 becomes int64: a tf.function takes its arguments of type int32 from the host's memory, so that
    TensorFlow would wait for the device before each step, and copy labels back.
    """
    if device is not None and values.dtype == np.int32:
        values = values.astype(np.int64)
    with tf.device(device or _HOST):
        is_taken = device is None and values.dtype.kind in "fu" and values.flags.carray
        if is_taken and values.ctypes.data % ALIGNMENT == 0:
            # Without a copy, since nothing else refers to samples and conditions of a batch, unlike its index.
            return tf.experimental.dlpack.from_dlpack(values.__dlpack__())
        return tf.constant(values)


def specs_of(source: Samples, count: int, *, on_device: bool = False) -> dict[str, tf.TensorSpec]:
    """The shapes and types of a batch, to trace with; `on_device`: it lies on a device with memory of its own."""
    specs = dict[str, tf.TensorSpec]()
    for domain, each in source.domains.items():
        facts = {**each.blank(1), **each.facts(np.zeros(1, np.int64))}
        for name, fact in named(domain, facts).items():
            to_int64 = on_device and fact.dtype == np.int32
            specs[name] = tf.TensorSpec((count, *fact.shape[1:]), tf.int64 if to_int64 else fact.dtype)
    return specs


def _ahead(
    pool: ThreadPoolExecutor, function: Callable[[Item], Result], items: Iterator[Item], most: int
) -> Iterator[Result]:
    """The results of a function in the order of the items, of which at most `most` are begun before they are taken."""
    begun: collections.deque[Future[Result]] = collections.deque()
    try:
        for item in items:
            begun.append(pool.submit(function, item))
            if len(begun) == most:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        for future in begun:
            future.cancel()
