"""Finds what a GPU would not compute by itself in a traced graph, by the kernels that TensorFlow has for GPUs.

TensorFlow places each operation on the GPU for whose types it has a kernel there, and on the host otherwise, or where
the graph says so. A kernel has some arguments in the memory of the host: shapes, axes, predicates, and all arguments of
almost every operation on int32. A number that a GPU has computed and such an argument needs is copied to the host,
which waits until the GPU has done everything before it. So does a number of the host's that is needed on the GPU.

What depends on constants and known shapes alone counts as a constant, as TensorFlow's graph optimizer computes it once;
it is where the kernel that computed it would have left it. The optimizer removes identities, so a tensor stays where it
is there.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from hvdgan.training.repeatable import function_of

LIST = Path(__file__).parent / "gpu_kernels.txt"
_IGNORED = ("Placeholder", "NoOp")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
_LOOPS = ("While", "StatelessWhile")
Types = Mapping[str, tuple[str, ...]]
"""for each attribute that has types, those"""
_IDENTITIES = ("Identity", "StopGradient", "PreventGradient")
_REFUSED = frozenset(
    """AdjustContrast AdjustContrastv2 Bincount CropAndResizeGradBoxes CropAndResizeGradImage DenseBincount
    Dilation2DBackpropFilter Dilation2DBackpropInput FakeQuantWithMinMaxVarsGradient
    FakeQuantWithMinMaxVarsPerChannelGradient MaxPoolGradWithArgmax ResizeNearestNeighborGrad
    SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits SparseTensorDenseMatMul""".split()
)
"""operations whose kernels for GPUs raise an error with --deterministic, by the messages in the wheel"""
_SHAPES = ("Shape", "ShapeN", "Size", "Rank")


class Kernel(NamedTuple):
    """types: for each attribute that decides, the types that it may have; on_host: arguments in the host's memory."""

    types: Mapping[str, frozenset[str]]
    on_host: frozenset[str]


class Fault(NamedTuple):
    """What a GPU would not compute, with the types of the operation's attributes and its name.

    what: "no kernel"; "string", of which a GPU has no kernels; "waits" for the GPU in the middle of a step; "copies" a
        number of the host to the GPU in each step, for which the next operations wait; "refused", with --deterministic.
    """

    what: str
    operation: str
    types: str
    place: str


@functools.cache
def kernels() -> dict[str, list[Kernel]]:
    """The kernels for GPUs of each type of operation."""
    found: dict[str, list[Kernel]] = {}
    for line in LIST.read_text().splitlines():
        if line.startswith("#"):
            continue
        (operation, *types), _, on_host = ([*part.split()] for part in line.partition(" @"))
        pairs = (each.partition("=") for each in types)
        kernel = Kernel({name: frozenset(values.split(",")) for name, _, values in pairs}, frozenset(on_host))
        found.setdefault(operation, []).append(kernel)
    return found


def kernel_of(operation: str, types: Types) -> Kernel | None:
    """The kernel of an operation whose attributes have these types; None: a GPU has none."""
    for kernel in kernels().get(operation, []):
        if all(allowed.issuperset(types.get(name, ())) for name, allowed in kernel.types.items()):
            return kernel
    return None


def faults_of(
    function: "tf.types.experimental.ConcreteFunction", on_host: int, halves: Sequence[str] = ("float16",)
) -> list[Fault]:
    """What a GPU would not compute by itself.

    Args:
        function: traced function.
        halves: types that stand for float16: a graph in bfloat16 or float32 has the same operations on another type.
        on_host: number of its first arguments that are in the host's memory. Resources are there always, and numbers
            of type int32 too, to where TensorFlow copies them before it calls a function.
    """
    kept, inputs, walk = (tf.resource, tf.int32), function.graph.inputs, _Walk(halves)
    walk.through(function.graph, [number < on_host or each.dtype in kept for number, each in enumerate(inputs)])
    return list(dict.fromkeys(walk.faults))


