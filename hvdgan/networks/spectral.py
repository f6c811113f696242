"""Layers under spectral normalisation: their weight is divided by its largest singular value."""

from typing import Any

import keras
from keras import ops

_EPSILON = 1e-12  # float32 can hold it


class Spectral(keras.layers.Layer):
    """A layer with one weight, divided by an estimate of the weight's largest singular value when it is used.

    The estimate is one power iteration from the saved vector `u`, always in float32. A call in training mode saves the
    new vector, so that the estimate follows the weight as it changes.

    Args:
        kernel_initializer: initializer of the weight.

    Reference: Miyato et al. 2018 (arXiv:1802.05957), algorithm 1.
    """

    def __init__(self, *, kernel_initializer: Any = "glorot_uniform", **keywords: Any) -> None:
        super().__init__(**keywords)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def add_kernel(self, shape: tuple[int, ...]) -> None:
        """Create the weight and the vector of its estimate; as a matrix the weight has shape[-1] columns."""
        # Without autocast both are read as float32 in a layer that computes in float16.
        self.kernel = self.add_weight(name="kernel", shape=shape, initializer=self.kernel_initializer, autocast=False)
        start = keras.initializers.RandomNormal(stddev=1.0)
        # CPUs of different kinds may round it differently, so it is averaged over the ranks like a statistic.
        how: dict[str, Any] = {"aggregation": "mean", "synchronization": "on_read", "dtype": self.variable_dtype}
        self.u = keras.Variable(start, shape[-1:], trainable=False, autocast=False, name="u", **how)

    def normalised_kernel(self, training: bool) -> Any:
        """The weight divided by its largest singular value, in the layer's compute dtype.

        The gradient treats the vectors as constants (equation 12).
        """
        kernel = ops.convert_to_tensor(self.kernel)
        matrix = ops.reshape(kernel, (-1, kernel.shape[-1]))  # (inputs, outputs): the paper's W transposed
        constant = ops.stop_gradient(matrix)
        v = _unit(ops.matmul(constant, ops.convert_to_tensor(self.u)))
        u = _unit(ops.matmul(v, constant))
        if training:
            self.u.assign(u)
        sigma = ops.sum(v * ops.matmul(matrix, u))
        return ops.cast(kernel / ops.maximum(sigma, _EPSILON), self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        initializer = keras.initializers.serialize(self.kernel_initializer)
        return {**super().get_config(), "kernel_initializer": initializer}


@keras.saving.register_keras_serializable("hvdgan")
class SpectralConv2D(Spectral):
    """A convolution with zero padding, (B, H, W, C) to (B, H, W, filters), and a bias that is not normalised.

    Args:
        filters: channels of the output.
        kernel_size: height and width of the kernel, in pixels.
    """

    def __init__(self, filters: int, kernel_size: int, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.filters = filters
        self.kernel_size = kernel_size

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.add_kernel((self.kernel_size, self.kernel_size, int(input_shape[-1] or 0), self.filters))
        self.bias = self.add_weight(name="bias", shape=(self.filters,), initializer="zeros")

    def call(self, inputs: Any, training: bool = False) -> Any:
        return ops.conv(inputs, self.normalised_kernel(training), padding="same") + self.bias

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "filters": self.filters, "kernel_size": self.kernel_size}


@keras.saving.register_keras_serializable("hvdgan")
class SpectralDense(Spectral):
    """A dense layer, (B, N) to (B, units), with a bias that is not normalised.

    Args:
        units: length of the output.
    """

    def __init__(self, units: int, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.units = units

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.add_kernel((int(input_shape[-1] or 0), self.units))
        self.bias = self.add_weight(name="bias", shape=(self.units,), initializer="zeros")

    def call(self, inputs: Any, training: bool = False) -> Any:
        return ops.matmul(inputs, self.normalised_kernel(training)) + self.bias

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units}


@keras.saving.register_keras_serializable("hvdgan")
class SpectralEmbedding(Spectral):
    """A vector for each class, (B,) int32 in [0, num_classes) to (B, units).

    Args:
        num_classes: number of classes.
        units: length of the vector of a class.
    """

    def __init__(self, num_classes: int, units: int, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.num_classes = num_classes
        self.units = units

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.add_kernel((self.num_classes, self.units))

    def call(self, inputs: Any, training: bool = False) -> Any:
        # A matrix product instead of a lookup, whose gradient would be sparse; the ranks exchange dense ones.
        chosen = ops.one_hot(inputs, self.num_classes, dtype=self.compute_dtype)
        return ops.matmul(chosen, self.normalised_kernel(training))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_classes": self.num_classes, "units": self.units}


def _unit(vector: Any) -> Any:
    return vector / (ops.norm(vector) + _EPSILON)
