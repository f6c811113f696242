"""Reads the images of batches, and replaces broken ones by the next that can be read."""

import threading
from collections.abc import Callable

import numpy as np

from hvdgan.cli.errors import RunError
from hvdgan.data.base.source import BadFile, BadImage, Source, refuse_if_too_many

FAILED = -1
"""index of an image whose reading raised an exception"""
_Fetch = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


class Loader:
    """Reads images by index; several of tf.data's threads call it at once."""

    def __init__(self, source: Source, max_bad_fraction: float) -> None:
        self.source = source
        self.failure: Exception | None = None
        self.stopped = False
        self.loaded = 0
        self._max_bad_fraction = max_bad_fraction
        self._lock = threading.Lock()
        self._bad: dict[int, BadFile] = {}

    def images(self, indices: np.ndarray) -> tuple[np.ndarray, ...]:
        """Samples (B, *source.record_shape), their indices (B,) after substitution, and the facts about them."""
        if (found := self._guarded(self._fetch, indices)) is None:
            return self._failed(self.source.blank(len(indices)))
        return self._with_facts(*found)

    def bad_files(self) -> list[BadFile]:
        with self._lock:
            return [*self.source.bad_files, *self._bad.values()]

    def _guarded(self, fetch: _Fetch, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Keep an exception in `failure` and return None: TensorFlow would log a traceback and change its type."""
        self.loaded += 1
        if self.stopped:
            return None
        try:
            return fetch(indices)
        except Exception as error:
            self.failure = self.failure or error
            return None

    def _failed(self, nothing: np.ndarray) -> tuple[np.ndarray, ...]:
        return self._with_facts(nothing, np.full(len(nothing), FAILED, np.int64))

    def _with_facts(self, images: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, ...]:
        return images, indices, *self.source.facts(indices).values()

    def _fetch(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self._bad.keys().isdisjoint(indices.tolist()):
            try:
                return self.source.fetch_batch(indices), indices
            except BadImage:
                pass  # found again, and noted, one by one
        images, used = zip(*(self._fetch_or_substitute(int(index)) for index in indices), strict=True)
        return np.stack(images), np.array(used, np.int64)

    def _fetch_or_substitute(self, index: int) -> tuple[np.ndarray, int]:
        """The image, or the next one that can be read, and its index."""
        num_images = len(self.source)
        for candidate in range(index, index + num_images):
            candidate %= num_images
            if candidate in self._bad:
                continue
            try:
                return self.source.fetch(candidate), candidate
            except BadImage as bad:
                self._note_bad(candidate, bad.bad_file)
        raise RunError(f"--data {self.source.name}: none of its {num_images} images can be read")

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
