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
from hvdgan.values.sample_values import Layout, Missing, Shape, is_field

_FREE = 32
"""height and width on which a layer is tried whose network takes any"""


def sized(spec: DataSpec, space: Sequence[int], missing: Missing | None = None) -> DataSpec:
    """The facts about samples of another height and width (and depth), without a crop.

    `missing` has the places without numbers.
    """

    def scaled(shape: Shape | None) -> Any:
        if shape is None or not is_field(shape, spec.shape):
            return shape
        return (*(new * size // old for new, size, old in zip(space, shape, spec.shape, strict=False)), shape[-1])

    shape, inputs, constants = map(scaled, (spec.shape, spec.input_shape, spec.constants_shape))
    arrays = ArraysByName({name: scaled(each) for name, each in spec.array_shapes.items()})
    known = dataclasses.replace(spec, shape=shape, input_shape=inputs, constants_shape=constants, array_shapes=arrays)
    return dataclasses.replace(known, layout=Layout(shape, inputs), constants=None, missing=missing)


class AnySizeNets(Nets):
    """Networks that are called on fields of any size.

    One whose Input has a fixed size is made anew for the size of a call, of the same layers, which keep their weights
    and averages. Calling networks() for another size would not do: some recipes give networks of another size other
    layers, and would also make discriminators, whose dense layers can be too large for the memory.
    """

    def __init__(self, nets: Nets) -> None:
        vars(self).update(vars(nets))
        self.called: dict[str, keras.Model] = {}
        """the networks that have been called, as they were trained"""
        self._sizes: dict[tuple[str, str], keras.Model] = {}

    def refuse_whole_fields(self, *, by_slope: bool = False) -> None:
        """Refuse the layers of layer_of_whole_fields() in networks that have been called."""
        for name, network in self.called.items():
            if layer := layer_of_whole_fields(network, by_slope=by_slope):
                raise UserError(
                    f"--whole: network {name}, layer {layer}: its output depends on the whole field, so that no part "
                    "of a larger one can be computed alone"
                )

    def _run(self, name: str, inputs: Any, key: str) -> tuple[Any, str | None]:
        own = self._networks
        if name not in self.called:
            self.called[name] = own[name]
            self.refuse_whole_fields()
        shapes = [tuple(each.shape[1:]) for each in keras.tree.flatten(inputs[0]) if tf.is_tensor(each)]
        key_of_size = (name, str(shapes))
        if key_of_size not in self._sizes:
            self._sizes[key_of_size] = _of_size(name, own[name], shapes)
        self._networks = {**own, name: self._sizes[key_of_size]}
        try:
            return super()._run(name, inputs, key)
        finally:
            self._networks = own


def _of_size(name: str, network: keras.Model, shapes: Sequence[Shape]) -> keras.Model:
    """The network for inputs of these shapes, or itself if it takes them."""
    given = getattr(network, "inputs", None) or []
    if len(given) != len(shapes) or all(
        size in (None, wanted)
        for each, shape in zip(given, shapes, strict=True)
        for size, wanted in zip(each.shape[1:], shape, strict=False)
    ):
        return network
    try:
        return _of_same_layers(network, shapes)
    except _Refused as error:
        raise UserError(
            f"--whole: network {name}, layer {error}: computes with the size of the fields in training, "
            f"{given[0].shape[1:-1]}, and not with {shapes[0][:-1]}; let it read the size of its input, or give fields "
            "of that size without --whole"
        ) from error


class _Refused(Exception):
    """A layer, by its name, that does not take another size."""


def _of_same_layers(network: keras.Model, shapes: Sequence[Sequence[int | None]]) -> keras.Model:
    """The graph of a network once more, on inputs of other shapes; no layer and no variable is made."""
    if isinstance(network, keras.Sequential):
        network = keras.Model(network.inputs, network.outputs)
    each_given = zip(network.inputs, shapes, strict=True)
    inputs = [keras.Input(shape, dtype=each.dtype, name=each.name) for each, shape in each_given]

    def same(layer: keras.Layer) -> keras.Layer:
        if not isinstance(layer, keras.Model) or not getattr(layer, "inputs", None):
            return layer
        free = [(*(None for _ in each.shape[1:-1]), each.shape[-1]) for each in layer.inputs]
        return _of_same_layers(layer, free)

    def called(layer: keras.Layer, *positional: Any, **keywords: Any) -> Any:
        try:
            return layer(*positional, **keywords)
        except Exception as error:  # of many types
            raise _Refused(layer.name) from error

    structure = keras.tree.pack_sequence_as(network.input, inputs)
    return keras.models.clone_model(network, input_tensors=structure, clone_function=same, call_function=called)


def layer_of_whole_fields(network: keras.Model, *, by_slope: bool = False) -> str:
    """The first layer that makes one place of a field, or none; "" if there is none.

    With `by_slope` also the first whose output at one place depends on its input at all places; convolutions do not.
    """
    for operation in getattr(network, "operations", ()):
        node = operation._inbound_nodes[0]  # not public; tests/inference/test_tiles.py names layers by it
        given, returned = node.input_tensors, node.outputs
        rank = max((len(each.shape) for each in given if 1 not in each.shape[1:-1]), default=0)
        if rank > 2 and any(len(each.shape) < rank or 1 in each.shape[1:-1] for each in returned):
            return str(operation.name)
        if by_slope and rank > 2 and "Conv" not in type(operation).__name__ and _sees_all(given, returned[0]):
            return str(operation.name)
    return ""


def _sees_all(given: Sequence[keras.KerasTensor], returned: keras.KerasTensor) -> bool:
    """Whether the middle of a layer's output depends on all places of a field, of 8 or more, in its input."""
    given, draw = list({id(each): each for each in given}.values()), np.random.default_rng(0).normal
    numbers = [tf.constant(draw(size=[1, *(size or _FREE for size in each.shape[1:])]), tf.float32) for each in given]
    with tf.GradientTape() as tape:
        tape.watch(numbers)
        output = keras.Model(given, returned)(numbers)
        middle = output[(0, *(size // 2 for size in output.shape[1:-1]))]
        loss = tf.reduce_sum(middle * tf.range(1.0, 1.0 + middle.shape[0]))
    slopes = [each for each in tape.gradient(loss, numbers) if each is not None and max(each.shape[1:-1]) >= 8]
    return any((np.abs(each).sum(axis=-1) > 0).all() for each in slopes)
