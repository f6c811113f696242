"""The networks as a loss sees them: those that the update owns train, all others keep their state."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import keras

from hvdgan.recipe.shared_forward import Call, SharedForward, could_possibly_record


class Nets:
    """The recipe's networks, each a function by the network's name: `nets.generator(latents)`.

    A call takes the arguments of the Keras model: a tensor, a list or a dict of tensors, and keywords; not `training`,
    which is set here. It returns the model's result. In a loss the networks run in training mode, in sample() and
    evaluate() in inference mode. A network that the running update does not own is computed as usual, and gradients
    flow through it to its inputs, but its own variables stay as they are: no gradient, no new BatchNorm statistics.

    A frozen network runs in inference mode, in a loss too.

    Args:
        networks: the networks that the recipe trains, by name.
        frozen: its frozen networks by name.
        owned: names of the networks whose statistics (BatchNorm's and the like) a call may move.
        training: True to run the networks in training mode.
        values: (variable, value) pairs by network name; the values are used instead of the variables.
        shared: calls of this step that may be used again; None: none are.
        losses: receives (name, loss) of each loss that the layers of an owned network add in a call: by an
            activity_regularizer, or by add_loss(); None if its gradient is not recorded.
    """

    def __init__(
        self,
        networks: Mapping[str, keras.Model],
        *,
        frozen: Mapping[str, keras.Model] | None = None,
        owned: Collection[str] = (),
        training: bool,
        values: Mapping[str, Sequence[tuple[keras.Variable, Any]]] | None = None,
        shared: SharedForward | None = None,
        losses: list[tuple[str, Any | None]] | None = None,
    ) -> None:
        self._frozen = frozen or {}
        self._networks = {**networks, **self._frozen}
        self._owned = owned
        self._training = training
        self._values = values or {}
        self._shared = shared
        self._losses = [] if losses is None else losses

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
        shared = self._shared or SharedForward()
        known = shared.find(name, inputs, moves=name in self._owned)
        if name in self._owned:
            # This call moves the network's statistics, so results computed before it are stale.
            shared.forget(name)
            if known is None:
                output = self._run(name, inputs)
                # In tf.recompute_grad no tape records what a layer adds.
                found, is_recorded = _losses_of_call(self._networks[name]), could_possibly_record()
                self._losses += [(name, loss if is_recorded else None) for loss in found]
                return output
            for variable, value in known.moved:
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
        positional, keywords = inputs
        training = self._training and name not in self._frozen
        return self._networks[name](*positional, training=training, **keywords)


def _losses_of_call(network: keras.Model) -> list[Any]:
    """The losses that layers have added in a network's last call, without those of weights, which Keras lists last."""
    losses = network.losses
    return losses[: len(losses) - sum(weight.regularizer is not None for weight in network.trainable_weights)]
