"""Refuses to call a network with another number of samples than a layer in it has been written for."""

from typing import Any

import keras
import tensorflow as tf

from hvdgan.recipe.layer_draws import using
from hvdgan.recipe.recipe_errors import Mistake


def call(name: str, network: keras.Model, inputs: Any) -> Any:
    """Call a network on inputs as Nets has them, positional ones and keywords with `training`."""
    positional, keywords = inputs
    try:
        output = network(*positional, **keywords)
    except (ValueError, tf.errors.InvalidArgumentError):
        _refuse(name, network, inputs)
        raise
    if _counts(inputs) == {1} and 1 not in _counts(output):  # TensorFlow broadcasts one sample to any number
        _refuse(name, network, inputs)
    return output


def _refuse(name: str, network: keras.Model, inputs: Any) -> None:
    """Refuse the call if the network gives a fixed number of samples, whatever their number in its inputs."""

    def of_any_number(each: Any) -> Any:
        if not tf.is_tensor(each):
            return each
        return tf.TensorSpec([None, *each.shape[1:]] if each.shape.rank else each.shape, each.dtype)

    def called(positional: Any, keywords: Any) -> Any:
        with keras.StatelessScope(), using(None):
            return network(*positional, **keywords)

    try:
        with tf.init_scope():
            function = tf.function(called, autograph=False)
            given = tf.nest.map_structure(of_any_number, inputs)
            fixed = _counts(function.get_concrete_function(*given).structured_outputs)
    except Exception:  # the network fails with any number of samples, and the first error says why
        return
    given_numbers = _counts(inputs)
    if fixed and None not in fixed and not fixed & given_numbers:
        numbers, called_with = (" or ".join(sorted(map(str, each))) for each in (fixed, given_numbers))
        advice = "let its layers read tf.shape(inputs)[0] instead of a number"
        advice += ", or choose --global-batch-size so that a rank has as many" * inputs[1]["training"]
        what = f"network {name} always gives {numbers} samples, and is called with {called_with}"
        raise Mistake(f"{what}; {advice}") from None


def _counts(tensors: Any) -> set[int | None]:
    """The numbers of samples in the tensors of a structure; None: it is not known."""
    shapes = [tf.TensorShape(each.shape) for each in tf.nest.flatten(tensors) if hasattr(each, "shape")]
    return {shape[0] for shape in shapes if shape.rank}
