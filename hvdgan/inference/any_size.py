"""Networks on fields of another size than in training, by the same layers; those that see whole fields are refused."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvdgan.errors import UserError
from hvdgan.recipe import DataSpec
from hvdgan.recipe.data_spec import ArraysByName
from hvdgan.recipe.nets import Nets
from hvdgan.values.sample_values import Layout, Shape, is_field

_FREE = 32
"""height and width on which a layer is tried whose network takes any"""


def sized(spec: DataSpec, space: Sequence[int]) -> DataSpec:
    """The facts about samples of another height and width (and depth), without a crop and without constants."""

    def scaled(shape: Shape | None) -> Any:
        if shape is None or not is_field(shape, spec.shape):
            return shape
        return (*(new * size // old for new, size, old in zip(space, shape, spec.shape, strict=False)), shape[-1])

    shape, inputs, constants = map(scaled, (spec.shape, spec.input_shape, spec.constants_shape))
    arrays = ArraysByName({name: scaled(each) for name, each in spec.array_shapes.items()})
    known: dict[str, Any] = {"shape": shape, "input_shape": inputs, "constants_shape": constants, "missing": None}
    return dataclasses.replace(spec, **known, array_shapes=arrays, layout=Layout(shape, inputs), constants=None)


class AnySizeNets(Nets):
    """Networks that are called on fields of any size: each is made anew, of the same layers with their weights.

    Calling networks() for another size would not do. Some recipes give networks of another size other layers, and
    networks() also makes discriminators, whose dense layers can be too large for the memory.
    """

    def __init__(self, nets: Nets) -> None:
        vars(self).update(vars(nets))
        self.called: dict[str, keras.Model] = {}
        """the networks that have been called, as they were trained"""

    def _run(self, name: str, inputs: Any, key: str) -> tuple[Any, str | None]:
        own = self._networks
        self.called[name] = own[name]
        self.refuse_whole_fields()
        shapes = [tuple(each.shape[1:]) for each in keras.tree.flatten(inputs[0]) if tf.is_tensor(each)]
        self._networks = {**own, name: _of_size(f"--whole: network {name}", own[name], shapes)}
        try:
            return super()._run(name, inputs, key)
        finally:
            self._networks = own

    def refuse_whole_fields(self, *, by_slope: bool = False) -> None:
        """Refuse a layer that makes one place of a field, or none.

        With `by_slope` also one whose output at one place depends on its input at all places.
        """
        for name, network in self.called.items():
            for layer in getattr(network, "operations", ()):
                node = layer._inbound_nodes[0]  # not public; tests/inference/test_tiles.py names layers by it
                rank = max((len(each.shape) for each in node.input_tensors if {*each.shape[1:-1]} - {1}), default=0)
                is_lost = any(len(each.shape) < rank or not {*each.shape[1:-1]} - {1} for each in node.outputs)
                if rank > 2 and (is_lost or (by_slope and _sees_all(layer, node.input_tensors, node.outputs[0]))):
                    what = (
                        "its output depends on the whole field, so that no part of a larger one can be computed alone"
                    )
                    raise UserError(f"--whole: network {name}, layer {layer.name}: {what}")


def of_any_size(name: str, network: keras.Model) -> keras.Model:
    """A network with free height and width (and depth), of the same layers; a UserError names one that needs them."""
    if not getattr(network, "inputs", None):
        raise UserError(
            f"{name}: is no model of known inputs, so that their size cannot be changed; leave the flag out"
        )
    twice = [(*(size and 2 * size for size in each.shape[1:-1]), each.shape[-1]) for each in network.inputs]
    _of_size(name, network, twice)  # with sizes that are known, each layer checks them
    return _of_size(name, network, _free(network))


def _free(network: keras.Model) -> list[tuple[int | None, ...]]:
    return [(*(None for _ in each.shape[1:-1]), each.shape[-1]) for each in network.inputs]


def _of_size(name: str, network: keras.Model, shapes: Sequence[Sequence[int | None]]) -> keras.Model:
    """The graph of a network once more, on inputs of other shapes; no layer and no variable is made.

    `name` is that of the network, after the flag.
    """
    if len(getattr(network, "inputs", None) or ()) != len(shapes):
        return network
    if isinstance(network, keras.Sequential):
        network = keras.Model(network.inputs, network.outputs)

    def same(layer: keras.Layer) -> keras.Layer:
        if not isinstance(layer, keras.Model) or not getattr(layer, "inputs", None):
            return layer
        return _of_size(name, layer, _free(layer))

    def called(layer: keras.Layer, *positional: Any, **keywords: Any) -> Any:
        try:
            return layer(*positional, **keywords)
        except Exception as error:  # of many types
            raise UserError(
                f"{name}, layer {layer.name}: computes with the size of the fields in training; let it read the size "
                "of its input, or leave the flag out, for fields of that size"
            ) from error

    known = zip(network.inputs, shapes, strict=True)
    inputs = [keras.Input(shape, dtype=each.dtype, name=each.name) for each, shape in known]
    inputs = keras.tree.pack_sequence_as(network.input, inputs)
    return keras.models.clone_model(network, input_tensors=inputs, clone_function=same, call_function=called)


def _sees_all(layer: keras.Layer, given: Sequence[keras.KerasTensor], returned: keras.KerasTensor) -> bool:
    """Whether the middle of a layer's output depends on all places of a field, of 8 or more, in its input."""
    if "Conv" in type(layer).__name__:  # whose kernel may be as large
        return False
    given, draw = list({id(each): each for each in given}.values()), np.random.default_rng(0).normal
    numbers = [tf.constant(draw(size=[1, *(size or _FREE for size in each.shape[1:])]), tf.float32) for each in given]
    with tf.GradientTape() as tape:
        tape.watch(numbers)
        output = keras.Model(given, returned)(numbers)
        middle = output[(0, *(size // 2 for size in output.shape[1:-1]))]
        loss = tf.reduce_sum(middle * tf.range(1.0, 1.0 + middle.shape[0]))
    slopes = [each for each in tape.gradient(loss, numbers) if each is not None and max(each.shape[1:-1]) >= 8]
    return any((np.abs(each).sum(axis=-1) > 0).all() for each in slopes)
