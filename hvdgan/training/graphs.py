"""Walks the operations of a traced graph, with those of the functions that it calls."""

import dataclasses
from collections.abc import Iterator, Mapping

import tensorflow as tf

from hvdgan.cli.launcher import warn_once

Handles = Mapping[int, tf.Tensor]
"""for the id of a tensor in some graph, the tensor of the outermost graph that it stands for"""


def operations(
    graph: tf.Graph, handles: Handles | None = None, chain: tuple[tf.Operation, ...] = ()
) -> Iterator[tuple[tuple[tf.Operation, ...], Handles]]:
    """Yield each operation at the end of a chain of the operations that call its function, outermost first.

    Args:
        graph: graph to walk.
        handles: tensors of the graph to follow into the functions; each yield has those of its own graph.
        chain: operations that call this graph.
    """
    handles = handles or {}
    for operation in graph.get_operations():
        yield (*chain, operation), handles
        for inner in called_by(operation, graph):
            # Pair them from the end, where captured tensors stand: the first input of a branch is its condition.
            pairs = zip(reversed(operation.inputs), reversed(inner.inputs), strict=False)
            known = {id(own): handles[id(outer)] for outer, own in pairs if id(outer) in handles}
            yield from operations(inner, known, (*chain, operation))


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
        found = found_in(name) if found_in else None
        if found is not None:
            return found.graph
        graph = getattr(graph, "outer_graph", None)
    return None


@dataclasses.dataclass(frozen=True)
class Kind:
    """TensorFlow's definition of a type of operation.

    attributes: names of its attributes.
    calls: names of the attributes that hold functions.
    is_stateful: True if it has effects or results that its inputs do not determine.
    """

    attributes: frozenset[str] = frozenset()
    calls: tuple[str, ...] = ()
    is_stateful: bool = False


def kind_of(operation: tf.Operation) -> Kind:
    """The definition of an operation's type."""
    if operation.type not in _kinds:
        _kinds[operation.type] = _kind(operation)
    return _kinds[operation.type]


_kinds: dict[str, Kind] = {}


def _kind(operation: tf.Operation) -> Kind:
    definition = operation.op_def
    calls = tuple(each.name for each in definition.attr if each.type in ("func", "list(func)"))
    return Kind(frozenset(each.name for each in definition.attr), calls, definition.is_stateful)
