"""Images read once, in a given order and ahead of whoever uses them; no other takes the place of a broken one."""

import math
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from hvdgan.data.parallel_map import parallel_map
from hvdgan.data.pipeline import images_per_call, largest_divisor
from hvdgan.data.source import BadFile, BadImage, Source

_PORTION_BYTES = 8 * 2**20
"""of the images that one call reads, where one image is not more"""


class ImageReader:
    """Reads batches of a source's images on several threads.

    Args:
        source: the images.
        batch_size: images of each batch.
        threads: that read and decode, >= 1.
    """

    def __init__(self, source: Source, batch_size: int, threads: int) -> None:
        self.bad: dict[int, BadFile] = {}
        """the broken images met so far, by index"""
        self._source = source
        self._threads = threads
        self._batch_size = batch_size
        fitting = max(1, _PORTION_BYTES // math.prod(source.shape))
        self._together = largest_divisor(batch_size, min(images_per_call(source, batch_size), fitting))
        self._decoder = None
        if source.decode is not None:
            records = [tf.TensorSpec((self._together,), tf.string)]
            self._decoder = tf.function(source.decode, input_signature=records, autograph=False)

    def __call__(self, indices: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Read ahead of what is taken, for each thread two portions of at most 8 MiB or one image.

        Args:
            indices: int64 (N, batch_size); from the number of images on there is none, and nothing is read.

        Yields:
            Images (batch_size, *source.shape), zeros where there is none or it is broken, and whether it was read,
            (batch_size,).

        Raises:
            RunError: the data is not what it was when it was opened.
        """
        groups = parallel_map(self._read, list(indices.reshape(-1, self._together)), self._threads)
        for _ in indices:
            images, readable = zip(*(next(groups) for _ in range(self._batch_size // self._together)), strict=True)
            yield np.concatenate(images), np.concatenate(readable)

    def _read(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        readable = indices < len(self._source)
        images = np.zeros((len(indices), *self._source.shape), np.uint8)
        try:
            if readable.any():
                images[readable] = self._fetch(indices[readable])
        except BadImage:
            for place in np.flatnonzero(readable):
                try:
                    images[place] = self._source.fetch(int(indices[place]))
                except BadImage as error:
                    self.bad[int(indices[place])] = error.bad_file
                    readable[place] = False
        return images, readable

    def _fetch(self, indices: np.ndarray) -> np.ndarray:
        if self._decoder is None:
            return self._source.fetch_batch(indices)
        records = self._source.fetch_records(indices)
        # The graph decodes a whole group.
        whole = records + records[-1:] * (self._together - len(records))
        try:
            with tf.device("cpu:0"):
                return self._decoder(tf.constant(whole, tf.string)).numpy()[: len(records)]
        except tf.errors.OpError:
            for index in indices.tolist():
                self._source.fetch(index)  # raises an error that names the record
            raise
