"""Refuses graphs that a resumed run would not repeat: with stateful random draws, or state that is not saved."""

import functools
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import keras
import tensorflow as tf

from hvdgan.cli.errors import UserError
from hvdgan.cli.launcher import warn_once
from hvdgan.networks.layer_state import seeds_of
from hvdgan.recipe.draws import OF_SAMPLES
from hvdgan.training.state import TrainState

Handles = Mapping[int, tf.Tensor]
"""for the id of a tensor in some graph, the tensor of the outermost graph that it stands for"""

_HERE = Path(__file__).parents[1]
# With the separator, so that a folder hvdgan_mine next to hvdgan counts as the user's.
_LIBRARIES = tuple(f"{folder}{os.sep}" for folder in (Path(tf.__file__).parent, Path(keras.__file__).parent, _HERE))
_RECIPES = f"{_HERE / 'recipes'}{os.sep}"
# Operations of tf.random.Generator; all others that draw have an attribute "seed".
_OF_GENERATOR = re.compile(r"Rng|Stateful(?!PartitionedCall)")
_WRITES = re.compile(r"Assign|Resource(Sparse)?Apply|ResourceScatter|ResourceStridedSliceAssign")
_USES = re.compile(rf"ReadVariableOp|{_WRITES.pattern}")
_OF_SEEDS = "seed_generator_state"  # in the name of the variable of a keras.random.SeedGenerator
_INSTEAD = "draw with batch.random.normal(key, shape) or .uniform, in draw() with random.normal"
# Operations whose results are the same on all ranks, whatever they are given.
_SAME_ON_ALL = re.compile(r"Horovod|(Shape|ShapeN|Size|Rank|ZerosLike|OnesLike)$")
_DRAWS_OF_SAMPLES = re.compile(rf"(.*/)?{OF_SAMPLES}(_\d+)?$")
_KEEP = "keep state in a layer of one of the networks (add_weight(..., trainable=False))"


def operations(
    graph: tf.Graph, handles: Handles | None = None, chain: tuple[tf.Operation, ...] = ()
) -> Iterator[tuple[tuple[tf.Operation, ...], Handles]]:
    """Yield each operation, at the end of the chain of operations that call its function, with its graph's handles."""
    handles = handles or {}
    for operation in graph.get_operations():
        yield (*chain, operation), handles
        for inner in called_by(operation, graph):
            yield from operations(inner, _handles_in(inner, operation, handles), (*chain, operation))


def _handles_in(inner: tf.Graph, caller: tf.Operation, handles: Handles) -> Handles:
    # Pair them from the end, where captured tensors stand: the first input of a branch is its condition.
    pairs = zip(reversed(caller.inputs), reversed(inner.inputs), strict=False)
    return {id(own): handles[id(outer)] for outer, own in pairs if id(outer) in handles}


