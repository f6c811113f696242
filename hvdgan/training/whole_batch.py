"""Sums, means and rows over the samples of all ranks in a loss, with gradients: batch.sum, batch.mean, batch.gather.

Rank r multiplies its loss L_r by f_r, and Horovod adds up the gradients of f_r L_r over the ranks: see StageStep. So a
step descends F = sum(f_r L_r). Let every loss read s = sum(x_r), where rank r computes x_r of its own samples. Then

    dF / dx_r = sum over q of f_q dL_q / ds

which is the sum over the ranks of what each one's backward pass has found at s: the gradient of a sum over the ranks is
a sum over the ranks. No factor is left, whatever f_r is, a loss scale included. The mean over N samples, of which rank
r has n_r, is such a sum of x_r = (n_r / N) mean_r, whose own gradient TensorFlow knows. Rows that are gathered are the
sum of blocks which are zero but for a rank's own, so the gradient is the sum over the ranks, of which a rank takes its
own rows; and the gradient of that is to gather again. All is linear, so gradients of gradients are right, too.

Some values must be equal on all ranks. Several ranks refuse a loss that computes one of them from a rank's own samples.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from hvdgan.distributed.ranks import Ranks
from hvdgan.networks.layers import own_means_of
from hvdgan.recipe.batch import State
from hvdgan.recipe.contract import reads, tensor_of
from hvdgan.recipe.recipe_errors import Mistake, check, described
from hvdgan.recipe.stages import Update
from hvdgan.settings.config import Config

_OF_ALL = ("Horovod", "whole_batch")
"""types and names of the operations that give all ranks the same; one rank has only the latter"""


@dataclasses.dataclass
class Traffic:
    """What the functions of a loss send, in units of all-reduces: gathering is half of one."""

    reductions: float = 0.0
    """number"""
    bytes: float = 0.0


class WholeBatch:
    """The functions of one loss, on the rank whose slice of the global batch it sees."""

    def __init__(self, ranks: Ranks, config: Config, pack: int, update: Update, where: str) -> None:
        """`where` begins the messages."""
        self._ranks, self._total, self._pack, self._where = ranks, config.global_batch_size, pack, where
        self._first, self._past = ranks.slice_of(self._total)
        self._refusal = "" if update.reduce else "is over all ranks, and reduce=False trains each by itself"
        # Exact micro-batches would need two further forward passes, one for the mean and one for the sum of its
        # gradients, and two more for a mean of a mean, as in a deviation. With two, a discriminator's step took 1.7
        # times as long as in plain micro-batches, and a gradient penalty would still see a part of the batch.
        if config.accumulate > 1:
            parts = f"of which --accumulate {config.accumulate} computes one part after another"
            self._refusal = f"needs the whole batch, {parts}; {_INSTEAD}"
        self._graph = tf.compat.v1.get_default_graph()
        self._calls = 0
        self.traffic = Traffic()

    def mean(self, x: Any) -> tf.Tensor:
        """See Batch."""
        x, count = self._checked("mean", x), self._past - self._first
        fits = x.shape[0] == 1 or self._pack * x.shape[0] % count == 0
        rows = f"its first axis must be that of the samples, of which this rank has {count}"
        check(fits, f"{self._where}: batch.mean of {described(x)}; {rows}, or 1 for a mean over them")
        mean = self._sum(tf.reduce_mean(_wide(x), 0) * (count / self._total))
        return tf.cast(mean, x.dtype if x.dtype.is_floating else mean.dtype)

    def sum(self, x: Any) -> tf.Tensor:
        """See Batch."""
        return self._sum(tf.reduce_sum(_wide(self._checked("sum", x)), 0))

    def gather(self, x: Any) -> tf.Tensor:
        """See Batch."""
        x, count = self._checked("gather", x), self._past - self._first
        rows = f"its first axis must be that of the samples, of which this rank has {count}"
        # Rows of two joined batches, or several of a sample on the first axis, could be in another order on one rank.
        check(x.shape[0] in (count, count // self._pack), f"{self._where}: batch.gather of {described(x)}; {rows}")
        of_each = 1 if x.shape[0] == count else self._pack
        if not x.dtype.is_floating:
            return self._join_rows(x, of_each)
        return tf.cast(self._rows(_wide(x), of_each), x.dtype)

    def _checked(self, name: str, x: Any) -> tf.Tensor:
        """The tensor, unless the function cannot be called here or on it."""
        what, tensor = f"{self._where}: batch.{name}", tensor_of(x)
        check(not self._refusal, f"{what} {self._refusal}")
        check(
            not self._is_inside(),
            f"{what} is called in a branch, a loop or a function, where ranks could differ; {_OUTSIDE}",
        )
        fits = tensor is not None and tensor.shape.rank and tensor.shape.is_fully_defined()
        check(fits, f"{what} of {described(x)}; it takes a tensor of known shape, the first axis that of the samples")
        return tensor

    def _sum(self, values: tf.Tensor) -> tf.Tensor:
        """The sum over the ranks, whose gradient is such a sum."""
        return _linear(self._reduce, self._sum, values)

    def _rows(self, values: tf.Tensor, of_each: int) -> tf.Tensor:
        """The rows of all ranks, each of which belongs to `of_each` samples."""
        own = slice(self._first // of_each, self._past // of_each)
        return _linear(
            lambda rows: self._join_rows(rows, of_each),
            lambda whole: _linear(lambda x: self._reduce(x)[own], lambda rows: self._rows(rows, of_each), whole),
            values,
        )

    def _reduce(self, values: tf.Tensor) -> tf.Tensor:
        self._note(1.0, values)
        return self._ranks.sum(values, self._name())

    def _join_rows(self, values: tf.Tensor, of_each: int) -> tf.Tensor:
        joined = self._ranks.join(values, self._name())
        joined.set_shape((self._total // of_each, *values.shape[1:]))
        self._note(0.5, joined)
        return joined

    def _name(self) -> str:
        """The name of the next collective; the scope of stage and update comes before it."""
        check(
            not self._is_inside(),
            f"{self._where}: the gradient of batch.mean, sum or gather is taken in a loop; {_OUTSIDE}",
        )
        self._calls += 1
        return f"whole_batch_{self._calls}"

    def _is_inside(self) -> bool:
        """Whether a branch, a loop or a function is traced, which may run on some ranks alone while the others wait."""
        graph = tf.compat.v1.get_default_graph()
        # tf.vectorized_map and jacobians trace the body of their loop in the graph around it, in this scope.
        return graph is not self._graph or "loop_body" in graph.get_name_scope()

    def _note(self, share: float, values: tf.Tensor) -> None:
        self.traffic.reductions += share
        self.traffic.bytes += share * math.prod(values.shape) * values.dtype.size


_INSTEAD = "leave it out, and take more ranks or a smaller batch"
_OUTSIDE = "call it outside of tf.cond, tf.while_loop, tf.map_fn and tf.function"


def _linear(forward: Callable[[tf.Tensor], tf.Tensor], adjoint: Callable[[tf.Tensor], tf.Tensor], x: Any) -> tf.Tensor:
    """A linear function of x with its gradient."""
    return tf.custom_gradient(lambda inputs: (forward(inputs), adjoint))(x)


def _wide(x: tf.Tensor) -> tf.Tensor:
    """The numbers in a type that they can be added up in, and that Horovod knows."""
    return x if x.dtype in (tf.float32, tf.float64) else tf.cast(x, tf.float32)


def own_state(
    new: Mapping[str, tf.Tensor],
    declared: Mapping[str, State],
    samples: Sequence[tf.Tensor],
    update: Update,
    where: str,
) -> Iterator[Mistake]:
    """Each new value of state of all ranks that is computed of the samples of one; `where` begins the messages."""
    for name in (name for name in new if not declared[name].per_sample):
        if any(reads(new[name], each, _OF_ALL) for each in samples):
            what = f"{where}: the loss computes the state {name}, which all ranks share, of the samples of one rank"
            advice = "compute it by batch.mean, batch.sum or batch.gather, or declare it with per_sample=True"
            yield Mistake(f"{what}; {advice}", update.loss)


def own_means(
    loss: tf.Tensor, networks: Sequence[keras.Model], samples: Sequence[tf.Tensor], where: str
) -> Iterator[Mistake]:
    """Each mean of one rank that a loss has moved in these networks, and reads; `where` begins the messages."""
    captured = {id(outer): inner for outer, inner in loss.graph.captures}
    assigned = [each for each in loss.graph.get_operations() if each.type.startswith("Assign")]
    for layer, variable in (each for network in networks for each in own_means_of(network)):
        read = captured.get(id(variable.value.handle))
        new = [each.inputs[1] for each in assigned if each.inputs[0] is read]
        if new and reads(loss, read) and any(reads(each, part, _OF_ALL) for each in new for part in samples):
            what = f"{where}: the loss reads {variable.path}, a mean over the samples of one rank"
            advice = 'leave synchronization="on_read" out, so that it is a mean over those of all ranks'
            yield Mistake(f"{what}; {advice}", type(layer))