class _Walk:
    """A walk through graphs in which True is the memory of the host, and False that of the GPU."""

    def __init__(self, halves: Sequence[str]) -> None:
        self.halves = halves
        self.faults: list[Fault] = []
        self.constants: set[int] = set()

    def through(self, graph: tf.Graph, given: list[bool]) -> list[bool]:
        """The memory of the graph's results, from that of its inputs."""
        memory, live = {id(each): where for each, where in zip(graph.inputs, given, strict=True)}, _live(graph)
        for operation in graph.get_operations():
            if operation not in live or operation.type in _IGNORED:
                continue
            if self._is_constant(operation):
                self.constants |= {id(each) for each in operation.outputs}
            found = self._one(operation, [memory[id(each)] for each in operation.inputs])
            memory |= {id(each): where for each, where in zip(operation.outputs, found, strict=True)}
        return [memory[id(each)] for each in graph.outputs]

    def _one(self, operation: tf.Operation, given: list[bool]) -> list[bool]:
        """The memory of an operation's results."""
        if operation.type in _CALLS:
            # A second gradient of a function that XLA compiles appends outputs, which its earlier calls do not have.
            return self.through(*_functions(operation, "f"), given)[: len(operation.outputs)]
        if operation.type in _BRANCHES:
            self._need(operation, given[:1])
            return self._branches(operation, given[1:])
        if operation.type in _LOOPS:
            return self._loop(operation, given)
        if operation.type in _IDENTITIES and "CPU" not in operation.device.upper():
            return given
        if self._is_constant(operation) and operation.inputs:
            given = [True] * len(given)  # it is computed before the first step
        if any(each.dtype == tf.string for each in (*operation.inputs, *operation.outputs)):
            self._add("string", operation)
        if operation.type in _REFUSED or (
            operation.type.startswith("FusedBatchNormGrad") and not operation.get_attr("is_training")
        ):
            self._add("refused", operation)
        types = _types(operation)
        on_host = "CPU" in operation.device.upper() or _of_variable_on_host(operation, types)
        kernel = None if on_host else self._kernel(operation, types)
        if kernel is None:
            self._need(operation, given)
            return [True] * len(operation.outputs)
        arguments = list(_arguments(operation, operation.op_def.input_arg))
        self._need(operation, [where for name, where in zip(arguments, given, strict=True) if name in kernel.on_host])
        from_host = any(where for name, where in zip(arguments, given, strict=True) if name not in kernel.on_host)
        if from_host and not self._is_constant(operation):
            self._add("copies", operation)
        return [name in kernel.on_host for name in _arguments(operation, operation.op_def.output_arg)]

    def _kernel(self, operation: tf.Operation, types: Types) -> Kernel | None:
        """The operation's kernel; None, and a fault, if there is none for one of the types of half precision."""
        for half in self.halves if any("float16" in values for values in types.values()) else [""]:
            meant = {name: tuple(half if each == "float16" else each for each in types[name]) for name in types}
            kernel = kernel_of(operation.type, meant)
            if kernel is None:
                if not self._is_constant(operation):
                    self._add("no kernel", operation, meant)
                return None
        return kernel

    def _branches(self, operation: tf.Operation, given: list[bool]) -> list[bool]:
        """A branch becomes Switch, its operations, and Merge."""
        switched = self._passed("Switch", operation, list(operation.inputs)[1:], given)
        for attribute in [each.name for each in operation.op_def.attr if "func" in each.type]:
            for inner in _functions(operation, attribute):
                merged = self._passed("Merge", operation, inner.outputs, self.through(inner, switched))
        return merged

    def _loop(self, operation: tf.Operation, given: list[bool]) -> list[bool]:
        """A loop becomes Enter, its operations, and NextIteration; its condition must be known to the host."""
        variables = self._passed("Enter", operation, operation.inputs, given)
        self._need(operation, self.through(*_functions(operation, "cond"), variables))
        (body,) = _functions(operation, "body")
        return self._passed("NextIteration", operation, body.outputs, self.through(body, variables))

    def _passed(self, through: str, operation: tf.Operation, tensors: Sequence, given: list[bool]) -> list[bool]:
        """The memory of tensors that pass through control flow, which is placed where they come from."""
        results = []
        for tensor, where in zip(tensors, given, strict=True):
            kernel = kernel_of(through, {"T": (tensor.dtype.name,)})
            on_host = kernel is None or bool({"data", "inputs"} & kernel.on_host)
            self._need(operation, [where] if on_host else [])
            results.append(where or on_host)
        return results

    def _is_constant(self, operation: tf.Operation) -> bool:
        """Whether the graph optimizer computes the operation once."""
        if operation.type in _SHAPES:
            return all(each.shape.is_fully_defined() for each in operation.inputs)
        if operation.op_def.is_stateful or operation.type in (*_CALLS, *_BRANCHES, *_LOOPS, *_IGNORED):
            return False
        return all(id(each) in self.constants for each in operation.inputs)

    def _need(self, operation: tf.Operation, given: list[bool]) -> None:
        if not all(given):
            self._add("waits", operation)

    def _add(self, what: str, operation: tf.Operation, types: Types | None = None) -> None:
        named = sorted((types or _types(operation)).items())
        text = " ".join(f"{name}={','.join(values)}" for name, values in named)
        self.faults.append(Fault(what, operation.type, text, operation.name))


def _live(graph: tf.Graph) -> set[tf.Operation]:
    """The operations that are executed: those that a result needs, and those with effects."""
    left = [each.op for each in graph.outputs] + list(graph.control_outputs)
    left += [each for each in graph.get_operations() if each.op_def.is_stateful]
    live: set[tf.Operation] = set()
    while left:
        operation = left.pop()
        if operation not in live:
            live.add(operation)
            left += [each.op for each in operation.inputs] + list(operation.control_inputs)
    return live


def _types(operation: tf.Operation) -> Types:
    """The types of the attributes that have some."""
    found = {}
    for attribute in operation.op_def.attr:
        if attribute.type in ("type", "list(type)"):
            value = operation.get_attr(attribute.name)
            found[attribute.name] = tuple(tf.as_dtype(e).name for e in (value if isinstance(value, list) else [value]))
    return found


def _of_variable_on_host(operation: tf.Operation, types: Types) -> bool:
    """Whether an operation reads or writes a variable of a type of which a GPU has none, such as int32."""
    if not any(each.dtype == tf.resource for each in operation.inputs):
        return False
    of_variable = types.get("dtype") or types.get("T")
    return of_variable is not None and kernel_of("VarHandleOp", {"dtype": of_variable}) is None


def _arguments(operation: tf.Operation, definitions) -> Iterator[str]:
    """The name of each argument or result, once for each tensor of a list."""
    for each in definitions:
        types = len(operation.get_attr(each.type_list_attr)) if each.type_list_attr else 1
        yield from [each.name] * (operation.get_attr(each.number_attr) if each.number_attr else types)


def _functions(operation: tf.Operation, attribute: str) -> Iterator[tf.Graph]:
    """The functions that an operation calls by an attribute."""
    value = operation.get_attr(attribute)
    for called in value if isinstance(value, list) else [value]:
        yield function_of(operation.graph, called.name)
