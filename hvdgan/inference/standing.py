"""Standing statistics: BatchNorm's statistics computed anew from generated samples, before samples are drawn."""

import contextlib
import itertools
from collections.abc import Iterator, Mapping

import keras
import numpy as np
import tensorflow as tf

from hvdgan.cli.errors import UserError
from hvdgan.inference.inputs import blank_inputs, data_inputs
from hvdgan.inference.trained import TrainedNetworks, Weights
from hvdgan.networks.nested_layers import layers_of
from hvdgan.recipe.drawing import Drawing, Input
from hvdgan.recipe.nets import Call, Nets, SharedForward


def set_standing_statistics(
    trained: TrainedNetworks,
    weights: Weights,
    inputs: Iterator[Input],
    *,
    batches: int,
    batch_size: int,
    seed: int,
    truncation: float = 1.0,
) -> list[str]:
    """Set the BatchNorm statistics of the networks that sample() calls to those of generated batches, in memory.

    Each batch is generated in training mode. The mean of the batches' means and the mean of their variances replace the
    moving averages, which were computed with other weights than those that draw samples. Equal arguments give equal
    bits, and no sample that is drawn afterwards has the same random numbers.

    Args:
        trained: networks of a checkpoint, whose statistics in memory change; the checkpoint does not.
        weights: weights with which the batches are generated, and the samples afterwards.
        inputs: endless samples to start from, with labels and conditions distributed as in training.
        batches: number of batches, N of --standing-statistics N, from 1 up.
        batch_size: samples per batch.
        seed: seed of the batches.
        truncation: distance of styles from their mean, as in Drawing.

    Returns:
        The names of the networks whose statistics were set.

    Raises:
        UserError: sample() calls no network with BatchNorm.
        Mistake: sample() fails.

    Reference: Brock et al. 2019, arXiv:1809.11096, section C.1.
    """
    networks, calls = trained.state.networks, _Calls()
    values = trained.state.sampling_values() if weights == "averaged" else {}
    with _of_one_batch([norm for network in networks.values() for norm in _norms(network)]) as statistics:
        other = {name: [pair for pair in pairs if id(pair[0]) not in statistics] for name, pairs in values.items()}
        nets = Nets(networks, frozen=trained.state.frozen, training=True, values=other, shared=calls)
        drawing = Drawing(trained.recipe, nets, seed=seed, truncation=truncation)
        means = _means(drawing, calls, statistics, inputs, batches, batch_size)
    if not means:
        raise UserError(
            f"--standing-statistics {batches}: sample() calls {', '.join(calls.names) or 'no network'}, without "
            "BatchNorm statistics; leave the flag out"
        )
    used = {id(variable): average for pairs in values.values() for variable, average in pairs}
    for key, mean in means.items():
        used.get(key, statistics[key]).assign(mean)
    return [name for name, network in networks.items() if any(id(each) in means for each in network.variables)]


def standing_inputs(trained: TrainedNetworks, data: str | None, seed: int) -> Iterator[Input]:
    """The inputs of set_standing_statistics(): as in training, whatever class or conditions samples are drawn for.

    Args:
        trained: networks of a checkpoint.
        data: value of --data; None: the data that the run was trained on.
        seed: seed of the order of the data.

    Returns:
        Samples of the data if the recipe starts from them or has conditions; else blank ones, with all classes in turn.

    Raises:
        UserError: the data cannot be opened.
    """
    recipe = trained.recipe
    if recipe.shows_data or recipe.data.conditions:
        return data_inputs(trained, data, seed)
    return blank_inputs(recipe.data)


class _Calls(SharedForward):
    """Remembers what each call of a network would have changed; no call is used again."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.moved: list[tuple[keras.Variable, tf.Tensor]] = []

    def keep(self, name: str, call: Call) -> None:
        self.names = sorted({*self.names, name})
        self.moved += call.moved


def _norms(network: keras.Model) -> list[keras.layers.BatchNormalization]:
    return [layer for layer in (network, *layers_of(network)) if isinstance(layer, keras.layers.BatchNormalization)]


@contextlib.contextmanager
def _of_one_batch(norms: list[keras.layers.BatchNormalization]) -> Iterator[dict[int, keras.Variable]]:
    """Let a call in training mode move the statistics of layers to those of its batch, whatever they were before.

    Without a momentum the old value counts 0 times; it is 0 meanwhile, so that a NaN in it does not count either.
    """
    statistics = {id(each): each for norm in norms for each in (norm.moving_mean, norm.moving_variance)}
    before = {key: variable.numpy() for key, variable in statistics.items()}
    momenta = [norm.momentum for norm in norms]
    try:
        for norm in norms:
            norm.momentum = 0.0
        for variable in statistics.values():
            variable.assign(tf.zeros_like(variable.value))
        yield statistics
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for key, value in before.items():
            statistics[key].assign(value)


def _means(
    drawing: Drawing,
    calls: _Calls,
    statistics: Mapping[int, keras.Variable],
    inputs: Iterator[Input],
    batches: int,
    batch_size: int,
) -> dict[int, np.ndarray]:
    """The mean of each statistic that moves, over all batches and calls, by the id() of its variable.

    The means are computed in double precision.
    """
    keys: list[int] = []

    def measure(numbers: tf.Tensor, data: dict[str, tf.Tensor]) -> list[tf.Tensor]:
        drawing(numbers, data)
        moved = [(id(variable), value) for variable, value in calls.moved if id(variable) in statistics]
        keys.extend(key for key, _ in moved)
        return [value for _, value in moved]

    function = tf.function(measure, autograph=False)  # traced once: all batches have one shape
    sums: dict[int, np.ndarray] = {}
    for number in range(batches):
        some = list(itertools.islice(inputs, batch_size))
        data = {name: tf.constant(np.stack([each[name] for each in some])) for name in some[0]}
        # Samples have numbers from 0 up, so none has the draws of these.
        numbers = -1 - tf.range(number * batch_size, (number + 1) * batch_size, dtype=tf.int64)
        moved = function(numbers, data)
        for key, value in zip(keys, moved, strict=True):
            sums[key] = sums.get(key, 0.0) + value.numpy().astype(np.float64)
    return {key: total / (batches * keys.count(key)) for key, total in sums.items()}