class SampleFlow:
    """Follows the rank's own samples forward through a traced step, and refuses the state of layers that they reach.

    Its branches, loops and functions are followed, too. scopes: what messages call the updates, by their scopes.
    """

    def __init__(self, state: TrainState, scopes: Mapping[str, str]) -> None:
        self._kept = {id(variable.value.handle): name for name, variable in state.other_state().items()}
        self._own = {id(variable.value.handle) for variable in state.of_rank()}  # each rank has its own
        self._scopes = scopes

    def follow(
        self,
        graph: tf.Graph,
        followed: set[str],
        handles: Handles,
        chain: tuple[tf.Operation, ...] = (),
        *,
        always: bool = False,
    ) -> set[str]:
        """Walk a graph; returns the names of its tensors that depend on the samples: all of them if `always`."""
        followed = set(followed)
        for operation in graph.get_operations():
            reached = always or any(tensor.name in followed for tensor in operation.inputs)
            if inside := list(called_by(operation, graph)):
                followed |= self._called(operation, inside, followed, handles, (*chain, operation), always=always)
                continue
            inputs = [handles.get(id(tensor)) for tensor in operation.inputs]
            if reached and _WRITES.search(operation.type):
                self._refuse((*chain, operation), inputs)
            begins = _DRAWS_OF_SAMPLES.match(operation.name) or any(id(each) in self._own for each in inputs)
            if begins or (reached and not _SAME_ON_ALL.match(operation.type)):
                followed |= {tensor.name for tensor in operation.outputs}
        return followed

    def _called(
        self,
        operation: tf.Operation,
        inside: list[tf.Graph],
        followed: set[str],
        handles: Handles,
        chain: tuple[tf.Operation, ...],
        *,
        always: bool,
    ) -> set[str]:
        """The outputs of an operation that depend on what is followed into the functions that it calls."""
        is_loop = "While" in operation.type
        always |= not is_loop and len(inside) > 1 and operation.inputs[0].name in followed
        carried: set[int] = set()
        while True:
            before = set(carried)
            for inner in inside:
                pairs = zip(reversed(operation.inputs), reversed(inner.inputs), strict=False)
                entering = {own.name for outer, own in pairs if outer.name in followed}
                if is_loop:
                    entering |= {inner.inputs[index].name for index in carried}
                found = self.follow(inner, entering, _handles_in(inner, operation, handles), chain, always=always)
                leaving = {index for index, tensor in enumerate(inner.outputs) if always or tensor.name in found}
                if is_loop and len(inner.outputs) != len(operation.outputs):  # the condition
                    always |= bool(leaving)
                else:
                    carried |= leaving
            if not is_loop or carried == before:
                return {tensor.name for index, tensor in enumerate(operation.outputs) if index in carried}

    def _refuse(self, chain: tuple[tf.Operation, ...], inputs: list[tf.Tensor | None]) -> None:
        where = _where(chain, self._scopes, "")
        for state in (self._kept[id(handle)] for handle in inputs if id(handle) in self._kept):
            if where.startswith(tuple(self._scopes.values())):
                raise UserError(
                    f"{where}: {state} depends on the rank's own samples, and a checkpoint holds one copy for all "
                    'ranks; let it depend on the step alone, or make it with add_weight(..., aggregation="mean"), and '
                    "checkpoints hold its mean over the ranks"
                )


def called_by(operation: tf.Operation, graph: tf.Graph) -> Iterator[tf.Graph]:
    """Yield the graphs of the functions that an operation of a graph calls, such as its branches."""
    for attribute in kind_of(operation).calls:
        value = operation.get_attr(attribute)
        for called in value if isinstance(value, list) else [value]:
            inner = function_of(graph, called.name)
            if inner is None:
                warn_once(
                    f"TensorFlow {tf.__version__} does not show the functions inside a graph; random draws and "
                    "collectives in them are not looked for"
                )
                continue
            yield inner


def function_of(graph: tf.Graph | None, name: str) -> tf.Graph | None:
    """The graph of a function that a graph calls; None if this TensorFlow does not show it.

    A function that calls another one, as the gradient of a branch does, may leave it in the graph around itself.
    """
    while graph is not None:
        # Not public; tests/training/test_repeatable.py looks for draws inside functions, branches and loops.
        found_in = getattr(graph, "_get_function", None)
        # A function of TensorFlow's older kind, as tf.nn.ctc_loss makes them, has no graph.
        found = getattr(found_in(name), "graph", None) if found_in else None
        if found is not None:
            return found
        graph = getattr(graph, "outer_graph", None)
    return None


class Kind(NamedTuple):
    """TensorFlow's definition of a type of operation; a stateful one has effects, or results of other causes."""

    attributes: frozenset[str]
    calls: tuple[str, ...]
    """names of the attributes that hold functions"""
    is_stateful: bool


_kinds: dict[str, Kind] = {}


def kind_of(operation: tf.Operation) -> Kind:
    """The definition of an operation's type."""
    if operation.type not in _kinds:
        definition = operation.op_def
        calls = tuple(each.name for each in definition.attr if each.type in ("func", "list(func)"))
        names = frozenset(each.name for each in definition.attr)
        _kinds[operation.type] = Kind(names, calls, definition.is_stateful)
    return _kinds[operation.type]


