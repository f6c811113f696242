"""What the layers of a network keep beside their weights: statistics of samples, and state of other kinds."""

from collections.abc import Iterator

import keras

# Whatever these keep is a statistic, which Keras does not say of its variables.
_WITH_STATISTICS = (keras.layers.BatchNormalization, keras.layers.SpectralNormalization)


def statistics_of(network: keras.Model) -> list[keras.Variable]:
    """The variables that each rank estimates from its own samples, such as BatchNorm's moving statistics.

    A layer says so of a variable of its own with `add_weight(..., aggregation="mean")`, Keras' word for a variable
    whose value over several replicas is their mean. An integer or a boolean has no mean.
    """
    chosen = {id(variable) for layer, variable in _kept(network) if _is_statistic(layer, variable)}
    return [variable for variable in network.non_trainable_variables if id(variable) in chosen]


def other_state_of(network: keras.Model) -> list[tuple[keras.layers.Layer, keras.Variable]]:
    """Whatever else layers keep, such as counters; weights that are not trained do not count."""
    return [(layer, variable) for layer, variable in _kept(network) if not _is_statistic(layer, variable)]


def is_float(variable: keras.Variable) -> bool:
    """Whether the variable holds floating-point numbers."""
    return keras.backend.is_float_dtype(variable.dtype)


def _kept(network: keras.Model) -> Iterator[tuple[keras.layers.Layer, keras.Variable]]:
    """Each variable that was made as one that is not trained, with its layer."""
    for layer in network._flatten_layers(include_self=True, recursive=True):
        # Not layer.non_trainable_variables, which has those of nested layers and the weights of frozen ones too.
        yield from ((layer, variable) for variable in layer._non_trainable_variables)


def _is_statistic(layer: keras.layers.Layer, variable: keras.Variable) -> bool:
    return is_float(variable) and (isinstance(layer, _WITH_STATISTICS) or variable.aggregation == "mean")
