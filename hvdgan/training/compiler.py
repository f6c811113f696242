"""Calls parts of a step through XLA, which compiles each to few kernels: losses with their gradients, and optimizers.

Horovod's operations stay outside, because XLA cannot compile them.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hvdgan.cli.config import Config
from hvdgan.cli.errors import UserError
from hvdgan.distributed.ranks import Ranks
from hvdgan.recipe.draws import Random
from hvdgan.recipe.mistakes import Mistake
from hvdgan.training.compiled_random import CompiledRandom

_LONGEST = 200  # characters of XLA's own words


@dataclasses.dataclass(frozen=True)
class Compiler:
    """Calls functions as they are, or compiled.

    on: True to compile.
    """

    on: bool = False

    @property
    def random(self) -> type[Random]:
        """The class that draws random numbers inside of the functions."""
        return CompiledRandom if self.on else Random

    def __call__(self, where: str, at: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function inside of a graph that is being traced."""
        if not self.on:
            return function(*arguments)
        leaves = tf.nest.flatten(arguments)
        places = [place for place, leaf in enumerate(leaves) if tf.is_tensor(leaf)]
        tensors = [leaves[place] for place in places]

        def run(*inner: tf.Tensor) -> Any:
            mine = list(leaves)
            for place, tensor in zip(places, inner, strict=True):
                mine[place] = tensor
            return function(*tf.nest.pack_sequence_as(arguments, mine))

        compiled = tf.function(run, autograph=False, jit_compile=True)
        _check(compiled, [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors], where, at)
        return compiled(*tensors)


def check_jit(config: Config, ranks: Ranks) -> None:
    """Refuse settings that XLA cannot compile."""
    if config.jit and config.sync_batch_norm and (ranks.size > 1 or ranks.slice_unit):
        raise UserError(
            "--jit: with --sync-batch-norm the all-reduces of BatchNorm are in the losses, and XLA cannot compile "
            "Horovod's operations; leave out one of the two flags"
        )


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
        raise Mistake(f"{where}: --jit: {_reason(str(error))}; leave out --jit, or use other operations", at) from None


def _reason(text: str) -> str:
    """XLA's message in a few words: the operations that it cannot compile, or else its first line."""
    unknown = dict.fromkeys(re.findall(r"(\w+) \(No registered '\w+' OpKernel", text))
    if unknown:
        return f"XLA cannot compile {', '.join(unknown)}"
    first = text.strip().partition("\n")[0]
    return f"XLA cannot compile it: {first if len(first) <= _LONGEST else f'{first[: _LONGEST - 3]}...'}"
