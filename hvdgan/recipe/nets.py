"""The networks as a loss sees them: what the update owns trains, the rest keeps its state, and calls are shared."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

# Not public; tests/recipe/test_nets.py fails if it no longer says whether a tape is recording.
from tensorflow.python.eager.record import could_possibly_record

from hvdgan.recipe import fixed_batch, layer_draws
from hvdgan.recipe.batch import Batch, StateValues
from hvdgan.recipe.sharing import Sharing

_VARIABLES = ("variables", "weights", "trainable_variables", "trainable_weights", "non_trainable_variables")
_SHAPES = ("input_shape", "output_shape", "name")
_INSTEAD = {
    "losses": "hvdgan adds the losses of a network's layers to the loss of each update that owns it; leave it out",
    **dict.fromkeys(("predict", "predict_on_batch"), "call nets.NAME(x, training=False)"),
    **dict.fromkeys(
        ("train_on_batch", "fit", "compile"), "return a loss of nets.NAME(x); the Update trains the network"
    ),
    **dict.fromkeys(("layers", "get_layer"), "give the model in networks() a second output for the features"),
}
"""what to write instead of an attribute of a Keras model"""
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
    key: str | None = None
    """that of the numbers which layers have drawn in the call; None: they have drawn none"""
    serves_owner: bool = True
    """False if the network's statistics have changed in the call or since: an update that owns it must run it again"""
    graph: tf.Graph = dataclasses.field(default_factory=tf.compat.v1.get_default_graph)

    def is_visible(self, *, around: bool) -> bool:
        """Whether the call was made in the graph that is being traced now, or in one around it."""
        graph = tf.compat.v1.get_default_graph()
        while around and graph is not None and graph is not self.graph:
            graph = getattr(graph, "outer_graph", None)
        return graph is self.graph

    def is_on(self, inputs: Any, key: str) -> bool:
        """Whether the call was made on these very tensors, and its layers drew what those of a call of this key do."""

        def known(each: Any) -> Any:
            return id(each) if tf.is_tensor(each) else each

        is_same = tf.nest.map_structure(known, self.inputs) == tf.nest.map_structure(known, inputs)
        return is_same and self.key in (None, key)


class SharedForward:
    """Remembers the calls of networks in one step, so that a later update of the step need not compute them again.

    Most GANs alternate an update of the discriminator and one of the generator. Both call the generator on the same
    latents, and the first does not change it. So its output is computed once, with the tapes of both updates open, and
    the second update differentiates that output. A network runs again if

    - an update that owns the network has run since: its weights and statistics have changed. In a simultaneous step
      the weights have not, so the updates that do not own the network use all calls again, also the owner's;
    - an input is another tensor: while a step is traced, nobody knows whether two tensors have equal values;
    - the new call is in another mode (training or inference), or its layers draw other numbers;
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

    def find(self, name: str, inputs: Any, key: str, *, moves: bool) -> Call | None:
        """An earlier call whose result may be used for one that moves the network's statistics or not, or None."""
        for call in self._calls.get(name, ()):
            if (call.serves_owner or not moves) and call.is_visible(around=not moves) and call.is_on(inputs, key):
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


class UsedNetwork:
    """A network as a loss, sample() and evaluate() see it: a function with the variables of the Keras model.

    A call takes the arguments of the Keras model: a tensor, a list or a dict of tensors, and keywords, and returns the
    model's result. `training` may be left out: see Nets.

    Raises:
        AttributeError: the Keras model has more than a loss may use; the message says what to write instead.
    """

    def __init__(self, nets: "Nets", name: str) -> None:
        self._nets, self._name = nets, name

    def __call__(self, *inputs: Any, training: bool | None = None, **keywords: Any) -> Any:
        inputs, keywords = tf.nest.map_structure(_as_tensor, (inputs, keywords))
        mode = self._nets._is_training(self._name, training)
        return self._nets._call(self._name, (inputs, {**keywords, "training": mode}))

    def __getattr__(self, attribute: str) -> Any:
        network, what = self._nets._networks[self._name], f"nets.{self._name}.{attribute}"
        if attribute in _SHAPES:
            return getattr(network, attribute)
        if attribute in _VARIABLES:
            others = {id(variable): value for variable, value in self._nets._values.get(self._name, ())}
            return [others.get(id(variable), variable) for variable in getattr(network, attribute)]
        advice = _INSTEAD.get(attribute, "a loss may call the network, and read its trainable_variables")
        raise AttributeError(f"{what} cannot be used in a loss; {advice.replace('NAME', self._name)}")


