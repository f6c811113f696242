"""Cuts a network that is a graph of layers into parts, between which little has to be kept."""

import dataclasses
import math
from collections.abc import Sequence

import keras

_BUDGETS = 32
"""number of sizes of the largest part that are tried"""


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a network.

    Attributes:
        model: model of the layers of the part, which it shares with the network.
        inputs: tensors of the network's graph that the part reads.
        outputs: tensors of the network's graph that the part makes and others read.
    """

    model: keras.Model
    inputs: Sequence[keras.KerasTensor]
    outputs: Sequence[keras.KerasTensor]


def parts_of(network: keras.Model) -> list[Part]:
    """Cut a network into parts, such that few bytes are kept between them and none of them has many inside.

    Args:
        network: built network.

    Returns:
        The parts, in an order in which each reads only what earlier ones make. Empty if the network is no functional
        or sequential model, calls a layer twice, has masks, or is too small.
    """
    operations = _operations(network)
    if len(operations) < 3:
        return []
    known = {id(tensor) for tensor in network.inputs}
    for operation in operations:
        if any(id(tensor) not in known for tensor in _flat(operation.input)):
            return []  # made by another call of the layer than its first, or in another model
        known |= {id(tensor) for tensor in _flat(operation.output)}
    if any(id(tensor) not in known for tensor in network.outputs):
        return []
    tensors = [tensor for operation in operations for tensor in _flat(operation.output)]
    # Not public; tests/networks/test_recomputation.py has a network with a mask.
    if any(getattr(tensor, "_keras_mask", None) is not None for tensor in tensors):
        return []
    places = _places(operations, network)
    return [_part(network, operations, begin, end) for begin, end in zip([0, *places], [*places, None], strict=True)]


def _operations(network: keras.Model) -> list[keras.Operation]:
    """The operations of a graph of layers, without its inputs; empty if the network is no such graph."""
    if not isinstance(network, keras.Sequential) and not hasattr(network, "operations"):
        return []
    try:
        graph = keras.Model(network.inputs, network.outputs, name=f"{network.name}_graph")
    except (AttributeError, TypeError, ValueError):  # a sequential model of layers without a graph
        return []
    return [each for each in graph.operations if not isinstance(each, keras.layers.InputLayer)]


def _places(operations: Sequence[keras.Operation], network: keras.Model) -> list[int]:
    """The numbers of the operations before which the network is cut, so that the largest sum of bytes is least.

    The sum is that of what is kept between the parts and of what is inside the largest part.
    """
    inside = [sum(map(_bytes, _flat(operation.output))) for operation in operations]
    kept = _kept(operations, network)
    total = sum(inside)
    best: tuple[float, int, list[int]] = (math.inf, 0, [])
    for number in range(1, _BUDGETS + 1):
        places = _within(inside, kept, total * number / _BUDGETS)
        if places is not None:
            ends = zip([0, *places], [*places, len(inside)], strict=True)
            most = sum(kept[place] for place in places) + max(sum(inside[begin:end]) for begin, end in ends)
            best = min(best, (most, len(places), places))
    return list(best[2])


def _within(inside: Sequence[int], kept: Sequence[float], budget: float) -> list[int] | None:
    """The places with the fewest bytes kept such that each part has at most `budget` inside; None: there are none."""
    count = len(inside)
    least: list[tuple[float, int, list[int]]] = [(0, 0, [])]
    for end in range(1, count + 1):
        options, size = [], 0
        for begin in range(end - 1, -1, -1):
            size += inside[begin]
            if size > budget and begin < end - 1:  # a single operation cannot be cut
                break
            bytes_kept, number, places = least[begin]
            options.append((bytes_kept + (kept[begin] if begin else 0), number + 1, [*places, begin] if begin else []))
        least.append(min(options))
    found = least[count]
    return None if math.isinf(found[0]) else found[2]


def _kept(operations: Sequence[keras.Operation], network: keras.Model) -> list[float]:
    """For each operation the bytes that earlier ones have made and it or later ones read; infinite if any is no float.

    A gradient is returned for each of them.
    """
    made = {id(tensor): place for place, each in enumerate(operations) for tensor in _flat(each.output)}
    read = {id(tensor): place for place, each in enumerate(operations) for tensor in _flat(each.input)}
    read |= {id(tensor): len(operations) for tensor in network.outputs}
    tensors = {id(tensor): tensor for each in operations for tensor in _flat(each.output)}
    kept = []
    for place in range(len(operations)):
        crossing = [tensors[key] for key, begin in made.items() if begin < place <= read.get(key, -1)]
        floats = all(keras.backend.is_float_dtype(tensor.dtype) for tensor in crossing)
        kept.append(sum(map(_bytes, crossing)) if floats else math.inf)
    return kept


def _part(network: keras.Model, operations: Sequence[keras.Operation], begin: int, end: int | None) -> Part:
    """The part of the operations from begin to end."""
    inner, outer = operations[begin:end], [] if end is None else operations[end:]
    made = {id(tensor): tensor for each in inner for tensor in _flat(each.output)}
    inputs = {id(tensor): tensor for each in inner for tensor in _flat(each.input) if id(tensor) not in made}
    wanted = {id(tensor) for each in outer for tensor in _flat(each.input)} | {id(t) for t in network.outputs}
    outputs = [tensor for key, tensor in made.items() if key in wanted]
    model = keras.Model(list(inputs.values()), outputs, name=f"{network.name}_from_{begin}")
    return Part(model, list(inputs.values()), outputs)


def _flat(tensors: object) -> list[keras.KerasTensor]:
    return keras.tree.flatten(tensors)


def _bytes(tensor: keras.KerasTensor) -> int:
    """Bytes of one sample of a tensor."""
    sizes = [size or 1 for size in tensor.shape[1:]]
    width = {"float64": 8, "int64": 8, "float16": 2, "bfloat16": 2, "bool": 1, "uint8": 1}.get(str(tensor.dtype), 4)
    return math.prod(sizes) * width