def refuse_unrepeatable(
    function: "tf.types.experimental.ConcreteFunction",
    where: str,
    state: TrainState,
    scopes: Mapping[str, str] | None = None,
) -> None:
    """Refuse a traced function that computes other numbers on each rank, or after a resume.

    What it reads outside of the networks is noted in state.outside.

    Draws outside of TensorFlow, such as those of NumPy's generators, leave no trace in a graph and are not found.
    """
    kept = state.kept.own()
    saved = {id(variable.value.handle) for variable in (*state.tensors().values(), *kept.values())}
    _note_outside(function, state, saved)
    seeds = {
        id(variable.value.handle): f"network {name} draws its own random numbers (layer {layer.name})"
        for name, network in state.networks.items()
        for layer, variable in seeds_of(network)
    }
    outside = {id(inner): outer for outer, inner in function.graph.captures if outer.dtype == tf.resource}
    for chain, handles in operations(function.graph, outside):
        operation, at = chain[-1], functools.partial(_where, chain, scopes or {}, where)
        if _draws(operation):
            raise UserError(
                f"{at()}: {operation.type} draws numbers that depend on the rank, and that a resumed run would not "
                f"draw again; {_INSTEAD}"
            )
        for handle in (handles.get(id(tensor)) for tensor in operation.inputs):
            if id(handle) in seeds and _USES.search(operation.type):
                raise UserError(
                    f"{at()}: {seeds[id(handle)]}, which would depend on the rank; draw them with batch.random and "
                    "give them to the network as an input"
                )
            if handle is not None and _WRITES.search(operation.type) and id(handle) not in saved:
                name = _name(function, handle)
                advice = _INSTEAD if _OF_SEEDS in name else _KEEP
                raise UserError(f"{at()}: it changes {name}, which no checkpoint holds; {advice}")


def refuse_state_of_samples(
    function: "tf.types.experimental.ConcreteFunction", state: TrainState, scopes: Mapping[str, str]
) -> None:
    """Refuse a traced step whose losses give state of a layer values that depend on the rank's own samples.

    Code inside tf.py_function is not seen; state that differs between ranks is refused in the run, too.
    """
    if state.other_state():
        outside = {id(inner): outer for outer, inner in function.graph.captures if outer.dtype == tf.resource}
        samples = function.inputs[2 : len(function.inputs) - len(function.captured_inputs)]  # after the step's numbers
        SampleFlow(state, scopes).follow(function.graph, {tensor.name for tensor in samples}, outside)


def _note_outside(
    function: "tf.types.experimental.ConcreteFunction", state: TrainState, saved: Collection[int]
) -> None:
    """Add the variables and constants that a function reads, and that no network holds, to those of the run."""
    frozen = {id(variable.value.handle) for network in state.frozen.values() for variable in network.variables}
    variables = {id(variable.handle): variable for variable in function.graph.variables}
    for outer, inner in function.graph.captures:
        value = variables.get(id(outer), outer)
        known = id(outer) in saved or id(outer) in frozen or any(each is value for each in state.outside.values())
        if known or (value is outer and outer.dtype in (tf.resource, tf.variant, tf.string)):
            continue
        what = f"constant {inner.op.name}" if value is outer else f"variable {value.name.removesuffix(':0')}"
        name = f"the {what} outside of the networks"
        number = sum(each.partition(" (number ")[0] == name for each in state.outside)
        state.outside[f"{name} (number {number + 1})" if number else name] = value


def _draws(operation: tf.Operation) -> bool:
    """Whether an operation gives other results each time."""
    kind = kind_of(operation)
    if not kind.is_stateful or not ("seed" in kind.attributes or _OF_GENERATOR.match(operation.type)):
        return False
    # The kernel of a recurrent layer draws nothing without dropout.
    return "dropout" not in kind.attributes or bool(operation.get_attr("dropout"))


def _where(chain: tuple[tf.Operation, ...], scopes: Mapping[str, str], where: str) -> str:
    """Where the last operation of a chain is; names inside a function do not begin with the caller's scope."""
    for operation in chain:
        for scope, update in scopes.items():
            # TensorFlow appends a number to a scope that is entered again.
            if re.match(rf"{re.escape(scope)}(_\d+)?/", operation.name):
                return f"{update}{_line(chain[-1])}"
    return f"{where}{_line(chain[-1])}"


def _line(operation: tf.Operation) -> str:
    """The last line of the user's own code on the way to an operation."""
    for filename, line, *_ in reversed(list(operation.traceback or ())):
        if not filename.startswith(_LIBRARIES) or filename.startswith(_RECIPES):
            return f" ({Path(filename).name}, line {line})"
    return ""


def _name(function: "tf.types.experimental.ConcreteFunction", handle: tf.Tensor) -> str:
    """The variable of a resource handle, in words."""
    names = [variable.name.removesuffix(":0") for variable in function.graph.variables if variable.handle is handle]
    return f"the variable {names[0]}" if names else "a variable"
