"""Layers with faster kernels than Keras' own, and equal to them but for the rounding.

On the CPU convolutions are partly matrix products (hvdgan/networks/convolution.py), and leaky ReLU's gradient, which
Eigen does not vectorise in bfloat16, is computed in float32. docs/performance.md has the measurements.
"""

from collections.abc import Iterable

import keras
import tensorflow as tf

from hvdgan.networks import convolution


def use_fast_layers(networks: Iterable[keras.Model]) -> None:
    """Let the convolutions and leaky ReLUs compute so; variables and names stay as they are.

    Where a GPU is in use convolutions stay Keras' own: cuDNN has good kernels for them.

    Args:
        networks: built; those nested in them count.
    """
    fast: dict[type, type] = {keras.layers.LeakyReLU: FastLeakyReLU}
    if not tf.config.get_visible_devices("GPU"):
        fast |= {keras.layers.Conv2D: FastConv2D, keras.layers.Conv2DTranspose: FastConv2DTranspose}
    for network in networks:
        for layer in network._flatten_layers(include_self=False, recursive=True):
            layer.__class__ = fast.get(type(layer), type(layer))


class FastConv2D(keras.layers.Conv2D):
    """Conv2D that is a matrix product where that is faster."""

    def convolution_op(self, inputs: tf.Tensor, kernel: keras.Variable) -> tf.Tensor:
        """As keras.layers.Conv2D.convolution_op."""
        outputs = self.compute_output_shape(inputs.shape)
        if not (_is_plain(self) and self.groups == 1 and convolution.pays(self.kernel.shape, outputs)):
            return super().convolution_op(inputs, kernel)
        return convolution.conv(inputs, tf.convert_to_tensor(kernel), self.strides, self.padding.upper())


class FastConv2DTranspose(keras.layers.Conv2DTranspose):
    """Conv2DTranspose that is a matrix product where that is faster."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """As keras.layers.Conv2DTranspose.call."""
        fits = _is_plain(self) and self.output_padding is None and convolution.pays(self.kernel.shape, inputs.shape)
        if not fits:
            return super().call(inputs)
        shape = self.compute_output_shape(inputs.shape)
        kernel = tf.convert_to_tensor(self.kernel)
        outputs = convolution.conv_transpose(inputs, kernel, tuple(shape), self.strides, self.padding.upper())
        if self.use_bias:
            outputs += tf.convert_to_tensor(self.bias)
        return outputs if self.activation is None else self.activation(outputs)


class FastLeakyReLU(keras.layers.LeakyReLU):
    """LeakyReLU whose gradient needs only its output, and is computed in float32 and rounded once on the CPU.

    The output has the sign of the input. TensorFlow's own gradient reads the input, which does not exist where the
    graph optimizer has fused a convolution, its bias and the leaky ReLU into one kernel: the optimizer's remapper then
    fails with an error message, and nothing is fused.
    """

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """As keras.layers.LeakyReLU.call."""
        slope = float(self.negative_slope)
        wide = inputs.dtype if tf.config.get_visible_devices("GPU") else tf.float32

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
