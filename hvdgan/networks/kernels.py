"""Layers and optimizers that compute what Keras' own compute, but for the rounding, with faster kernels.

BatchNorm and Adam use single kernels of TensorFlow where Keras 3 puts many small operations together. On CPUs the
gradient of leaky ReLU is computed in float32, and the innermost convolutions of a GAN are matrix products: if an image
has few positions and a filter has many weights, a product of the image's patches with the weights takes half the time
of oneDNN's kernels, and its gradients too. hvdgan/networks/cpu_or_gpu.py chooses by the device; docs/performance.md has
the measurements. Images are (B, H, W, C), kernels (rows, columns, C, C'), with C on the side of higher resolution.

The kernels rest on parts of Keras that are not public, so a version newer than those of the tests gets Keras' own.
"""

import math
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvdgan.launching.launched import warn_once
from hvdgan.networks import cpu_or_gpu
from hvdgan.networks.layers import change_class, change_classes

NEWEST_TESTED = {"Keras": (3, 15), "TensorFlow": (2, 21)}
"""newest versions that the tests have run with; launch/constraints*.txt pin them"""


class FusedBatchNormalization(keras.layers.BatchNormalization):
    """BatchNorm that uses TensorFlow's fused kernel for images in training, and is Keras' own in all other cases."""

    def call(self, inputs: tf.Tensor, training: bool | None = None, mask: Any = None) -> tf.Tensor:
        """As keras.layers.BatchNormalization.call; (B, H, W, C)."""
        fits = len(inputs.shape) == 4 and self.axis in (3, -1) and mask is None and not getattr(self, "renorm", False)
        if not (training and self.trainable and fits and self.variable_dtype == "float32"):
            return super().call(inputs, training=training, mask=mask)
        channels = inputs.shape[-1]
        gamma = tf.cast(self.gamma, tf.float32) if self.scale else tf.ones((channels,))
        beta = tf.cast(self.beta, tf.float32) if self.center else tf.zeros((channels,))
        outputs, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=inputs,
            scale=gamma,
            offset=beta,
            mean=tf.zeros((0,)),
            variance=tf.zeros((0,)),
            epsilon=self.epsilon,
            is_training=True,
        )
        # The kernel returns the unbiased variance, and Keras averages the biased one over time.
        count = tf.cast(tf.reduce_prod(tf.shape(inputs)[:-1]), tf.float32)
        variance *= (count - 1.0) / count
        for moving, value in ((self.moving_mean, mean), (self.moving_variance, variance)):
            moving.assign(moving * self.momentum + value * (1.0 - self.momentum))
        return tf.cast(outputs, self.compute_dtype)