class Nets:
    """The recipe's networks by their names: `nets.generator(latents)` calls one.

    In a loss the networks run in training mode, in sample() and evaluate() in inference mode. A network that the
    running update does not own is computed as usual, and gradients flow through it to its inputs, but its own variables
    stay as they are: no gradient, no new BatchNorm statistics.

    With training=False a loss runs a network in inference mode: gradients flow to its inputs, and to its weights if the
    update owns it, and nothing else in it changes. A frozen network runs in inference mode, in a loss too, and so does
    `nets.averaged.generator`, with its averages.
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
        schedule: Callable[[str], Any] | None = None,
        known: str = "networks() returns",
    ) -> None:
        """The statistics of `owned` networks may move, but for the variables that it lists for each.

        `values` are used instead of variables, by network name.

        `losses` receives (name, loss) of each loss that layers of an owned network add in a call, by an
        activity_regularizer or by add_loss(); None if its gradient is not recorded. `state` is what the recipe's
        sample() and evaluate() see as batch.state, `schedule` what they call as batch.schedule. `averages` are the
        values of nets.averaged.
        """
        frozen = frozen or {}
        self._networks = {**networks, **frozen}
        # A network without weights, such as one of augmentation layers, has nothing that is frozen.
        self._frozen = [name for name, each in frozen.items() if each.weights or not each.trainable]
        self._owned = owned or {}
        self._training = training
        self._values = values or {}
        self._shared = shared
        self._losses = [] if losses is None else losses
        self._state, self._schedule = state or {}, schedule
        self._averages, self._known = averages or {}, known

    def __getattr__(self, name: str) -> Any:
        if name == "averaged" and name not in self._networks:
            known = {each: self._networks[each] for each in self._averages}
            return Nets(known, training=False, values=self._averages, known=_AVERAGED)
        if name not in self._networks:
            raise AttributeError(f"there is no network {name}; {self._known} {', '.join(self._networks) or 'none'}")
        return UsedNetwork(self, name)

    def _is_training(self, name: str, wanted: bool | None) -> bool:
        """The mode of a call, if the recipe wants one, or None."""
        default = self._training and name not in self._frozen
        if wanted and not default:
            what = f"training={wanted} cannot be given to {name}"
            if name in self._frozen:
                raise TypeError(f"{what}: it is frozen, and runs in inference mode; leave it out")
            where = "nets.averaged runs" if self._known == _AVERAGED else "sample() and evaluate() run"
            raise TypeError(f"{what}: {where} networks in inference mode; leave it out")
        return default if wanted is None else bool(wanted)

    def _call(self, name: str, inputs: Any) -> Any:
        draws = layer_draws.current()
        what = "averaged" if self._known == _AVERAGED else "" if inputs[1]["training"] else "inference"
        key = draws.key_of(name, inputs, what) if draws else ""
        output = self._output(name, inputs, key)
        if draws:
            draws.name_outputs(key, output)
        return output

    def _output(self, name: str, inputs: Any, key: str) -> Any:
        """The output of a call, computed by this one or by an earlier one."""
        shared, moves = self._shared or SharedForward(), name in self._owned and inputs[1]["training"]
        known = shared.find(name, inputs, key, moves=moves)
        if moves:
            # This call moves the network's statistics, so results computed before it are stale.
            shared.forget(name)
            kept = [(variable, variable.value.read_value()) for variable in self._owned[name]]
            if known is None:
                output, drawn = self._run(name, inputs, key)
                for variable, value in kept:
                    variable.value.assign(value)
                shared.keep(name, Call(inputs, output, (), key=drawn, serves_owner=False))
                # In tf.recompute_grad no tape records what a layer adds.
                found, is_recorded = _losses_of_call(self._networks[name]), could_possibly_record()
                self._losses += [(name, loss if is_recorded else None) for loss in found]
                return output
            for variable, value in (*known.moved, *kept):
                variable.value.assign(value)
            self._losses += [(name, loss) for loss in known.losses]
            return known.output
        if known is not None:
            return known.output
        # A stateless scope takes a network's assignments to its own variables and drops them.
        with keras.StatelessScope(self._values.get(name), collect_losses=True) as scope:
            output, drawn = self._run(name, inputs, key)
        values = [(variable, scope.get_current_value(variable)) for variable in self._networks[name].variables]
        moved = [(variable, value) for variable, value in values if value is not None]
        # A weight that a call assigns, as Keras' SpectralNormalization does, has another gradient in an owner's call.
        given = {id(variable) for variable, _ in self._values.get(name, ())}
        if not any(variable.trainable and id(variable) not in given for variable, _ in moved):
            shared.keep(name, Call(inputs, output, moved, list(scope.losses), drawn))
        return output

    def _run(self, name: str, inputs: Any, key: str) -> tuple[Any, str | None]:
        """Call the network; the second result is the key of the numbers that its layers have drawn, if any."""
        network, draws = self._networks[name], layer_draws.current()
        with draws.of_call(key, network, inputs) if draws else contextlib.nullcontext() as call:
            output = fixed_batch.call(name, network, inputs)
        return output, key if call and call.shapes else None


def _as_tensor(value: Any) -> Any:
    """An array of NumPy as a constant, which can be told from others."""
    return tf.constant(value) if isinstance(value, np.ndarray) else value


def give_state(nets: Nets, batch: Batch) -> None:
    """Give a batch the values of the state, and of the schedules, with which the networks are used."""
    batch.state = StateValues({name: variable.value.read_value() for name, variable in nets._state.items()})
    batch.schedule = nets._schedule or batch.schedule


def _losses_of_call(network: keras.Model) -> list[Any]:
    """The losses that layers have added in a network's last call, without those of weights, which Keras lists last."""
    losses = network.losses
    return losses[: len(losses) - sum(weight.regularizer is not None for weight in network.trainable_weights)]
