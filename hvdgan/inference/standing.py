"""Standing statistics: BatchNorm's statistics computed anew from generated samples, before samples are drawn."""

import itertools
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvdgan.errors import UserError
from hvdgan.inference.inputs import blank_inputs, data_inputs
from hvdgan.inference.trained import TrainedNetworks
from hvdgan.networks.layers import layers_of
from hvdgan.recipe.nets import Call, Nets, SharedForward
from hvdgan.recipe.sampling import Drawing
from hvdgan.settings.types import Weights


def set_standing_statistics(
    trained: TrainedNetworks,
    weights: Weights,
    data: str | None = None,
    *,
    batches: int,
    batch_size: int,
    seed: int,
    truncation: float = 1.0,
    axes: str | None = None,
) -> list[str]:
    """Set the BatchNorm statistics of the networks that sample() calls to those of generated batches, in memory.

    The mean over the batches' means, and that of their variances, replace the moving averages of the weights in use. No
    sample that is drawn afterwards has the same random numbers. Returns the names of the networks.

    Reference: Brock et al. 2019, arXiv:1809.11096, section C.1.
    """
    recipe, networks, calls = trained.recipe, trained.state.networks, _Calls()
    starts = recipe.shows_data or recipe.data.conditions
    inputs = data_inputs(trained, data, seed, axes) if starts else blank_inputs(recipe.data)
    values = trained.state.sampling_values() if weights == "averaged" else {}
    state = trained.state.declared_state.seen_in_samples()
    seen: Any = {"state": state, "schedule": trained.state.schedules.read}
    nets = _NetsInTraining(networks, frozen=trained.state.frozen, training=True, values=values, shared=calls, **seen)
    drawing = Drawing(recipe, nets, seed=seed, truncation=truncation)
    layers = [layer for network in networks.values() for layer in layers_of(network)]
    norms = [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]
    momenta = [norm.momentum for norm in norms]
    statistics = {id(each): each for norm in norms for each in (norm.moving_mean, norm.moving_variance)}
    keys: list[int] = []

    def measure(numbers: tf.Tensor, records: dict[str, tf.Tensor]) -> list[tf.Tensor]:
        drawing(numbers, records)
        moved = [(id(variable), value) for variable, value in calls.moved if id(variable) in statistics]
        keys.extend(key for key, _ in moved)
        return [keras.ops.convert_to_tensor(value) for _, value in moved]

    function, sums = tf.function(measure, autograph=False), dict[int, np.ndarray]()
    try:
        for norm in norms:
            norm.momentum = 0.0  # a call in training mode then moves the statistics to those of its batch
        for number in range(batches):
            some = list(itertools.islice(inputs, batch_size))
            records = {name: tf.constant(np.stack([each[name] for each in some])) for name in some[0]}
            # Samples have numbers from 0 up, so none has the draws of these.
            numbers = -1 - tf.range(number * batch_size, (number + 1) * batch_size, dtype=tf.int64)
            moved = function(numbers, records)
            for key, value in zip(keys, moved, strict=True):
                sums[key] = sums.get(key, 0.0) + value.numpy().astype(np.float64)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
    if not sums:
        named = ", ".join(sorted(calls.names)) or "no network"
        flag = f"--standing-statistics {batches}"
        raise UserError(f"{flag}: sample() calls {named}, without BatchNorm statistics; leave the flag out")
    used = {id(variable): average for pairs in values.values() for variable, average in pairs}
    for key, total in sums.items():
        used.get(key, statistics[key]).assign(total / (batches * keys.count(key)))
    return [name for name, network in networks.items() if any(id(each) in sums for each in network.variables)]


class _NetsInTraining(Nets):
    """Networks in training mode, also where sample() asks for inference mode."""

    def _is_training(self, name: str, wanted: bool | None) -> bool:
        return super()._is_training(name, None)


class _Calls(SharedForward):
    """Remembers what each call of a network would have changed; no call is used again."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.moved: list[tuple[keras.Variable, tf.Tensor]] = []

    def keep(self, name: str, call: Call) -> None:
        self.names.add(name)
        self.moved += call.moved
