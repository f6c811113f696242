"""The ranks of a run and their collectives: reduce, broadcast, stack, gather.

Every rank must call a collective, so none may stand under `if ranks.is_root`. At size 1 each of them does nothing, and
Horovod need not be installed.
"""

import dataclasses
import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvdgan.distributed import backend
from hvdgan.distributed.liveness.activity import Activity
from hvdgan.errors import RunError, UserError

# Where arrays are exchanged between steps: a GPU would first finish all steps that it has been given.
_HOST = "cpu:0"
# Bytes of a gathered value that are sent at once, whatever its length: a shape that Horovod knows is negotiated in
# few bytes. What a log of most recipes sends fits.
_HEAD = 256
_SMALL = 256 * 1024
"""bytes below which a gradient is small; to copy a larger one into a bundle and back costs more than it saves"""


@dataclasses.dataclass(frozen=True)
class Ranks:
    """This process among its peers."""

    rank: int = 0  # 0 <= rank < size; rank 0 is the root
    size: int = 1  # number of ranks
    local_rank: int = 0  # this rank's number on its host
    local_size: int = 1  # ranks on this host
    launcher: str = "none"
    slice_unit: int = 0  # slices of the global batch are multiples of this number of samples; 0: all are equal
    cores: int = 0  # cores that this rank was bound to; 0: it was not bound
    on_gpu: bool = False  # whether the ranks compute on GPUs
    deterministic: bool = False  # whether every run must give the same bits
    reduces_on_host: bool = False  # over the host's memory, because NCCL refuses ranks that share a GPU
    activity: Activity = dataclasses.field(default_factory=Activity, compare=False, repr=False)
    _times: list[tuple[tf.Tensor, tf.Tensor]] = dataclasses.field(default_factory=list, compare=False, repr=False)

    @property
    def is_root(self) -> bool:
        return self.rank == 0

    @property
    def _where(self) -> str:
        """The device on which Horovod reduces gradients and variables; "": their own."""
        return _HOST if self.reduces_on_host else ""

    def slice_of(self, global_batch_size: int) -> tuple[int, int]:
        """The indices (first, last + 1) of this rank's samples in the global batch; may raise a UserError."""
        borders = self._borders(global_batch_size)
        return borders[self.rank], borders[self.rank + 1]

    def weights(self, global_batch_size: int) -> list[float]:
        """The factor of each rank's mean over its slice, with which the mean over ranks is that over all samples."""
        pairs = itertools.pairwise(self._borders(global_batch_size))
        return [(last - first) * self.size / global_batch_size for first, last in pairs]

    def _borders(self, global_batch_size: int) -> list[int]:
        """The borders of the ranks' slices of the global batch."""
        unit, size = self.slice_unit, self.size
        if unit:
            units, rest = divmod(global_batch_size, unit)
            if units < size or rest:
                raise UserError(
                    f"--global-batch-size {global_batch_size}: cannot be cut into micro-batches for {size} ranks; "
                    f"take a multiple of {unit} (--accumulate), at least {size * unit}"
                )
            return [rank * units // size * unit for rank in range(size + 1)]
        if global_batch_size % size:
            below = global_batch_size // size * size
            possible = f"{below} or {below + size}" if below else f"{size}"
            raise UserError(
                f"--global-batch-size {global_batch_size}: cannot be split evenly over {size} ranks; take {possible}"
            )
        return [rank * (global_batch_size // size) for rank in range(size + 1)]

    def reduced(self, gradients: list[tf.Tensor], compression: str = "none") -> list[tf.Tensor]:
        """All-reduce dense gradients, of a loss multiplied by loss_factor(), to those of the mean over the ranks.

        Call it inside a tf.function, under a name scope of stage and update: Horovod matches tensors by name. With the
        compression "fp16" they are sent and summed in float16.
        """
        if self.size == 1:
            return gradients
        hvd, sent = backend.horovod(), _bundle(gradients)
        how = {
            "device_dense": self._where,
            "compression": getattr(hvd.Compression, compression),
            "op": hvd.Average if self.loss_factor(compression) == 1.0 else hvd.Sum,
        }
        on_gpu = self.on_gpu and not self.reduces_on_host
        if _is_one_group(self.size, on_gpu=on_gpu, deterministic=self.deterministic):
            received = hvd.grouped_allreduce(sent, **how)
        else:
            received = [hvd.allreduce(each, **how) for each in sent]
        self._time(sent, received)
        return _unbundle(received, gradients)

    def loss_factor(self, compression: str = "none") -> float:
        """The factor of a loss before reduced(): 1 / size, or 1 with "fp16", where Horovod divides the sums."""
        return 1.0 / self.size if compression == "none" else 1.0

    def mean(self, values: tf.Tensor) -> tf.Tensor:
        """The mean of a tensor over the ranks, differentiable; call it inside a tf.function.

        The tensor is a group of its own, because tensors that Horovod fuses by chance are summed in another order at
        every run.
        """
        if self.size == 1:
            return values
        hvd = backend.horovod()

        # The gradient of a mean over ranks is such a mean, too. Horovod's own would not be on the device of the first.
        @tf.custom_gradient
        def mean(inputs: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            reduced = hvd.grouped_allreduce([inputs], device_dense=self._where, op=hvd.Average)
            self._time([inputs], reduced)
            return reduced[0], self.mean

        return mean(values)

    def sum(self, values: tf.Tensor, name: str) -> tf.Tensor:
        """The sum of a tensor over the ranks, without a gradient; call it inside a tf.function.

        The name is the same on all ranks, and no other collective's in the step.
        """
        if self.size == 1:
            return tf.identity(values, name)
        hvd = backend.horovod()
        # A group of its own, as in mean().
        reduced = hvd.grouped_allreduce([values], device_dense=self._where, op=hvd.Sum, name=name)
        self._time([values], reduced)
        return reduced[0]

    def join(self, values: tf.Tensor, name: str) -> tf.Tensor:
        """The rows of all ranks' tensors in rank order, without a gradient; call it inside a tf.function.

        The tensors may differ in their first dimension. The name is as that of sum().
        """
        if self.size == 1:
            return tf.identity(values, name)
        with tf.device(self._where):
            joined = backend.horovod().allgather(values, name=name)
        self._time([values], [joined])
        return joined

    def _time(self, sent: Sequence[tf.Tensor], received: Sequence[tf.Tensor]) -> None:
        """Note when a traced collective's inputs and its results are ready.

        On a GPU the host does not know it, and TensorFlow refuses to read a clock if it must be deterministic.
        """
        if not (self.on_gpu or self.deterministic or tf.executing_eagerly()):
            self._times.append((_time_after(sent), _time_after(received)))

    def waited(self) -> tf.Tensor | None:
        """Seconds in the collectives of the step that is being traced, in which a rank waits for slower ones.

        None if they are not known. Those inside of a loop, as with --sync-batch-norm and --accumulate, do not count.
        If the clock is set forward meanwhile, they are too many.
        """
        graph, last, seconds = tf.compat.v1.get_default_graph(), None, []
        for begin, end in self._times:
            if begin.graph is graph:
                if last is not None:  # two may overlap
                    begin, end = tf.maximum(begin, last), tf.maximum(end, last)
                seconds.append(tf.maximum(end - begin, 0.0))
                last = end
        self._times.clear()
        return tf.cast(tf.add_n(seconds), tf.float32) if seconds else None

    def stack(self, values: np.ndarray) -> np.ndarray:
        """The arrays of all ranks, floating-point and of one shape, stacked in rank order: (size, ...)."""
        if self.size == 1 or not values.size:
            return np.stack([values] * self.size)
        with self.activity.at("stack"), tf.device(_HOST):
            return _stack(tf.constant(values)).numpy()

    def concatenate(self, values: np.ndarray) -> np.ndarray:
        """The arrays of all ranks, which may differ in their first dimension, one after another in rank order."""
        if self.size == 1:
            return values
        with self.activity.at("concatenate"), tf.device(_HOST):
            return backend.horovod().allgather(tf.constant(values)).numpy()

    def total(self, values: np.ndarray) -> np.ndarray:
        """The sum of the ranks' arrays, floating-point and of one shape."""
        if self.size == 1 or not values.size:
            return values
        with self.activity.at("total"), tf.device(_HOST):
            return backend.horovod().allreduce(tf.constant(values), op=backend.horovod().Sum).numpy()

    def broadcast(self, variables: Sequence[keras.Variable], root: int = 0) -> None:
        """Overwrite the variables of every rank with the root's values."""
        if self.size > 1 and variables:
            with self.activity.at("broadcast of variables"), tf.device(self._where):
                half = [variable for variable in variables if variable.dtype == "bfloat16"]  # Horovod has no such type
                wide = [tf.Variable(tf.cast(variable.value, tf.float32)) for variable in half]
                others = [variable.value for variable in variables if variable.dtype != "bfloat16"]
                backend.horovod().broadcast_variables([*others, *wide], root_rank=root, inplace=False)
                for variable, value in zip(half, wide, strict=True):
                    variable.assign(value)

    def broadcast_array(self, values: np.ndarray, root: int = 0) -> np.ndarray:
        """The root's array; the other ranks pass an array of the same shape and dtype."""
        if self.size == 1 or not values.size:
            return values
        with self.activity.at("broadcast"), tf.device(_HOST):
            return backend.horovod().broadcast(tf.constant(values), root_rank=root).numpy()

    def gather(self, value: Any, name: str) -> list[Any]:
        """The values of all ranks, serialisable to JSON, in rank order; a RunError if the names differ."""
        if self.size == 1:
            return [value]
        hvd = backend.horovod()
        # Send the name too: outside a tf.function Horovod ignores names, and would match unrelated gathers.
        encoded = json.dumps([name, value]).encode()
        head = len(encoded).to_bytes(8, "big") + encoded[:_HEAD].ljust(_HEAD)
        with self.activity.at(f"gather: {name}"), tf.device(_HOST):
            self.activity.wait_for_all()
            heads = [each.tobytes() for each in _stack(tf.constant(np.frombuffer(head, np.uint8))).numpy()]
            lengths = [int.from_bytes(each[:8], "big") for each in heads]
            tails = b""
            if max(lengths) > _HEAD:
                tails = hvd.allgather(tf.constant(np.frombuffer(encoded[_HEAD:], np.uint8))).numpy().tobytes()
        begins = itertools.accumulate((max(length - _HEAD, 0) for length in lengths), initial=0)
        named = [
            json.loads(each[8 : 8 + length] + tails[begin:end])
            for each, length, (begin, end) in zip(heads, lengths, itertools.pairwise(begins), strict=True)
        ]
        if len({name for name, _ in named}) > 1:
            raise RunError(f"the ranks are out of step: they gather {', '.join(name for name, _ in named)}")
        return [value for _, value in named]

    def meet(self, name: str) -> None:
        """Wait until every rank is here, without a Horovod collective, which a long wait would end as stalled."""
        if self.size > 1:
            with self.activity.at(name):
                self.activity.wait_for_all()

    def shutdown(self) -> None:
        """Leave Horovod's ring in order; every rank calls it at the end of the run."""
        if self.size > 1:
            with self.activity.at("shutdown"):
                backend.horovod().shutdown()


@tf.function(autograph=False)
def _stack(values: tf.Tensor) -> tf.Tensor:
    """The tensors of all ranks, of one shape, stacked in rank order: (size, ...).

    In a tf.function, where Horovod knows a collective by its name: if name and shape are those of an earlier one, the
    ranks agree on it without asking rank 0.
    """
    name = "_".join(["stack", values.dtype.name, *map(str, values.shape)])
    with tf.device(_HOST):
        return backend.horovod().allgather(values[None], name=name)


def _time_after(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """The time of day at which the host has tensors (s)."""
    with tf.device(_HOST), tf.control_dependencies(tensors):
        return tf.timestamp()


# A bundle holds all small gradients of one dtype, one after another; a large gradient is a bundle of its own. Horovod
# reduces the bundles of a group together, when all of them are ready. Bundles without a group are reduced as they
# become ready, while the backward pass still computes others, and which of them share a buffer differs from run to run.
# So do the last bits of a sum over three and more ranks: a ring begins each part of a buffer at another rank, so a
# number's place in the buffer decides the order in which the ranks are added. Two ranks have one order.
def _bundle(gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The bundles of gradients."""
    return [
        gradients[places[0]] if len(places) == 1 else tf.concat([tf.reshape(gradients[p], [-1]) for p in places], 0)
        for places in _places(gradients)
    ]


def _unbundle(reduced: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The gradients in reduced bundles, in the order and the shapes of those that _bundle() received."""
    found: dict[int, tf.Tensor] = {}
    for places, values in zip(_places(gradients), reduced, strict=True):
        shapes = [gradients[place].shape for place in places]
        pieces = tf.split(values, [shape.num_elements() for shape in shapes]) if len(places) > 1 else [values]
        found |= {place: tf.reshape(piece, shape) for place, piece, shape in zip(places, pieces, shapes, strict=True)}
    return [found[place] for place in range(len(gradients))]


def _places(gradients: Sequence[tf.Tensor]) -> list[list[int]]:
    """The indices of the gradients in each bundle; they depend on shapes and dtypes only, so all ranks agree."""
    together: dict[Any, list[int]] = {}
    for place, each in enumerate(gradients):
        small = each.shape.num_elements() * each.dtype.size < _SMALL
        together.setdefault(each.dtype if small else place, []).append(place)
    return list(together.values())


def _is_one_group(size: int, *, on_gpu: bool, deterministic: bool) -> bool:
    """Whether all bundles are a group, or each is reduced as soon as it is ready.

    On a GPU the reduction runs beside the backward pass. On a CPU it takes cores from it, so that one group costs
    little and gives equal bits; two ranks have equal bits without a group.
    """
    return deterministic or not (on_gpu or size == 2)
