"""What a traced graph holds that a resumed run would not repeat: stateful random draws, state that is not saved."""

import dataclasses
import functools
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import keras
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from hvdgan.cli.errors import UserError

_HERE = Path(__file__).parents[2]
# With the separator: hvdgan_mine beside hvdgan is the user's.
_LIBRARIES = tuple(f"{folder}{os.sep}" for folder in (Path(tf.__file__).parent, Path(keras.__file__).parent, _HERE))
_RECIPES = f"{_HERE / 'recipes'}{os.sep}"
# Operations of tf.random.Generator; the others have a seed among their attributes.
_OF_GENERATOR = re.compile(r"Rng|Stateful(?!PartitionedCall)")
_WRITES = re.compile(r"Assign|Resource(Sparse)?Apply|ResourceScatter|ResourceStridedSliceAssign")
_OF_SEEDS = "seed_generator_state"  # in the name of the variable of a keras.random.SeedGenerator
_INSTEAD = "draw with batch.random.normal(key, shape) or .uniform, in draw() with random.normal"

_KEEP = "keep state in a layer of one of the networks (add_weight(..., trainable=False))"

Handles = Mapping[int, tf.Tensor]
"""the tensors of a graph that are variables from outside of the trace, by id"""


def refuse_unrepeatable(
    function: "tf.types.experimental.ConcreteFunction",
    variables: Collection[keras.Variable],
    where: str,
    scopes: Mapping[str, str] | None = None,
) -> None:
    """Refuse what would be other numbers on each rank and after a resume.

    What runs outside of TensorFlow, such as NumPy's generators, leaves no trace in a graph.

    Args:
        function: traced; what it calls is looked at too.
        variables: that a checkpoint holds.
        where: the place of all of it, for the message.
        scopes: a better place for what stands in a name scope.

    Raises:
        UserError: naming the operation and the line of code.
    """
    saved = {id(variable.value.handle) for variable in variables}
    outside = {id(inner): outer for outer, inner in function.graph.captures if outer.dtype == tf.resource}
    for chain, handles in _operations(function.graph, outside):
        operation, place = chain[-1], functools.partial(_place, chain, scopes or {}, where)
        if _draws(operation):
            raise UserError(
                f"{place()}: {operation.type} draws numbers that depend on the rank, and that a resumed run would not "
                f"draw again; {_INSTEAD}"
            )
        for tensor in operation.inputs if _WRITES.search(operation.type) else ():
            handle = handles.get(id(tensor))
            if handle is not None and id(handle) not in saved:
                name = _name(function, handle)
                advice = _INSTEAD if _OF_SEEDS in name else _KEEP
                raise UserError(f"{place()}: it changes {name}, which no checkpoint holds; {advice}")


def _operations(
    graph: tf.Graph, handles: Handles, chain: tuple[tf.Operation, ...] = ()
) -> Iterator[tuple[tuple[tf.Operation, ...], Handles]]:
    """Each operation of a graph, after those that call the function it is in, and the variables of its graph."""
    for operation in graph.get_operations():
        yield (*chain, operation), handles
        for attribute in _kind(operation.type).calls:
            value = operation.get_attr(attribute)
            for called in value if isinstance(value, list) else [value]:
                inner = graph._get_function(called.name).graph
                # From the end, where what it captures stands: the first input of a branch is what decides.
                pairs = zip(reversed(operation.inputs), reversed(inner.inputs), strict=False)
                known = {id(own): handles[id(outer)] for outer, own in pairs if id(outer) in handles}
                yield from _operations(inner, known, (*chain, operation))


@dataclasses.dataclass(frozen=True)
class _Kind:
    """What TensorFlow's registry says of a type of operation: which attributes name functions, and whether it draws."""

    calls: tuple[str, ...]
    draws: bool
    has_dropout: bool


@functools.cache
def _kind(name: str) -> _Kind:
    definition = op_def_registry.get(name)
    if definition is None:  # a function under its own name
        return _Kind((), False, False)
    types = {attribute.name: attribute.type for attribute in definition.attr}
    draws = definition.is_stateful and ("seed" in types or bool(_OF_GENERATOR.match(name)))
    calls = tuple(attribute for attribute, kind in types.items() if kind in ("func", "list(func)"))
    return _Kind(calls, draws, "dropout" in types)


def _draws(operation: tf.Operation) -> bool:
    """Whether an operation's results are others each time."""
    kind = _kind(operation.type)
    # The kernel of a recurrent layer draws nothing without dropout.
    return kind.draws and not (kind.has_dropout and not operation.get_attr("dropout"))


def _place(chain: tuple[tf.Operation, ...], scopes: Mapping[str, str], where: str) -> str:
    """What to call the place of an operation; a function of the loss's own begins its names anew."""
    for operation in chain:
        for scope, place in scopes.items():
            # TensorFlow numbers a scope that is entered again.
            if re.match(rf"{re.escape(scope)}(_\d+)?/", operation.name):
                return f"{place}{_line(chain[-1])}"
    return f"{where}{_line(chain[-1])}"


def _line(operation: tf.Operation) -> str:
    """The last line of the user's own code on the way to an operation."""
    for filename, line, *_ in reversed(list(operation.traceback or ())):
        if not filename.startswith(_LIBRARIES) or filename.startswith(_RECIPES):
            return f" ({Path(filename).name}, line {line})"
    return ""


def _name(function: "tf.types.experimental.ConcreteFunction", handle: tf.Tensor) -> str:
    names = [variable.name.removesuffix(":0") for variable in function.graph.variables if variable.handle is handle]
    return f"the variable {names[0]}" if names else "a variable"
