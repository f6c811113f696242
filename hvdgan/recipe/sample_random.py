"""Draws random numbers for samples, each by its own number, so that it is the same sample in every batch."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from hvdgan.recipe.draws import Random


class SampleRandom(Random):
    """Draws random numbers by the number of a sample instead of its place in a batch, for samples without a step.

    Args:
        seed: seed of the samples.
        numbers: numbers of the samples, (B,) int64; sample n of a seed gets the same draws in every batch.
    """

    def __init__(self, seed: int, numbers: tf.Tensor, scope: str = "") -> None:
        super().__init__(seed, numbers, 0, numbers.shape[0], scope)

    def scoped(self, scope: str) -> "SampleRandom":
        return SampleRandom(self.seed, self.at, f"{self.scope}/{scope}")

    def normal(self, key: str, shape: Sequence[int]) -> tf.Tensor:
        return self._each(tf.random.stateless_normal, key, shape)

    def uniform(self, key: str, shape: Sequence[int]) -> tf.Tensor:
        return self._each(tf.random.stateless_uniform, key, shape)

    def _each(self, draw: Callable[..., tf.Tensor], key: str, shape: Sequence[int]) -> tf.Tensor:
        digest = self._digest(key)
        return tf.map_fn(
            lambda number: draw(tuple(shape), tf.stack([digest, number]), alg="philox"),
            self.at,
            fn_output_signature=tf.TensorSpec(tuple(shape), tf.float32),
        )