class FusedAdam(keras.optimizers.Adam):
    """Adam that updates each variable with a single kernel of TensorFlow.

    Reference: Kingma and Ba 2015, the form before section 2.1.
    """

    applies: tf.Tensor | None = None
    """in a graph that may skip its step: whether it is made; a skipped step leaves weights and moments as they are"""
    _shared: tuple[tf.Tensor, ...] | None = None
    """the numbers of one apply()"""

    def leaves_alone(self, variables: Iterable[keras.Variable]) -> bool:
        """Whether a skipped step changes none of these variables and no moment."""
        others = self.weight_decay or self.use_ema or self.gradient_accumulation_steps
        return not others and all(variable.constraint is None for variable in variables)

    def moments(self) -> list[keras.Variable]:
        """The moving means of the gradients and of their squares."""
        return [*self._momentums, *self._velocities]

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """As keras.optimizers.Adam.apply."""
        try:
            super().apply(grads, trainable_variables)
        finally:
            self._shared = None

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        """As keras.optimizers.Adam.update_step."""
        # Not public, as are the moments below; tests/networks/test_kernels.py compares the steps with Keras' Adam.
        index = self._get_variable_index(variable)
        dtype, gradient = variable.dtype, tf.cast(gradient, variable.dtype)
        # Made once for all variables: on a GPU each of these numbers is a kernel, which the host has to start.
        if self._shared is None or self._shared[0].dtype != dtype:
            self._shared = self._numbers(dtype, learning_rate)
        if self.applies is not None:
            gradient = tf.where(self.applies, gradient, tf.constant(0, dtype))
        beta1_power, beta2_power, rate, beta_1, beta_2 = self._shared
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].value.handle,  # tests/networks/test_kernels.py
            v=self._velocities[index].value.handle,  # tests/networks/test_kernels.py
            beta1_power=beta1_power,
            beta2_power=beta2_power,
            lr=rate,
            beta1=beta_1,
            beta2=beta_2,
            epsilon=tf.constant(self.epsilon, dtype),
            grad=gradient,
        )

    def _numbers(self, dtype: tf.DType, learning_rate: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """The powers of both decays, the learning rate and the decays."""
        done, betas = tf.cast(self.iterations + 1, dtype), (self.beta_1, self.beta_2)
        # They are tensors in an update with schedules of them.
        beta_1, beta_2 = (tf.cast(b, dtype) if tf.is_tensor(b) else tf.constant(b, dtype) for b in betas)
        powers, rate = [tf.pow(beta, done) for beta in (beta_1, beta_2)], tf.cast(learning_rate, dtype)
        if self.applies is not None:
            rate = tf.where(self.applies, rate, tf.constant(0, dtype))
            beta_1, beta_2 = (tf.where(self.applies, beta, tf.constant(1, dtype)) for beta in (beta_1, beta_2))
        return *powers, rate, beta_1, beta_2


class _FastGroups(keras.layers.Layer):
    """A convolution in groups, which Keras compiles with XLA, as one of each channel or as a few plain convolutions."""

    def convolution_op(self, inputs: tf.Tensor, kernel: keras.Variable) -> tf.Tensor:
        """As that of keras.layers.Conv1D, Conv2D and Conv3D."""
        if self.groups == 1 or self.data_format != "channels_last":
            return super().convolution_op(inputs, kernel)
        inputs, kernel, padding = tf.convert_to_tensor(inputs), tf.convert_to_tensor(kernel), self.padding
        if padding == "causal":
            inputs, padding = tf.pad(inputs, self._compute_causal_padding()), "valid"
        how = {"strides": self.strides, "padding": padding, "dilation_rate": self.dilation_rate}
        *window, channels, filters = kernel.shape
        filters //= self.groups
        if channels == 1 and len(window) < 3 and len({*self.strides}) == 1:
            return keras.ops.depthwise_conv(inputs, tf.reshape(kernel, (*window, self.groups, filters)), **how)
        # A kernel with zeros joins some groups to a plain convolution, of which few are faster than many narrow ones.
        fits = range(1, max(JOINED_CHANNELS // channels, 1) + 1)
        joined = max(count for count in fits if self.groups % count == 0)
        shape = (*window, channels, self.groups // joined, joined, filters)
        own = tf.eye(joined, dtype=kernel.dtype)[:, None, None, :, None]
        kernels = tf.reshape(tf.expand_dims(tf.reshape(kernel, shape), -5) * own, (*window, joined * channels, -1))
        parts = zip(*(tf.split(each, self.groups // joined, axis=-1) for each in (inputs, kernels)), strict=True)
        return tf.concat([keras.ops.conv(*each, **how) for each in parts], axis=-1)


class FastConv1D(_FastGroups, keras.layers.Conv1D):
    """Conv1D with fast groups."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """As keras.layers.Conv1D.call, which does not call convolution_op(); that of its base class does."""
        return super().call(inputs) if self.groups == 1 else super(keras.layers.Conv1D, self).call(inputs)


class FastConv3D(_FastGroups, keras.layers.Conv3D):
    """Conv3D with fast groups."""


class FastConv2D(_FastGroups, keras.layers.Conv2D):
    """Conv2D that is a matrix product if that is faster, and has fast groups."""

    def convolution_op(self, inputs: tf.Tensor, kernel: keras.Variable) -> tf.Tensor:
        """As keras.layers.Conv2D.convolution_op."""
        outputs = self.compute_output_shape(inputs.shape)
        if not (_is_plain(self) and self.groups == 1 and pays(self.kernel.shape, outputs)):
            return super().convolution_op(inputs, kernel)
        return conv(inputs, tf.convert_to_tensor(kernel), self.strides, self.padding.upper())


class FastConv2DTranspose(keras.layers.Conv2DTranspose):
    """Conv2DTranspose that is a matrix product if that is faster."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """As keras.layers.Conv2DTranspose.call."""
        fits = _is_plain(self) and self.output_padding is None and pays(self.kernel.shape, inputs.shape)
        if not fits:
            return super().call(inputs)
        shape = self.compute_output_shape(inputs.shape)
        kernel = tf.convert_to_tensor(self.kernel)
        outputs = conv_transpose(inputs, kernel, tuple(shape), self.strides, self.padding.upper())
        if self.use_bias:
            outputs += tf.convert_to_tensor(self.bias)
        return outputs if self.activation is None else self.activation(outputs)


class FastLeakyReLU(keras.layers.LeakyReLU):
    """LeakyReLU whose gradient needs only its output, and is computed in float32 and rounded once on CPUs.

    The output has the sign of the input. TensorFlow's own gradient reads the input, which does not exist if the graph
    optimizer has fused a convolution, its bias and the leaky ReLU into one kernel: the optimizer's remapper then fails
    with an error message, and nothing is fused.
    """

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """As keras.layers.LeakyReLU.call."""
        slope = float(self.negative_slope)
        wide = tf.float32 if cpu_or_gpu.chosen().wide_slopes and inputs.dtype != tf.float64 else inputs.dtype

        @tf.custom_gradient
        def leaky(x: tf.Tensor) -> tuple[tf.Tensor, object]:
            y = tf.nn.leaky_relu(x, slope)

            def backward(gradient: tf.Tensor) -> tf.Tensor:
                gradients, features = tf.cast(gradient, wide), tf.cast(y, wide)
                return tf.cast(tf.raw_ops.LeakyReluGrad(gradients=gradients, features=features, alpha=slope), x.dtype)

            return y, backward

        return leaky(inputs)


def _is_plain(layer: keras.layers.Conv2D | keras.layers.Conv2DTranspose) -> bool:
    return (
        layer.data_format == "channels_last" and layer.padding in ("same", "valid") and set(layer.dilation_rate) == {1}
    )


def use_fast_kernels(networks: Iterable[keras.Model], optimizers: Iterable[keras.optimizers.Optimizer]) -> None:
    """Let layers and Adam compute with these kernels; the variables and names of what is built stay as they are."""
    versions = {"Keras": keras.__version__, "TensorFlow": tf.__version__}
    series = {name: tuple(map(int, version.split(".")[:2])) for name, version in versions.items()}
    if newer := [f"{name} {versions[name]}" for name in versions if series[name] > NEWEST_TESTED[name]]:
        warn_once(f"hvdgan's fast kernels were not tested with {' and '.join(newer)}; Keras' slower ones are used")
        return
    fast: dict[type, type] = {
        keras.layers.BatchNormalization: FusedBatchNormalization,
        keras.layers.LeakyReLU: FastLeakyReLU,
    }
    if cpu_or_gpu.chosen().products:
        fast |= {keras.layers.Conv1D: FastConv1D, keras.layers.Conv2D: FastConv2D, keras.layers.Conv3D: FastConv3D}
        fast |= {keras.layers.Conv2DTranspose: FastConv2DTranspose}
    change_classes(networks, fast)
    for optimizer in optimizers:
        if type(optimizer) is keras.optimizers.Adam and not optimizer.amsgrad:
            change_class(optimizer, FusedAdam)


def choose_remapper(graphs: Iterable[Iterable[tf.Operation]]) -> None:
    """Switch TensorFlow's remapper off if it would fail on the operations of one of these graphs; otherwise on.

    It fuses a convolution, its bias and a leaky ReLU into one kernel, and fails if the gradient of the leaky ReLU reads
    the biased convolution: nothing is fused, and every rank prints an error. FastLeakyReLU's gradient reads the output;
    those of tf.nn.leaky_relu and of the activation "leaky_relu" read the input. A fused kernel rounds otherwise, so a
    run may not depend on what its process computed before.
    """
    every = (each for operations in graphs for each in operations)
    fails = any(each.type == "LeakyReluGrad" and each.inputs[1].op.type == "BiasAdd" for each in every)
    tf.config.optimizer.set_experimental_options({"remapping": not fails})


JOINED_CHANNELS = 32
"""most channels of groups that are joined to one convolution"""
FEW_POSITIONS = 16
"""most positions of the image with the lower resolution for which the product is faster ..."""
WEIGHTS_PER_POSITION = 256
"""... if the filter has at least this number of weights per position of the batch"""
WEIGHTS_PER_POSITION_FILTER = 2048
"""least number of weights per position of the batch for which the filter gradient alone is faster as a product"""


def pays(kernel: tuple[int, ...], small: tuple[int | None, ...]) -> bool:
    """Whether a part of the convolution is faster as a product; `small` is the shape of the lower resolution."""
    return _is_innermost(kernel, small) or _weights_per_position(kernel, small) >= WEIGHTS_PER_POSITION_FILTER


def conv(images: tf.Tensor, kernel: tf.Tensor, strides: tuple[int, int], padding: str) -> tf.Tensor:
    """Compute tf.nn.conv2d; the shape of the images must be known, and padding is SAME or VALID."""

    @tf.custom_gradient
    def convolve(images: tf.Tensor, kernel: tf.Tensor) -> tuple[tf.Tensor, object]:
        def backward(gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            inputs = conv_transpose(gradient, kernel, tuple(images.shape), strides, padding)
            return inputs, _filter_gradient(images, gradient, kernel.shape, strides, padding)

        places = _places(images.shape, kernel.shape, strides, padding)
        small = (images.shape[0], *places.shape[:2])
        if not _is_innermost(kernel.shape, small):
            return tf.nn.conv2d(images, kernel, strides, padding), backward
        product = tf.matmul(_patches(images, places), tf.reshape(kernel, (-1, kernel.shape[-1])))
        return tf.reshape(product, (*small, kernel.shape[-1])), backward

    return convolve(images, kernel)


def conv_transpose(
    small: tf.Tensor, kernel: tf.Tensor, shape: tuple[int, ...], strides: tuple[int, int], padding: str
) -> tf.Tensor:
    """Compute tf.nn.conv2d_transpose, to images of the given shape; the shape of `small` must be known."""

    @tf.custom_gradient
    def convolve(small: tf.Tensor, kernel: tf.Tensor) -> tuple[tf.Tensor, object]:
        def backward(gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            inputs = conv(gradient, kernel, strides, padding)
            return inputs, _filter_gradient(gradient, small, kernel.shape, strides, padding)

        if not _is_innermost(kernel.shape, small.shape):
            return tf.nn.conv2d_transpose(small, kernel, shape, strides, padding), backward
        outer = kernel.shape[-1]
        product = tf.matmul(tf.reshape(small, (-1, outer)), tf.reshape(kernel, (-1, outer)), transpose_b=True)
        taps = _inverse(_places(shape, kernel.shape, strides, padding), shape[1] * shape[2])
        rows = tf.reshape(product, (shape[0], -1, shape[3]))
        return tf.reshape(tf.reduce_sum(_rows(rows, taps), axis=2), shape), backward

    return convolve(small, kernel)


def _filter_gradient(
    large: tf.Tensor, small: tf.Tensor, shape: tf.TensorShape, strides: tuple[int, int], padding: str
) -> tf.Tensor:
    """The gradient of a kernel of this shape, which convolves large (B, H, W, C) to small (B, H', W', C')."""
    patches = _patches(large, _places(large.shape, shape, strides, padding))
    return tf.reshape(tf.matmul(patches, tf.reshape(small, (-1, shape[-1])), transpose_a=True), shape)


def _is_innermost(kernel: tuple[int, ...], small: tuple[int | None, ...]) -> bool:
    height, width = small[1:3]
    few = height is not None and width is not None and height * width <= FEW_POSITIONS
    return few and _weights_per_position(kernel, small) >= WEIGHTS_PER_POSITION


def _weights_per_position(kernel: tuple[int, ...], small: tuple[int | None, ...]) -> float:
    """Weights of the filter per position of the batch; 0 if the shape is not known."""
    known = [size for size in small[:3] if size is not None]
    return math.prod(kernel) / math.prod(known) if len(known) == 3 else 0.0


def _places(shape: tuple[int, ...], kernel: tuple[int, ...], strides: tuple[int, int], padding: str) -> np.ndarray:
    """The position in large images, 0 to H * W - 1, that each tap reads, H * W outside; (H', W', rows, columns)."""
    seen = []
    for size, taps, stride in zip(shape[1:3], kernel[:2], strides, strict=True):
        count = -(-size // stride) if padding == "SAME" else (size - taps) // stride + 1
        before = max((count - 1) * stride + taps - size, 0) // 2 if padding == "SAME" else 0
        seen.append(np.arange(count)[:, None] * stride + np.arange(taps) - before)
    rows, columns = seen[0][:, None, :, None], seen[1][None, :, None, :]
    height, width = shape[1:3]
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    return np.where(inside, rows * width + columns, height * width)


def _inverse(places: np.ndarray, positions: int) -> np.ndarray:
    """For each position the taps that read it, as indices into the flattened places, padded with places.size."""
    taps = np.argsort(places, axis=None, kind="stable")
    seen = places.ravel()[taps]
    taps, seen = taps[seen < positions], seen[seen < positions]
    number = np.arange(len(seen)) - np.searchsorted(seen, seen)
    inverse = np.full((positions, number.max() + 1), places.size)
    inverse[seen, number] = taps
    return inverse


def _patches(images: tf.Tensor, places: np.ndarray) -> tf.Tensor:
    """The pixels that the taps read, one row per position: (B * H' * W', rows * columns * C)."""
    batch, height, width, channels = images.shape
    rows = _rows(tf.reshape(images, (batch, height * width, channels)), places.reshape(-1))
    return tf.reshape(rows, (-1, places.shape[2] * places.shape[3] * channels))


def _rows(values: tf.Tensor, numbers: np.ndarray) -> tf.Tensor:
    """Rows (B, *, C) of values (B, N, C) by their numbers (*); number N is a row of zeros."""
    if np.any(numbers == values.shape[1]):
        values = tf.pad(values, [[0, 0], [0, 1], [0, 0]])
    return tf.gather(values, tf.constant(numbers, tf.int32), axis=1)
