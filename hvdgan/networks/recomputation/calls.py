"""Calls of Keras layers that are computed again in the backward pass, and change variables only once."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from hvdgan.cli.errors import UserError
from hvdgan.networks.recomputation.gradient import recomputed

Variables = Sequence[tuple[keras.Variable, tf.Variable]]
"""variables of a layer, each with the variable of TensorFlow inside"""


def variables_of(layer: keras.Layer) -> Variables:
    """The variables of a layer; call it outside of all scopes of Keras, which hide the variables of TensorFlow."""
    return [(variable, variable.value) for variable in layer.variables]


def called(call: Callable[..., Any], variables: Variables, inputs: Sequence[Any]) -> Any:
    """Call layers, and compute their inner results again when a gradient needs them.

    The layers compute again with the values that the variables have now. What the first call assigns to variables, such
    as BatchNorm's statistics, is assigned once; what the second call would assign is dropped.

    Args:
        call: function of the inputs that calls the layers; its result may be nested.
        variables: all variables of the layers.
        inputs: inputs of the call: tensors, and other values that stay as they are.

    Returns:
        The result of the call.
    """
    places = [place for place, value in enumerate(inputs) if tf.is_tensor(value)]
    results: list[Any] = []
    moved: list[tuple[keras.Variable, tf.Tensor]] = []

    def function(*tensors: tf.Tensor) -> list[tf.Tensor]:
        given, values = list(inputs), tensors[len(places) :]
        for place, tensor in zip(places, tensors[: len(places)], strict=True):
            given[place] = tensor
        pairs = [(variable, value) for (variable, _), value in zip(variables, values, strict=True)]
        with keras.StatelessScope(pairs, collect_losses=True, initialize_variables=False) as scope:
            before = [scope.get_current_value(variable) for variable, _ in pairs]
            result = call(*given)
            after = [scope.get_current_value(variable) for variable, _ in pairs]
        if scope.losses:
            raise UserError(
                "--remat: a layer has losses of its own (activity_regularizer, add_loss), which cannot be computed "
                "again; leave out one"
            )
        if not results:
            results.append(result)
            changed = zip(variables, before, after, strict=True)
            moved.extend((variable, new) for (variable, _), old, new in changed if new is not old)
        return keras.tree.flatten(result)

    flat = recomputed(function, *(inputs[place] for place in places), *_values(variables))
    for variable, value in moved:
        variable.assign(value)
    return keras.tree.pack_sequence_as(results[0], flat)


def _values(variables: Variables) -> list[tf.Tensor]:
    """The values of variables now, in their own type: those of a stateless scope around the call, or their own."""
    with keras.StatelessScope(initialize_variables=False) as scope:
        around = scope.original_scope
    values = [None if around is None else around.get_current_value(variable) for variable, _ in variables]
    return [
        tf.convert_to_tensor(own if value is None else value) for value, (_, own) in zip(values, variables, strict=True)
    ]
