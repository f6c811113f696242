"""Gradients that are faster on the CPU than TensorFlow's own, and equal to them but for the rounding.

oneDNN's filter gradient is slow where a filter has many more weights than the images have positions, as in the
innermost layers of a GAN: there a matrix product over patches takes a third of its time in bfloat16. Eigen's gradient
of leaky ReLU is not vectorised in bfloat16. docs/performance.md has the measurements.
"""

from collections.abc import Iterable

import keras
import tensorflow as tf

_WEIGHTS_PER_POSITION = 2048
"""from here on the matrix product was the faster one"""


def use_fast_gradients(networks: Iterable[keras.Model]) -> None:
    """Let the convolutions and leaky ReLUs compute their gradients so; variables, names and outputs stay as they are.

    Where a GPU is in use nothing is changed: cuDNN has good kernels for all of these.

    Args:
        networks: built; those nested in them count.
    """
    if tf.config.get_visible_devices("GPU"):
        return
    fast = {
        keras.layers.Conv2D: FastConv2D,
        keras.layers.Conv2DTranspose: FastConv2DTranspose,
        keras.layers.LeakyReLU: FastLeakyReLU,
    }
    for network in networks:
        for layer in network._flatten_layers(include_self=False, recursive=True):
            layer.__class__ = fast.get(type(layer), type(layer))


class FastConv2D(keras.layers.Conv2D):
    """Conv2D whose filter gradient is a matrix product where that is faster."""

    def convolution_op(self, inputs: tf.Tensor, kernel: keras.Variable) -> tf.Tensor:
        """As keras.layers.Conv2D.convolution_op."""
        outputs = self.compute_output_shape(inputs.shape)
        if not (_is_plain(self) and self.groups == 1 and _pays(self.kernel.shape, outputs)):
            return super().convolution_op(inputs, kernel)
        return _conv(inputs, tf.convert_to_tensor(kernel), self.strides, self.padding.upper())


class FastConv2DTranspose(keras.layers.Conv2DTranspose):
    """Conv2DTranspose whose filter gradient is a matrix product where that is faster."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """As keras.layers.Conv2DTranspose.call."""
        fits = _is_plain(self) and self.output_padding is None and _pays(self.kernel.shape, inputs.shape)
        if not fits:
            return super().call(inputs)
        shape = self.compute_output_shape(inputs.shape)
        kernel = tf.convert_to_tensor(self.kernel)
        outputs = _conv_transpose(inputs, kernel, tuple(shape), self.strides, self.padding.upper())
        if self.use_bias:
            outputs += tf.convert_to_tensor(self.bias)
        return outputs if self.activation is None else self.activation(outputs)


class FastLeakyReLU(keras.layers.LeakyReLU):
    """LeakyReLU whose gradient is computed in float32 and rounded once."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """As keras.layers.LeakyReLU.call."""
        if inputs.dtype not in (tf.bfloat16, tf.float16):
            return super().call(inputs)
        slope = float(self.negative_slope)

        @tf.custom_gradient
        def leaky(x: tf.Tensor) -> tuple[tf.Tensor, object]:
            def backward(gradient: tf.Tensor) -> tf.Tensor:
                wide = tf.raw_ops.LeakyReluGrad(
                    gradients=tf.cast(gradient, tf.float32), features=tf.cast(x, tf.float32), alpha=slope
                )
                return tf.cast(wide, x.dtype)

            return tf.nn.leaky_relu(x, slope), backward

        return leaky(inputs)


def _is_plain(layer: keras.layers.Conv2D | keras.layers.Conv2DTranspose) -> bool:
    return (
        layer.data_format == "channels_last" and layer.padding in ("same", "valid") and set(layer.dilation_rate) == {1}
    )


def _pays(kernel: tuple[int, ...], small: tuple[int | None, ...]) -> bool:
    """Whether the product is faster: kernel (H, W, C, C'); small (B, H, W, C), the side of lower resolution."""
    batch, height, width = small[:3]
    if batch is None or height is None or width is None:
        return False
    rows, columns, inner, outer = kernel
    return rows * columns * inner * outer >= _WEIGHTS_PER_POSITION * batch * height * width


def _conv(images: tf.Tensor, kernel: tf.Tensor, strides: tuple[int, int], padding: str) -> tf.Tensor:
    """tf.nn.conv2d; its gradients may be differentiated again."""

    @tf.custom_gradient
    def conv(images: tf.Tensor, kernel: tf.Tensor) -> tuple[tf.Tensor, object]:
        def backward(gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            inputs = _conv_transpose(gradient, kernel, tuple(images.shape), strides, padding)
            return inputs, _filter_gradient(images, gradient, kernel.shape, strides, padding)

        return tf.nn.conv2d(images, kernel, strides, padding), backward

    return conv(images, kernel)


def _conv_transpose(
    small: tf.Tensor, kernel: tf.Tensor, shape: tuple[int, ...], strides: tuple[int, int], padding: str
) -> tf.Tensor:
    """tf.nn.conv2d_transpose to images of this shape; its gradients may be differentiated again."""

    @tf.custom_gradient
    def conv_transpose(small: tf.Tensor, kernel: tf.Tensor) -> tuple[tf.Tensor, object]:
        def backward(gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            inputs = _conv(gradient, kernel, strides, padding)
            return inputs, _filter_gradient(gradient, small, kernel.shape, strides, padding)

        return tf.nn.conv2d_transpose(small, kernel, shape, strides, padding), backward

    return conv_transpose(small, kernel)


def _filter_gradient(
    large: tf.Tensor, small: tf.Tensor, shape: tf.TensorShape, strides: tuple[int, int], padding: str
) -> tf.Tensor:
    """The gradient of a kernel of this shape that convolves large (B, H, W, C) to small (B, H', W', C')."""
    rows, columns, inner, outer = shape
    patches = tf.image.extract_patches(large, [1, rows, columns, 1], [1, *strides, 1], [1, 1, 1, 1], padding)
    product = tf.matmul(
        tf.reshape(patches, (-1, rows * columns * inner)), tf.reshape(small, (-1, outer)), transpose_a=True
    )
    return tf.reshape(product, shape)
