"""Random numbers of places in a field: a part of it gets the same ones, however it is cut into tiles."""

import dataclasses
import fractions
from collections.abc import Callable, Sequence

import tensorflow as tf

from hvdgan.recipe.draws import Key
from hvdgan.recipe.sampling import SampleRandom

STRIDE = 32
"""largest stride of networks, in cells; a power of two"""
_BLOCK = 16
"""places along each axis that are drawn together"""
_BITS = 40
"""bits of a seed that hold the place of a block; those above hold the number of the sample"""


@dataclasses.dataclass(frozen=True)
class Window:
    """The part of a field that networks see, in cells: places of the coarsest of its arrays."""

    first: tf.Tensor
    """where it begins in the field, int64 (axes,), a multiple of the networks' strides"""
    size: tuple[int, ...]


class PlaceRandom(SampleRandom):
    """Draws for one sample, (1,) int64, of which a window is computed.

    Numbers of a shape that is the window's, or a multiple or an even part of it, with channels after it, belong to
    places of the field. All others are the same in all windows. `watch` is called with the numbers of places.
    """

    window: Window
    watch: Callable[[tf.Tensor], None]

    def __init__(
        self,
        seed: int,
        numbers: tf.Tensor,
        window: Window,
        scope: str = "",
        watch: Callable[[tf.Tensor], None] = lambda drawn: None,
    ) -> None:
        super().__init__(seed, numbers, scope)
        vars(self).update(window=window, watch=watch)

    def scoped(self, scope: str) -> "PlaceRandom":
        return PlaceRandom(self.seed, self.at, self.window, f"{self.scope}/{scope}", self.watch)

    def _each(self, draw: Callable[..., tf.Tensor], key: Key, shape: Sequence[int]) -> tf.Tensor:
        axes = len(self.window.size)
        space, ones = tuple(shape[-1 - axes : -1]), shape[: -1 - axes]
        finer = {fractions.Fraction(mine, cells) for mine, cells in zip(space, self.window.size, strict=False)}
        factor = min(finer, default=fractions.Fraction(0))
        if len(space) < axes or {*finer} != {factor} or factor.denominator > STRIDE or 1 in space or {*ones} - {1}:
            return super()._each(draw, key, shape)
        first = self.window.first * factor.numerator // factor.denominator
        numbers = self._of_places(draw, tf.cast(self._seed(key), tf.int64), first, (*space, shape[-1]))[None]
        self.watch(numbers)
        return tf.reshape(numbers, (1, *shape))

    def _of_places(
        self, draw: Callable[..., tf.Tensor], seed: tf.Tensor, first: tf.Tensor, shape: tuple[int, ...]
    ) -> tf.Tensor:
        """Numbers of a region that begins at a place: those of all blocks that it touches, cut to its size."""
        axes = len(shape) - 1
        counts = [-(-size // _BLOCK) + 1 for size in shape[:-1]]
        blocks = [first[axis] // _BLOCK + tf.range(count, dtype=tf.int64) for axis, count in enumerate(counts)]
        place = self.at[0]
        for each in blocks:
            place = place[..., None] * 2 ** (_BITS // axes) + each
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
