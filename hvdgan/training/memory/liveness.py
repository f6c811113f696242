"""The most bytes of a traced graph that live at once, if operations run one at a time, in the order of being ready."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import tensorflow as tf

from hvdgan.training.steps.graphs import called_by, kind_of

# Operations whose outputs are the buffers of their inputs, one for one; a loop puts new values in place of old ones.
_SAME = frozenset(
    "Identity IdentityN StopGradient PreventGradient CheckNumerics EnsureShape While StatelessWhile".split()
)
_VIEWS = frozenset("Reshape Squeeze ExpandDims Bitcast".split())  # of their first input
_HELD = frozenset("Placeholder ReadVariableOp Const VarHandleOp".split())  # by someone else, for as long as they live
# Operations that write their result over an input of the same size that nobody else reads.
_IN_PLACE = frozenset(
    """Add AddV2 AddN Sub Mul RealDiv Maximum Minimum Neg Exp Log Log1p Sqrt Rsqrt Square Tanh Sigmoid Relu LeakyRelu
    Softplus BiasAdd ReluGrad LeakyReluGrad TanhGrad SigmoidGrad SoftplusGrad SqrtGrad RsqrtGrad""".split()
)


@dataclasses.dataclass(frozen=True)
class Peak:
    """The most bytes that live at once.

    Attributes:
        scaled: bytes of tensors whose size depends on the batch.
        fixed: bytes of other tensors, such as gradients of weights.
    """

    scaled: int = 0
    fixed: int = 0

    @property
    def total(self) -> int:
        return self.scaled + self.fixed

    def __add__(self, other: "Peak") -> "Peak":
        return Peak(self.scaled + other.scaled, self.fixed + other.fixed)

    def __sub__(self, other: "Peak") -> "Peak":
        return Peak(self.scaled - other.scaled, self.fixed - other.fixed)


def peak_of(graph: tf.Graph, is_fixed: Callable[[tf.Tensor], bool]) -> Peak:
    """Walk the operations of a graph, and those of the functions, branches and loops that it calls.

    Operations that no result and no effect depends on do not run, so they are left out. Constants, the variables and
    the arguments of the graph are not counted. A dimension that is not known counts as 1.

    Args:
        graph: graph of a traced function.
        is_fixed: function that decides whether a tensor's size does not depend on the batch.
    """
    order = _in_turn(_needed(graph))
    buffers, sizes, made = _buffers(order, is_fixed)
    read = [[] if _makes_none(each) else [buffers[id(tensor)] for tensor in each.inputs] for each in order]
    readers = Counter(itertools.chain(*read))
    readers.update(buffers[id(tensor)] for tensor in graph.outputs if id(tensor) in buffers)
    live = most = Peak()
    for operation, own, inputs in zip(order, made, read, strict=True):
        readers.subtract(inputs)
        dead = {buffer for buffer in inputs if readers[buffer] <= 0}
        new = sum((sizes[buffer] for buffer in own), Peak())
        # What a function returns is among what lives in it, unless it returns its arguments.
        added = max(new, _within(operation, graph, is_fixed), key=lambda peak: peak.total)
        now = live + added - _overwritten(operation, sizes, own, dead)
        most = max(most, now, key=lambda peak: peak.total)
        gone = dead.union(buffer for buffer in own if readers[buffer] <= 0)
        live += new - sum((sizes[buffer] for buffer in gone), Peak())
    return most


def _needed(graph: tf.Graph) -> list[tf.Operation]:
    """The operations that a result or an effect of the graph depends on, in the order in which they were made."""
    operations = graph.get_operations()
    waiting = [tensor.op for tensor in graph.outputs]
    waiting += [each for each in operations if kind_of(each).is_stateful and each.type not in _HELD]
    seen = {operation.name for operation in waiting}
    while waiting:
        operation = waiting.pop()
        for before in (*(tensor.op for tensor in operation.inputs), *operation.control_inputs):
            if before.name not in seen:
                seen.add(before.name)
                waiting.append(before)
    return [operation for operation in operations if operation.name in seen]


def _in_turn(operations: Sequence[tf.Operation]) -> list[tf.Operation]:
    """Order operations as TensorFlow starts them: each when all that it waits for are done, in the order of that."""
    places = {operation.name: place for place, operation in enumerate(operations)}
    followers: list[list[int]] = [[] for _ in operations]
    missing = []
    for place, operation in enumerate(operations):
        names = {each.name for each in (*(tensor.op for tensor in operation.inputs), *operation.control_inputs)}
        before = [places[name] for name in names if name in places]
        missing.append(len(before))
        for each in before:
            followers[each].append(place)
    order = [place for place, count in enumerate(missing) if not count]
    for place in order:  # it grows meanwhile
        for follower in followers[place]:
            missing[follower] -= 1
            if not missing[follower]:
                order.append(follower)
    return [operations[place] for place in order]


def _makes_none(operation: tf.Operation) -> bool:
    """Whether the results of an operation lie in the buffers of its inputs."""
    return operation.type in _SAME or operation.type in _VIEWS


def _buffers(
    order: Sequence[tf.Operation], is_fixed: Callable[[tf.Tensor], bool]
) -> tuple[dict[int, int], list[Peak], list[list[int]]]:
    """Number the buffers of a graph.

    Returns:
        The number of each tensor's buffer by the tensor's id, the size of each buffer, and the numbers of the buffers
        that each operation makes.
    """
    buffers: dict[int, int] = {}
    sizes: list[Peak] = []
    made: list[list[int]] = []
    for operation in order:
        begin, outputs = len(sizes), operation.outputs
        if _makes_none(operation):
            buffers.update((id(own), buffers[id(its)]) for own, its in zip(outputs, operation.inputs, strict=False))
        for tensor in () if _makes_none(operation) else outputs:
            buffers[id(tensor)] = len(sizes)
            size = 0 if operation.type in _HELD else _bytes(tensor)
            sizes.append(Peak(fixed=size) if size and is_fixed(tensor) else Peak(scaled=size))
        made.append(list(range(begin, len(sizes))))
    return buffers, sizes, made


def _within(operation: tf.Operation, graph: tf.Graph, is_fixed: Callable[[tf.Tensor], bool]) -> Peak:
    """The peak of the functions that an operation calls: one branch or round runs at a time."""
    peaks = [peak_of(inner, is_fixed) for inner in called_by(operation, graph)]
    return max(peaks, key=lambda peak: peak.total, default=Peak())


def _overwritten(operation: tf.Operation, sizes: Sequence[Peak], own: Sequence[int], dead: Iterable[int]) -> Peak:
    """The size of an input that an operation overwrites with its result."""
    if operation.type not in _IN_PLACE:
        return Peak()
    wanted = sizes[own[0]].total
    return next((sizes[buffer] for buffer in dead if sizes[buffer].total == wanted), Peak())


def _bytes(tensor: tf.Tensor) -> int:
    if tensor.shape.rank is None or tensor.dtype in (tf.resource, tf.variant, tf.string):
        return 0
    count = tensor.dtype.size
    for size in tensor.shape:
        count *= 1 if size is None else size
    return count
