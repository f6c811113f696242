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
        whole: tf.Tensor,
        watch: Callable[[tf.Tensor], object] = lambda drawn: None,
    ) -> None:
        """`first` is where the window begins in a field of the size `whole`, both int64 (axes,).

        They are multiples of the networks' strides. What leaves the field continues at its other end.
        """
        super().__init__(seed, numbers, scope)
        vars(self)["_window"] = {"first": first, "size": size, "whole": whole, "watch": watch}

    def scoped(self, scope: str) -> "PlaceRandom":
        return PlaceRandom(self.seed, self.at, f"{self.scope}/{scope}", **vars(self)["_window"])

    def _each(self, draw: Callable[..., tf.Tensor], key: Key, shape: Sequence[int]) -> tf.Tensor:
        first, size, whole, watch = vars(self)["_window"].values()
        space, ones = tuple(shape[-1 - len(size) : -1]), {*shape[: -1 - len(size)]}
        finer = {fractions.Fraction(mine, cells) for mine, cells in zip(space, size, strict=False)}
        factor = min(finer, default=fractions.Fraction(0))
        if len(space) < len(size) or {*finer} != {factor} or factor.denominator > STRIDE or 1 in space or ones - {1}:
            return super()._each(draw, key, shape)
        first, whole = (each * factor.numerator // factor.denominator for each in (first, whole))
        numbers = self._of_places(draw, tf.cast(self._seed(key), tf.int64), first, whole, (*space, shape[-1]))[None]
        watch(numbers)
        return tf.reshape(numbers, (1, *shape))

    def _of_places(
        self, draw: Callable[..., tf.Tensor], seed: tf.Tensor, first: tf.Tensor, whole: tf.Tensor, shape: Shape
    ) -> tf.Tensor:
        """Numbers of a region that begins at a place: those of all blocks that it touches, and of these its own."""
        axes, place, counts, inside = len(shape) - 1, self.at[0], [], []
        for axis, size in enumerate(shape[:-1]):
            places = (first[axis] + tf.range(size, dtype=tf.int64)) % whole[axis]
            blocks = places // _BLOCK
            turn = tf.cumsum(tf.cast(blocks[1:] != blocks[:-1], tf.int64))
            turn = tf.concat([[tf.constant(0, tf.int64)], turn], 0)  # of the block, in the order of the region
            counts.append(-(-size // _BLOCK) + 2)  # both ends of a field can lie in the region
            touched = tf.maximum(tf.math.unsorted_segment_max(blocks, turn, counts[-1]), 0)
            place = place[..., None] * 2 ** (_BITS // axes) + touched
            inside.append(turn * _BLOCK + places % _BLOCK)
        block = (*[_BLOCK] * axes, shape[-1])
        drawn = tf.map_fn(
            lambda number: draw(block, seed + [0, number], alg="philox"),
            tf.reshape(place, [-1]),
            fn_output_signature=tf.TensorSpec(block, tf.float32),
        )
        order = [axis + half * axes for axis in range(axes) for half in range(2)]  # blocks, then places in them
        drawn = tf.transpose(tf.reshape(drawn, (*counts, *block)), (*order, 2 * axes))
        drawn = tf.reshape(drawn, (*(count * _BLOCK for count in counts), shape[-1]))
        for axis, own in enumerate(inside):
            drawn = tf.gather(drawn, own, axis=axis)
        return drawn
