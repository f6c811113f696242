"""Random numbers of places in a field: a part of it gets the same ones, however it is cut into tiles."""

import fractions
from collections.abc import Callable, Sequence

import tensorflow as tf

from hvdgan.recipe.draws import Key
from hvdgan.recipe.sampling import SampleRandom
from hvdgan.values.sample_values import Shape

STRIDE = 32
"""largest stride of networks, in cells; a power of two"""
_BLOCK = 16
"""places along each axis that are drawn together"""
_BITS = 40
"""bits of a seed that hold the place of a block; those above hold the number of the sample"""


class PlaceRandom(SampleRandom):
    """Draws for one sample, `numbers` (1,) int64, of which networks see a window, counted in cells.

    Numbers of a shape that is the window's, or a multiple or an even part of it, with channels after it, belong to
    places of the field, and `watch` is called with them. All others are the same in all windows.
    """

    def __init__(
        self,
        seed: int,
        numbers: tf.Tensor,
        scope: str = "",
        *,
        first: tf.Tensor,
        size: Shape,
        watch: Callable[[tf.Tensor], object] = lambda drawn: None,
    ) -> None:
        """`first` is where the window begins in the field, int64 (axes,), a multiple of the networks' strides."""
        super().__init__(seed, numbers, scope)
        vars(self)["_window"] = {"first": first, "size": size, "watch": watch}

    def scoped(self, scope: str) -> "PlaceRandom":
        return PlaceRandom(self.seed, self.at, f"{self.scope}/{scope}", **vars(self)["_window"])

    def _each(self, draw: Callable[..., tf.Tensor], key: Key, shape: Sequence[int]) -> tf.Tensor:
        first, size, watch = vars(self)["_window"].values()
        space, ones = tuple(shape[-1 - len(size) : -1]), {*shape[: -1 - len(size)]}
        finer = {fractions.Fraction(mine, cells) for mine, cells in zip(space, size, strict=False)}
        factor = min(finer, default=fractions.Fraction(0))
        if len(space) < len(size) or {*finer} != {factor} or factor.denominator > STRIDE or 1 in space or ones - {1}:
            return super()._each(draw, key, shape)
        first = first * factor.numerator // factor.denominator
        numbers = self._of_places(draw, tf.cast(self._seed(key), tf.int64), first, (*space, shape[-1]))[None]
        watch(numbers)
        return tf.reshape(numbers, (1, *shape))

    def _of_places(self, draw: Callable[..., tf.Tensor], seed: tf.Tensor, first: tf.Tensor, shape: Shape) -> tf.Tensor:
        """Numbers of a region that begins at a place: those of all blocks that it touches, cut to its size."""
        axes, counts, place = len(shape) - 1, [-(-size // _BLOCK) + 1 for size in shape[:-1]], self.at[0]
        for axis, count in enumerate(counts):
            blocks = first[axis] // _BLOCK + tf.range(count, dtype=tf.int64)
            place = place[..., None] * 2 ** (_BITS // axes) + blocks
        block = (*[_BLOCK] * axes, shape[-1])
        drawn = tf.map_fn(
            lambda number: draw(block, seed + [0, number], alg="philox"),
            tf.reshape(place, [-1]),
            fn_output_signature=tf.TensorSpec(block, tf.float32),
        )
        order = [axis + half * axes for axis in range(axes) for half in range(2)]  # blocks, then places in them
        drawn = tf.transpose(tf.reshape(drawn, (*counts, *block)), (*order, 2 * axes))
        drawn = tf.reshape(drawn, (*(count * _BLOCK for count in counts), shape[-1]))
        return tf.slice(drawn, tf.concat([first % _BLOCK, [0]], 0), shape)
