"""Reads images once, in a given order; unlike the batches of training, broken images are not replaced."""

import math
from collections.abc import Iterator

import numpy as np

from hvdgan.data.base.parallel_map import parallel_map
from hvdgan.data.base.source import BadFile, BadImage, Source
from hvdgan.data.pipeline import images_per_call, largest_divisor

_MOST_BYTES = 8 * 2**20
"""size of the images that one call reads, at most, unless a single image is larger"""


class ImageReader:
    """Reads batches of a source's images on several threads.

    Args:
        source: the images.
        batch_size: images per batch.
        threads: threads that read and decode, >= 1.
    """

    def __init__(self, source: Source, batch_size: int, threads: int) -> None:
        self.bad: dict[int, BadFile] = {}
        """the broken images so far, by index"""
        self._source = source
        self._threads = threads
        self._batch_size = batch_size
        fitting = max(1, _MOST_BYTES // (math.prod(source.record_shape) * source.dtype.itemsize))
        self._together = largest_divisor(batch_size, min(images_per_call(source, batch_size), fitting))

    def __call__(self, indices: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Read ahead of the caller: each thread two portions of one image or at most 8 MiB.

        Args:
            indices: numbers of the images, int64 (N, batch_size); a number >= len(source) is a place without an image.

        Yields:
            Images (batch_size, *source.record_shape), zeros for broken images and for places without one; and a mask
            (batch_size,), True for the images that were read.

        Raises:
            RunError: the data have changed since they were opened.
        """
        groups = parallel_map(self._read, list(indices.reshape(-1, self._together)), self._threads)
        for _ in indices:
            images, readable = zip(*(next(groups) for _ in range(self._batch_size // self._together)), strict=True)
            yield np.concatenate(images), np.concatenate(readable)

    def _read(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        readable = indices < len(self._source)
        images = self._source.blank(len(indices))
        try:
            if readable.any():
                images[readable] = self._source.fetch_batch(indices[readable])
        except BadImage:
            for place in np.flatnonzero(readable):
                try:
                    images[place] = self._source.fetch(int(indices[place]))
                except BadImage as error:
                    self.bad[int(indices[place])] = error.bad_file
                    readable[place] = False
        return images, readable
