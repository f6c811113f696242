"""The networks as a loss sees them: what the update owns trains, the rest keeps its state, and calls are shared."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

# Not public; tests/recipe/test_nets.py fails if it no longer says whether a tape is recording.
from tensorflow.python.eager.record import could_possibly_record

from hvdgan.recipe import fixed_batch
from hvdgan.recipe.batch import StateValues
from hvdgan.recipe.sharing import Sharing

_AVERAGED = "the run averages those of ema in the class, and none with --ema-decay 0:"


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a network in the graph that is being traced."""

    inputs: Any
    output: Any
    moved: Sequence[tuple[keras.Variable, Any]]
    """each variable that the call would have changed in a network that is owned, with its new value"""
    losses: Sequence[Any] = ()
    """losses that layers have added in the call"""
    serves_owner: bool = True
    """False if the network's statistics have changed in the call or since: an update that owns it must run it again"""
    graph: tf.Graph = dataclasses.field(default_factory=tf.compat.v1.get_default_graph)

    def is_visible(self, *, around: bool) -> bool:
        """Whether the call was made in the graph that is being traced now, or in one around it."""
        graph = tf.compat.v1.get_default_graph()
        while around and graph is not None and graph is not self.graph:
            graph = getattr(graph, "outer_graph", None)
        return graph is self.graph

    def is_on(self, inputs: Any) -> bool:
        """Whether the call was made on these very tensors."""

        def known(each: Any) -> Any:
            return id(each) if tf.is_tensor(each) else each

        return tf.nest.map_structure(known, self.inputs) == tf.nest.map_structure(known, inputs)


class SharedForward:
    """Remembers the calls of networks in one step, so that a later update of the step need not compute them again.

    Most GANs alternate an update of the discriminator and one of the generator. Both call the generator on the same
    latents, and the first does not change it. So its output is computed once, with the tapes of both updates open, and
    the second update differentiates that output. A network runs again if

    - an update that owns the network has run since: its weights and statistics have changed. In a simultaneous step
      the weights have not, so the updates that do not own the network use all calls again, also the owner's;
    - an input is another tensor: while a step is traced, nobody knows whether two tensors have equal values;
    - the call was made inside a branch, a loop or a function, whose tensors do not exist outside;
    - the new call moves statistics (its update owns the network) inside a branch or a loop: a loop moves them in every
      round, a branch only if it is taken;
    - the loss has opened a tape of its own, as a gradient penalty does: that tape must see the call itself;
    - the step's tapes do not record, as inside tf.recompute_grad, whose purpose is to compute twice.
    """

    def __init__(self, sharing: Sharing | None = None, *, together: bool = False) -> None:
        """together: whether the weights stay as they are until the end of the step."""
        self._sharing, self._together = sharing or Sharing({}), together
        self._tapes: Sequence[tf.GradientTape] = ()
        self._calls: dict[str, list[Call]] = {}

    @contextlib.contextmanager
    def recorded(self, tapes: Sequence[tf.GradientTape]) -> Iterator[None]:
        """Open the tapes of the update that is due and of all updates after it, which may use its calls again."""
        with contextlib.ExitStack() as stack:
            for tape in tapes:
                stack.enter_context(tape)
            self._tapes = tapes
            try:
                yield
            finally:
                self._tapes = ()

    def find(self, name: str, inputs: Any, *, moves: bool) -> Call | None:
        """An earlier call whose result may be used for one that moves the network's statistics or not, or None."""
        for call in self._calls.get(name, ()):
            if (call.serves_owner or not moves) and call.is_visible(around=not moves) and call.is_on(inputs):
                return call if self._is_recorded() and not self._is_recorded_elsewhere() else None
        return None

    def keep(self, name: str, call: Call) -> None:
        """Remember a call."""
        if self._is_recorded():
            self._calls.setdefault(name, []).append(call)

    def forget(self, name: str) -> None:
        """Drop the calls of networks that are about to change; in a simultaneous step only their statistics do."""
        for each in self._sharing.relatives([name]):
            calls = self._calls.pop(each, [])
            if self._together:
                self._calls[each] = [dataclasses.replace(call, serves_owner=False) for call in calls]

    def _is_recorded(self) -> bool:
        """Whether the step's tapes record now; they do not in tf.recompute_grad, nor while a gradient is computed."""
        return bool(self._tapes) and could_possibly_record()

    def _is_recorded_elsewhere(self) -> bool:
        """Whether a tape that the loss itself has opened records now."""
        with contextlib.ExitStack() as stack:
            for tape in self._tapes:
                stack.enter_context(tape.stop_recording())
            return could_possibly_record()


