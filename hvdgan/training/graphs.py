"""Walks the operations of a traced graph, with those of the functions that it calls."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping

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


class Flow:
    """Follows some tensors of a graph forward, through branches, loops and functions."""

    def __init__(
        self,
        begins: Callable[[tf.Operation, Handles], bool],
        stops: Callable[[tf.Operation], bool],
        visit: Callable[[tuple[tf.Operation, ...], Handles, bool], None],
    ) -> None:
        self._begins, self._stops, self._visit = begins, stops, visit

    def follow(
        self,
        graph: tf.Graph,
        followed: set[str],
        handles: Handles,
        chain: tuple[tf.Operation, ...] = (),
        *,
        always: bool = False,
    ) -> set[str]:
        """Walk a graph; returns the names of all its tensors that depend on those that are followed."""
        followed = set(followed)
        for operation in graph.get_operations():
            inside = list(called_by(operation, graph))
            reached = always or any(tensor.name in followed for tensor in operation.inputs)
            self._visit((*chain, operation), handles, reached)
            if inside:
                followed |= self._called(operation, inside, followed, handles, (*chain, operation), always=always)
            elif (reached and not self._stops(operation)) or self._begins(operation, handles):
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
                pairs = list(zip(reversed(operation.inputs), reversed(inner.inputs), strict=False))
                known = {id(own): handles[id(outer)] for outer, own in pairs if id(outer) in handles}
                entering = {own.name for outer, own in pairs if outer.name in followed}
                if is_loop:
                    entering |= {inner.inputs[place].name for place in carried}
                found = self.follow(inner, entering, known, chain, always=always)
                leaving = {place for place, tensor in enumerate(inner.outputs) if always or tensor.name in found}
                if is_loop and len(inner.outputs) != len(operation.outputs):  # the condition
                    always |= bool(leaving)
                else:
                    carried |= leaving
            if not is_loop or carried == before:
                return {tensor.name for place, tensor in enumerate(operation.outputs) if place in carried}


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
