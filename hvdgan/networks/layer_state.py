"""Finds the state of layers other than their weights: statistics of samples, and state of other kinds."""

from collections.abc import Iterator

import keras

from hvdgan.networks.nested_layers import created_as_not_trainable, layers_of

# All state of these layers is statistics; Keras does not mark their variables.
_WITH_STATISTICS = (keras.layers.BatchNormalization, keras.layers.SpectralNormalization)


def statistics_of(network: keras.Model) -> list[keras.Variable]:
    """The variables that each rank estimates from its own samples, such as BatchNorm's moving statistics.

    Other layers mark such a variable with `add_weight(..., aggregation="mean")`, Keras' word for a variable whose value
    over several replicas is their mean. An integer or a boolean has no mean.
    """
    chosen = {id(variable) for layer, variable in _kept(network) if _is_statistic(layer, variable)}
    return [variable for variable in network.non_trainable_variables if id(variable) in chosen]


def averages_of(network: keras.Model) -> list[tuple[keras.layers.Layer, keras.Variable]]:
    """The variables that layers mark as averages over samples, with the layer; hvdgan's own layers do not count."""
    marked = ((layer, variable) for layer, variable in _kept(network) if variable.aggregation == "mean")
    return [each for each in marked if not any(k.__module__.startswith("hvdgan.") for k in type(each[0]).__mro__)]


def other_state_of(network: keras.Model) -> list[tuple[keras.layers.Layer, keras.Variable]]:
    """The other state of layers, such as counters, with the layer; frozen weights do not count."""
    return [(layer, variable) for layer, variable in _kept(network) if not _is_statistic(layer, variable)]


def seeds_of(network: keras.Model) -> Iterator[tuple[keras.layers.Layer, keras.Variable]]:
    """The states of the seed generators in layers, with the layer; it need not draw, as a recurrent one may not."""
    for layer in (network, *layers_of(network)):
        yield from ((layer, variable) for variable in layer.variables if is_seed(variable))


def moved_in_calls(network: keras.Model) -> list[keras.Variable]:
    """The variables that a call may move: all that are not trained but seeds, and weights that Keras normalises."""
    kernels = [each.kernel for each in layers_of(network) if isinstance(each, keras.layers.SpectralNormalization)]
    weights = [variable for variable in kernels if any(variable is each for each in network.trainable_variables)]
    return [*(variable for variable in network.non_trainable_variables if not is_seed(variable)), *weights]


def is_frozen(network: keras.Model) -> bool:
    """Whether a network has nothing to train: its weights are frozen, or it has no variables at all.

    A network that only keeps state, made by add_weight(..., trainable=False), is not frozen: its update's calls move
    it.
    """
    if network.trainable_variables:
        return False
    state = {id(variable) for _, variable in _kept(network)}
    return not (network.trainable and state) or any(id(each) not in state for each in network.variables)


def is_seed(variable: keras.Variable) -> bool:
    """Whether the variable is the state of a keras.random.SeedGenerator."""
    return variable.path.endswith("seed_generator_state")


def is_float(variable: keras.Variable) -> bool:
    """Whether the variable holds floating-point numbers."""
    return keras.backend.is_float_dtype(variable.dtype)


def _kept(network: keras.Model) -> Iterator[tuple[keras.layers.Layer, keras.Variable]]:
    """Each variable that was created as not trainable, with its layer."""
    for layer in (network, *layers_of(network)):
        yield from ((layer, variable) for variable in created_as_not_trainable(layer))


def _is_statistic(layer: keras.layers.Layer, variable: keras.Variable) -> bool:
    return is_float(variable) and (isinstance(layer, _WITH_STATISTICS) or variable.aggregation == "mean")
