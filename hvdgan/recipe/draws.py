"""Draws random numbers as pure functions of (seed, step, scope, key, place in the global batch), never of the rank."""

import dataclasses
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import tensorflow as tf

from hvdgan.errors import UserError

_PHILOX = tf.random.Algorithm.PHILOX.value
_BLOCK = 4  # float32 numbers that Philox makes from one value of its counter
_UNIFORM_VALUES = 2**23  # uniform() returns multiples of 1 / 2**23
Key: TypeAlias = str | tf.Tensor
"""a name of numbers, or a seed that seed_of() has made of one"""


@dataclasses.dataclass(frozen=True)
class Random:
    """Draws random numbers for one part of a global batch: a rank's slice, or one micro-batch of it.

    The numbers are a part of one draw for the whole global batch, so those of a sample do not depend on the number of
    ranks. Philox is a counter-based generator: a part begins at its own offset, and only its numbers are computed.

    Args:
        seed: seed of the run.
        at: global step, a scalar int64 tensor in the host's memory.
        first: place of the part's first sample in the global batch, an int or a scalar tensor.
        count: number of samples in the part, B.
        scope: name that keeps the numbers of one update apart from those of another.
        to_device: function that brings int64 numbers from the host to the device that draws; None: they are there.
    """

    seed: int
    at: tf.Tensor
    first: "int | tf.Tensor"
    count: int
    scope: str = ""
    to_device: Callable[[tf.Tensor], tf.Tensor] | None = None

    @property
    def step(self) -> tf.Tensor:
        """The global step, a scalar int64 tensor."""
        return self._sent(self.at)

    def scoped(self, scope: str) -> "Random":
        """Return a Random for the same part, with other numbers."""
        return dataclasses.replace(self, scope=f"{self.scope}/{scope}")

    def seed_of(self, key: str) -> tf.Tensor:
        """A seed of a key, (2,) int32 in the host's memory, which normal() and uniform() take in place of one."""
        with tf.device("cpu:0"):
            return tf.cast(self._seed(key) % tf.int32.max, tf.int32)

    def normal(self, key: Key, shape: Sequence[int]) -> tf.Tensor:
        """Draw normal numbers of mean 0 and variance 1, (B, *shape) float32.

        Args:
            key: name of the numbers: within an update the same key gives the same numbers, another key others.
            shape: shape of one sample's numbers; () for one number per sample.
        """
        return self._part(tf.raw_ops.StatelessRandomNormalV2, key, shape)

    def uniform(self, key: Key, shape: Sequence[int]) -> tf.Tensor:
        """Draw equally likely numbers from 0 (included) to 1 (excluded), (B, *shape) float32.

        Args:
            key: name of the numbers: within an update the same key gives the same numbers, another key others.
            shape: shape of one sample's numbers; () for one number per sample.
        """
        return self._part(tf.raw_ops.StatelessRandomUniformV2, key, shape)

    def integers(self, key: str, shape: Sequence[int], high: int) -> tf.Tensor:
        """Draw whole numbers from 0 to high - 1, (B, *shape) int32; it calls uniform(key, shape): use the key once.

        Args:
            key: name of the numbers: within an update the same key gives the same numbers, another key others.
            shape: shape of one sample's numbers; () for one number per sample.
            high: number of possible values, from 1 to 2**23, else a UserError. They are equally probable up to a
                relative error of high / 2**23.
        """
        if not 1 <= high <= _UNIFORM_VALUES:
            raise UserError(f'integers("{key}"): high is {high}; it must be from 1 to {_UNIFORM_VALUES:,}')
        # The largest value of uniform() times `high` is below `high` in float32 too, so no number must be clipped.
        return tf.cast(self.uniform(key, shape) * high, tf.int32)

    def _part(self, draw: Callable[..., tf.Tensor], key: Key, shape: Sequence[int]) -> tf.Tensor:
        """The part's numbers among those that tf.random.stateless_normal or _uniform draws for the global batch."""
        each = math.prod(shape)
        wanted = self.count * each
        # On the host, where the number of the step is known before the GPU has reached it.
        with tf.device("cpu:0"):
            philox, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=self._seed(key))
            begin = tf.cast(self.first, tf.int64) * each
            # The counter has 128 bits; the lower 64 begin at 0 for every seed.
            skipped = tf.stack([begin // _BLOCK, tf.zeros((), tf.int64)])
            philox, counter = tf.bitcast(philox, tf.int64), tf.bitcast(counter, tf.int64) + skipped
            place, size = tf.stack([begin % _BLOCK]), tf.constant([wanted], tf.int64)
        philox, counter = (tf.bitcast(self._sent(each), tf.uint64) for each in (philox, counter))
        drawn = draw(shape=[wanted + _BLOCK - 1], key=philox, counter=counter, alg=_PHILOX, dtype=tf.float32)
        return tf.reshape(tf.slice(drawn, place, size), (self.count, *shape))

    def _sent(self, numbers: tf.Tensor) -> tf.Tensor:
        return numbers if self.to_device is None else self.to_device(numbers)

    def _seed(self, key: Key) -> tf.Tensor:
        return key if tf.is_tensor(key) else tf.stack([self._digest(key), self.at])

    def _digest(self, key: str) -> tf.Tensor:
        digest = hashlib.sha256(f"{self.seed}/{self.scope}/{key}".encode()).digest()
        return tf.constant(int.from_bytes(digest[:8], "little", signed=True), tf.int64)