class Nets:
    """The recipe's networks, each a function by the network's name: `nets.generator(latents)`.

    A call takes the arguments of the Keras model: a tensor, a list or a dict of tensors, and keywords; not `training`,
    which is set here. It returns the model's result. In a loss the networks run in training mode, in sample() and
    evaluate() in inference mode. A network that the running update does not own is computed as usual, and gradients
    flow through it to its inputs, but its own variables stay as they are: no gradient, no new BatchNorm statistics.

    A frozen network runs in inference mode, in a loss too, and so does `nets.averaged.generator`, with its averages.
    """

    def __init__(
        self,
        networks: Mapping[str, keras.Model],
        *,
        frozen: Mapping[str, keras.Model] | None = None,
        owned: Mapping[str, Sequence[keras.Variable]] | None = None,
        training: bool,
        values: Mapping[str, Sequence[tuple[keras.Variable, Any]]] | None = None,
        shared: SharedForward | None = None,
        losses: list[tuple[str, Any | None]] | None = None,
        state: Mapping[str, keras.Variable] | None = None,
        averages: Mapping[str, Sequence[tuple[keras.Variable, Any]]] | None = None,
        known: str = "networks() returns",
    ) -> None:
        """The statistics of `owned` networks may move, but for the variables that it lists for each.

        `values` are used instead of variables, by network name.

        `losses` receives (name, loss) of each loss that layers of an owned network add in a call, by an
        activity_regularizer or by add_loss(); None if its gradient is not recorded. `state` is what the recipe's
        sample() and evaluate() see as batch.state. `averages` are the values of nets.averaged.
        """
        self._frozen = frozen or {}
        self._networks = {**networks, **self._frozen}
        self._owned = owned or {}
        self._training = training
        self._values = values or {}
        self._shared = shared
        self._losses = [] if losses is None else losses
        self._state = state or {}
        self._averages, self._known = averages or {}, known

    def __getattr__(self, name: str) -> Any:
        if name == "averaged" and name not in self._networks:
            known = {each: self._networks[each] for each in self._averages}
            return Nets(known, training=False, values=self._averages, known=_AVERAGED)
        if name not in self._networks:
            raise AttributeError(f"there is no network {name}; {self._known} {', '.join(self._networks) or 'none'}")

        def call(*inputs: Any, **keywords: Any) -> Any:
            if "training" in keywords:
                raise TypeError(
                    f"training={keywords['training']} cannot be given to {name}: a loss runs networks in training "
                    "mode, sample() and evaluate() in inference mode; leave it out"
                )
            return self._call(name, (inputs, keywords))

        return call

    def _call(self, name: str, inputs: Any) -> Any:
        shared = self._shared or SharedForward()
        known = shared.find(name, inputs, moves=name in self._owned)
        if name in self._owned:
            # This call moves the network's statistics, so results computed before it are stale.
            shared.forget(name)
            kept = [(variable, variable.value.read_value()) for variable in self._owned[name]]
            if known is None:
                output = self._run(name, inputs)
                for variable, value in kept:
                    variable.assign(value)
                shared.keep(name, Call(inputs, output, (), serves_owner=False))
                # In tf.recompute_grad no tape records what a layer adds.
                found, is_recorded = _losses_of_call(self._networks[name]), could_possibly_record()
                self._losses += [(name, loss if is_recorded else None) for loss in found]
                return output
            for variable, value in (*known.moved, *kept):
                variable.assign(value)
            self._losses += [(name, loss) for loss in known.losses]
            return known.output
        if known is not None:
            return known.output
        # A stateless scope takes a network's assignments to its own variables and drops them.
        with keras.StatelessScope(self._values.get(name), collect_losses=True) as scope:
            output = self._run(name, inputs)
        values = [(variable, scope.get_current_value(variable)) for variable in self._networks[name].variables]
        moved = [(variable, value) for variable, value in values if value is not None]
        # A weight that a call assigns, as Keras' SpectralNormalization does, has another gradient in an owner's call.
        given = {id(variable) for variable, _ in self._values.get(name, ())}
        if not any(variable.trainable and id(variable) not in given for variable, _ in moved):
            shared.keep(name, Call(inputs, output, moved, list(scope.losses)))
        return output

    def _run(self, name: str, inputs: Any) -> Any:
        training = self._training and name not in self._frozen
        return fixed_batch.call(name, self._networks[name], inputs, training=training)


def state_of_nets(nets: Nets) -> StateValues:
    """The values of the state with which the networks are used."""
    return StateValues({name: variable.value.read_value() for name, variable in nets._state.items()})


def _losses_of_call(network: keras.Model) -> list[Any]:
    """The losses that layers have added in a network's last call, without those of weights, which Keras lists last."""
    losses = network.losses
    return losses[: len(losses) - sum(weight.regularizer is not None for weight in network.trainable_weights)]
