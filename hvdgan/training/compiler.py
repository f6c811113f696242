"""Calls parts of a step through XLA, which compiles each to few kernels: losses with their gradients, and optimizers.

Horovod's operations stay outside, because XLA cannot compile them.
"""

import dataclasses
import math
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hvdgan.recipe.draws import Random
from hvdgan.recipe.mistakes import Mistake

_ROUNDS = 10
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_FIRST_KEY = 0x3EC8F720, 0x02461E29
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_BLOCK = 4  # numbers of 32 bits that Philox makes from one value of its counter


class CompiledRandom(Random):
    """Draws the numbers of Random: uniform ones are equal, normal ones within rounding."""

    @property
    def step(self) -> tf.Tensor:
        """The global step, a scalar int64 tensor; a function that XLA compiles gets it on its device."""
        return self.at

    def normal(self, key: str, shape: Sequence[int]) -> tf.Tensor:
        """As Random.normal."""
        return self._of_bits(_normal, key, shape)

    def uniform(self, key: str, shape: Sequence[int]) -> tf.Tensor:
        """As Random.uniform."""
        return self._of_bits(_uniform, key, shape)

    def _of_bits(self, numbers: Callable[[tf.Tensor], tf.Tensor], key: str, shape: Sequence[int]) -> tf.Tensor:
        each = math.prod(shape)
        begin, wanted = tf.cast(self.first, tf.int64) * each, self.count * each
        blocks = -(-(wanted + _BLOCK - 1) // _BLOCK)  # the first of them may begin before this part
        # TensorFlow takes the key, and the upper half of the counter, from a first block with a key of its own.
        seed = tf.bitcast(self._seed(key), tf.uint64)
        mixed = _philox([*_halves(seed[0]), *_halves(seed[1])], [tf.constant(each, tf.uint32) for each in _FIRST_KEY])
        number = tf.cast(begin // _BLOCK + tf.range(blocks, dtype=tf.int64), tf.uint64)
        bits = _philox([*_halves(number), *(tf.fill([blocks], each) for each in mixed[2:])], mixed[:2])
        drawn = tf.reshape(numbers(tf.stack(bits, axis=1)), [-1])
        return tf.reshape(tf.slice(drawn, [begin % _BLOCK], [wanted]), (self.count, *shape))


def on_device(random: Random) -> dict[str, Any]:
    """Return the fields of a Random with its tensors on the device, where XLA's functions expect their arguments."""
    first = random.first
    if tf.is_tensor(first):  # of a micro-batch
        with tf.device("cpu:0"):
            first = tf.cast(first, tf.int64)
        first = first if random.to_device is None else random.to_device(first)
    return {**vars(random), "at": random.step, "first": first}


def _philox(counter: list[tf.Tensor], key: list[tf.Tensor]) -> list[tf.Tensor]:
    """Four uint32 tensors of random bits, from a counter of four and a key of two uint32."""
    for number in range(_ROUNDS):
        steps = [tf.constant(number * step % 2**32, tf.uint32) for step in _KEY_STEPS]
        keys = [each + step for each, step in zip(key, steps, strict=True)]
        products = [
            tf.cast(factor, tf.uint64) * tf.constant(multiplier, tf.uint64)
            for factor, multiplier in zip(counter[::2], _MULTIPLIERS, strict=True)
        ]
        (low_0, high_0), (low_1, high_1) = map(_halves, products)
        xor = tf.bitwise.bitwise_xor
        counter = [xor(xor(high_1, counter[1]), keys[0]), low_1, xor(xor(high_0, counter[3]), keys[1]), low_0]
    return counter


def _halves(wide: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The lower and the upper 32 bits of uint64 numbers, as uint32."""
    lower = tf.bitwise.bitwise_and(wide, tf.constant(2**32 - 1, tf.uint64))
    upper = tf.bitwise.right_shift(wide, tf.constant(32, tf.uint64))
    return tf.cast(lower, tf.uint32), tf.cast(upper, tf.uint32)


def _uniform(bits: tf.Tensor) -> tf.Tensor:
    """Numbers from 0 to below 1 of the lower 23 of 32 bits, the fraction of a float32 between 1 and 2."""
    fraction = tf.bitwise.bitwise_and(bits, tf.constant(2**23 - 1, tf.uint32))
    one = tf.constant(0x3F800000, tf.uint32)
    return tf.bitcast(tf.bitwise.bitwise_or(fraction, one), tf.float32) - 1.0


def _normal(bits: tf.Tensor) -> tf.Tensor:
    """Normal numbers by pairs: bits (N, 4) give two pairs each.

    Reference: Box and Muller 1958.
    """
    radius, angle = tf.unstack(tf.reshape(_uniform(bits), (-1, 2)), axis=1)
    radius = tf.sqrt(-2.0 * tf.math.log(tf.maximum(radius, 1e-7)))  # TensorFlow's own lower limit
    angle *= 2.0 * math.pi
    return tf.stack([tf.sin(angle) * radius, tf.cos(angle) * radius], axis=1)


@dataclasses.dataclass(frozen=True)
class Compiler:
    """Calls functions as they are, or compiled.

    on: True to compile.
    """

    on: bool = False

    def __call__(self, where: str, at: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function inside of a graph that is being traced."""
        if not self.on:
            return function(*arguments)
        leaves = tf.nest.flatten(arguments)
        indices = [index for index, leaf in enumerate(leaves) if tf.is_tensor(leaf)]
        tensors = [leaves[index] for index in indices]

        def run(*inner: tf.Tensor) -> Any:
            mine = list(leaves)
            for index, tensor in zip(indices, inner, strict=True):
                mine[index] = tensor
            return function(*tf.nest.pack_sequence_as(arguments, mine))

        compiled = tf.function(run, autograph=False, jit_compile=True)
        _check(compiled, [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors], where, at)
        return compiled(*tensors)


def _check(
    compiled: "tf.types.experimental.PolymorphicFunction", specs: Sequence[tf.TensorSpec], where: str, at: Any
) -> None:
    """Let XLA translate a function now, since the step itself would do so only when it first runs."""
    translate = compiled.experimental_get_compiler_ir(*specs)
    try:
        with tf.init_scope():
            translate(stage="hlo")
    except (tf.errors.OpError, ValueError) as error:
        # Not as its cause: a recipe of hvdgan would then show the traceback of a bug.
        text = str(error).strip()
        unknown = dict.fromkeys(re.findall(r"(\w+) \(No registered '\w+' OpKernel", text))
        what = ", ".join(unknown) or "it: " + textwrap.shorten(text.partition("\n")[0], 200, placeholder="...")
        raise Mistake(
            f"{where}: --jit: XLA cannot compile {what}; leave out --jit, or use other operations", at
        ) from None
