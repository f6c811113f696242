"""Refuses graphs that a resumed run would not repeat: with stateful random draws, or state that is not saved."""

import functools
import gc
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import keras
import tensorflow as tf

from hvdgan.errors import UserError
from hvdgan.launching.launched import warn_once
from hvdgan.training.train_state import TrainState

Handles = Mapping[int, tf.Tensor]
"""the outer tensor that a function has captured, by the id of the inner tensor that stands for it"""

_HERE = Path(__file__).parents[1]
# With the separator, so that a folder hvdgan_mine next to hvdgan counts as the user's.
_LIBRARIES = tuple(f"{folder}{os.sep}" for folder in (Path(tf.__file__).parent, Path(keras.__file__).parent, _HERE))
_RECIPES = f"{_HERE / 'recipes'}{os.sep}"
# Operations of tf.random.Generator; all others that draw have an attribute "seed".
_OF_GENERATOR = re.compile(r"Rng|Stateful(?!PartitionedCall)")
_WRITES = re.compile(r"Assign|Resource(Sparse)?Apply|ResourceScatter|ResourceStridedSliceAssign")
_OF_SEEDS = "seed_generator_state"  # in the name of the variable of a keras.random.SeedGenerator
_INSTEAD = "draw with batch.random.normal(key, shape) or .uniform, in draw() with random.normal"
_KEEP = "keep state in a layer of one of the networks (add_weight(..., trainable=False))"
_FOLLOW = 'if it follows another network, call nets.averaged.NAME instead, with ema = ("NAME",) in the class'
_LIST = "the optimizer must list all that it keeps in its property `variables`"
_TRAIN = "which is trainable and in no network; return it in networks(), or make it trainable=False (docs/recipes.md)"


def operations(
    graph: tf.Graph, handles: Handles | None = None, chain: tuple[tf.Operation, ...] = ()
) -> Iterator[tuple[tuple[tf.Operation, ...], Handles]]:
    """Yield each operation, at the end of the chain of operations that call its function, with its graph's handles."""
    handles = handles or {}
    for operation in graph.get_operations():
        yield (*chain, operation), handles
        for inner in called_by(operation, graph):
            # Pair them from the end, where captured tensors stand: the first input of a branch is its condition.
            pairs = zip(reversed(operation.inputs), reversed(inner.inputs), strict=False)
            seen = {id(own): handles[id(outer)] for outer, own in pairs if id(outer) in handles}
            yield from operations(inner, seen, (*chain, operation))


def captured_by(function: "tf.types.experimental.ConcreteFunction") -> Handles:
    """The handles of the variables that a traced function uses."""
    return {id(inner): outer for outer, inner in function.graph.captures if outer.dtype == tf.resource}


def called_by(operation: tf.Operation, graph: tf.Graph) -> Iterator[tf.Graph]:
    """Yield the graphs of the functions that an operation of a graph calls, such as its branches."""
    for attribute in kind_of(operation).calls:
        value = operation.get_attr(attribute)
        for called in value if isinstance(value, list) else [value]:
            inner = function_of(graph, called.name)
            if inner is None:
                warn_once(
                    f"TensorFlow {tf.__version__} does not show some function inside a graph; random draws and "
                    "collectives in it are not looked for"
                )
                continue
            yield inner


def function_of(graph: tf.Graph | None, name: str) -> tf.Graph | None:
    """The graph of a function that a graph calls; None if TensorFlow does not show it.

    A function that calls another one, as the gradient of a branch does, may leave it in the graph around itself.
    """
    while graph is not None:
        # Not public; tests/training/test_repeatable.py looks for draws inside functions, branches and loops.
        found = graph._get_function(name)
        # A function of TensorFlow's older kind, as tf.nn.ctc_loss makes them, has no graph.
        if (inner := getattr(found, "graph", None)) is not None:
            return inner
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

    What it reads outside of the networks is noted in state.outside. In a step, which has `scopes`, a variable that
    nothing would train is refused, and a call of Python, whose random numbers leave no trace in a graph, is warned of.
    """
    kept = (*state.declared_state.own().values(), *state.schedules.variables.values())
    saved = {id(variable.value.handle) for variable in (*state.tensors().values(), *kept)}
    frozen = {id(variable.value.handle) for network in state.frozen.values() for variable in network.variables}
    _note_outside(function, state, saved | frozen)
    outside = captured_by(function)
    untrained = _untrained(function, state) if scopes else set()
    of_python, untrained_reads = [], []
    for chain, handles in operations(function.graph, outside):
        operation, at = chain[-1], functools.partial(_where, chain, scopes or {}, where)
        if _draws(operation):
            raise UserError(
                f"{at()}: {operation.type} draws numbers that depend on the rank, and that a resumed run would not "
                f"draw again; {_INSTEAD}"
            )
        if scopes and operation.type in ("PyFunc", "EagerPyFunc"):
            of_python.append(at())
        for handle in (handles.get(id(tensor)) for tensor in operation.inputs):
            if handle is not None and _WRITES.search(operation.type) and id(handle) not in saved:
                name = _name(function, handle)
                advice = _INSTEAD if _OF_SEEDS in name else _FOLLOW if id(handle) in frozen else _KEEP
                advice = _LIST if any(frame.name == "apply_gradients" for frame in operation.traceback) else advice
                raise UserError(f"{at()}: it changes {name}, which no checkpoint holds; {advice}")
            if id(handle) in untrained and not kind_of(operation).calls:
                untrained_reads.append(f"{at()}: it reads {_name(function, handle)}, {_TRAIN}")
    if untrained_reads:
        raise UserError(untrained_reads[0])
    if of_python:
        warn_once(f"warning: {of_python[0]}: it calls Python, whose state and random numbers no checkpoint holds")


def _untrained(function: "tf.types.experimental.ConcreteFunction", state: TrainState) -> set[int]:
    """The handles of the trainable variables, outside of all networks, that a function reads."""
    outside = {id(value.handle) for value in state.outside.values() if isinstance(value, tf.Variable)}
    floats = (each for each in function.graph.variables if each.trainable and each.dtype.is_floating)
    if found := outside & {id(each.handle) for each in floats}:
        # Keras freezes its own variable, and leaves the one of TensorFlow inside as it is.
        of_keras = (each for each in gc.get_objects() if issubclass(type(each), keras.Variable) and not each.trainable)
        found -= {id(each.value.handle) for each in of_keras}
    return found


def _note_outside(function: "tf.types.experimental.ConcreteFunction", state: TrainState, held: Collection[int]) -> None:
    """Add the variables and constants that a function reads, and that no network holds, to those of the run."""
    variables = {id(variable.handle): variable for variable in function.graph.variables}
    for outer, inner in function.graph.captures:
        value = variables.get(id(outer), outer)
        known = id(outer) in held or any(each is value for each in state.outside.values())
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
