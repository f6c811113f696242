"""The networks as a loss sees them: owned ones train, all others run without touching their state."""

import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.eager.record import could_possibly_record


@dataclasses.dataclass(frozen=True)
class _Call:
    """One run of a network: on what, what came out, where its statistics would have moved, and in which graph."""

    inputs: Any
    output: Any
    moved: Sequence[tuple[keras.Variable, Any]]
    graph: tf.Graph = dataclasses.field(default_factory=tf.compat.v1.get_default_graph)

    def is_here(self) -> bool:
        """Whether it was made in the graph that is being traced now."""
        return self.graph is tf.compat.v1.get_default_graph()

    def is_around(self) -> bool:
        """Whether it was made in this graph or one around it: what a branch, a loop or a function made stays there."""
        graph = tf.compat.v1.get_default_graph()
        while graph is not None and graph is not self.graph:
            graph = getattr(graph, "outer_graph", None)
        return graph is self.graph

    def is_on(self, inputs: Any) -> bool:
        same_structure = tf.nest.map_structure(lambda _: 0, self.inputs) == tf.nest.map_structure(lambda _: 0, inputs)
        return same_structure and all(
            mine is other or (not tf.is_tensor(mine) and not tf.is_tensor(other) and mine == other)
            for mine, other in zip(tf.nest.flatten(self.inputs), tf.nest.flatten(inputs), strict=True)
        )


class Forwards:
    """What networks made of their inputs in this step, so that two updates need not compute it twice.

    A call that moves no state is kept until an update changes the network. The same call again, on the very same
    tensors, gives the same output. The call of an update that owns the network also moves its statistics to where they
    would have come.
    """

    def __init__(self) -> None:
        self._tapes: Sequence[tf.GradientTape] = ()
        self._calls: dict[str, list[_Call]] = {}

    @contextlib.contextmanager
    def recorded(self, tapes: Sequence[tf.GradientTape]) -> Iterator[None]:
        """Let these tapes record what follows: that of the update whose turn it is, and those of all after it."""
        with contextlib.ExitStack() as stack:
            for tape in tapes:
                stack.enter_context(tape)
            self._tapes = tapes
            try:
                yield
            finally:
                self._tapes = ()

    def find(self, name: str, inputs: Any, *, moves: bool) -> _Call | None:
        """The call of a network on these inputs, if it can stand for another one.

        Args:
            name: of the network.
            inputs: of the call.
            moves: whether the call moves the network's statistics. A loop moves them each time, a branch only when it
                is taken, and so no call from outside can stand for one in there.
        """
        reaches = _Call.is_here if moves else _Call.is_around
        calls = self._calls.get(name, ())
        call = next((call for call in calls if reaches(call) and call.is_on(inputs)), None)
        return call if call is not None and self._is_recorded() and not self._is_recorded_elsewhere() else None

    def keep(self, name: str, call: _Call) -> None:
        """Remember a call that has moved no state."""
        if self._is_recorded():
            self._calls.setdefault(name, []).append(call)

    def forget(self, name: str) -> None:
        """The network changes: what it made so far it would not make again."""
        self._calls.pop(name, None)

    def _is_recorded(self) -> bool:
        """Whether the tapes see what happens now: not so in tf.recompute_grad, nor while a gradient is computed."""
        return bool(self._tapes) and could_possibly_record()

    def _is_recorded_elsewhere(self) -> bool:
        """Whether a tape of the loss's own, as for a gradient penalty, is open: it must see the call itself."""
        with contextlib.ExitStack() as stack:
            for tape in self._tapes:
                stack.enter_context(tape.stop_recording())
            return could_possibly_record()


class Nets:
    """The recipe's networks, each a function by the network's name: `nets.generator(latents)`.

    A call takes what the Keras model takes: a tensor, a list or a dict of tensors, and keywords; not `training`, which
    is set here. It returns what the model returns. In a loss the networks run in training mode, in sample() and
    evaluate() in inference mode. A network that the running update does not own is computed as usual, and gradients
    flow through it to its inputs, but its own variables stay as they are: no gradient, no new BatchNorm statistics.

    Args:
        networks: the recipe's networks by name.
        owned: the names whose statistics (BatchNorm's and the like) a call may move.
        training: whether networks run in training mode.
        values: for a name, (variable, value) pairs that stand in for the network's own variables.
        forwards: calls of this step that may be used again; None: none are.
    """

    def __init__(
        self,
        networks: Mapping[str, keras.Model],
        *,
        owned: Collection[str] = (),
        training: bool,
        values: Mapping[str, Sequence[tuple[keras.Variable, Any]]] | None = None,
        forwards: Forwards | None = None,
    ) -> None:
        self._networks = networks
        self._owned = owned
        self._training = training
        self._values = values or {}
        self._forwards = forwards

    def __getattr__(self, name: str) -> Any:
        if name not in self._networks:
            raise AttributeError(f"there is no network {name}; networks() returns {', '.join(self._networks)}")

        def call(*inputs: Any, **keywords: Any) -> Any:
            if "training" in keywords:
                raise TypeError(
                    f"training={keywords['training']} cannot be given to {name}: a loss runs networks in training "
                    "mode, sample() and evaluate() in inference mode; leave it out"
                )
            return self._call(name, (inputs, keywords))

        return call

    def _call(self, name: str, inputs: Any) -> Any:
        forwards = self._forwards or Forwards()
        known = forwards.find(name, inputs, moves=name in self._owned)
        if name in self._owned:
            # Its statistics move: from where they were, other calls would not start again.
            forwards.forget(name)
            if known is None:
                return self._run(name, inputs)
            for variable, value in known.moved:
                variable.assign(value)
            return known.output
        if known is not None:
            return known.output
        # A stateless scope takes a network's assignments to its own variables and drops them.
        with keras.StatelessScope(self._values.get(name)) as scope:
            output = self._run(name, inputs)
        values = [(variable, scope.get_current_value(variable)) for variable in self._networks[name].variables]
        forwards.keep(name, _Call(inputs, output, [(v, value) for v, value in values if value is not None]))
        return output

    def _run(self, name: str, inputs: Any) -> Any:
        positional, keywords = inputs
        return self._networks[name](*positional, training=self._training, **keywords)
