"""Single kernels of TensorFlow where Keras 3 puts many small operations together; they compute the same."""

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf


class FusedBatchNormalization(keras.layers.BatchNormalization):
    """BatchNorm of images in training by TensorFlow's fused kernel; everything else is Keras' own.

    The kernel returns the unbiased variance, and Keras averages the biased one over time: it is turned back.
    """

    def call(self, inputs: tf.Tensor, training: bool | None = None, mask: Any = None) -> tf.Tensor:
        """As keras.layers.BatchNormalization.call; (B, H, W, C)."""
        fits = len(inputs.shape) == 4 and self.axis in (3, -1) and mask is None and not getattr(self, "renorm", False)
        if not (training and self.trainable and fits):
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
        count = tf.cast(tf.reduce_prod(tf.shape(inputs)[:-1]), tf.float32)
        variance *= (count - 1.0) / count
        for moving, value in ((self.moving_mean, mean), (self.moving_variance, variance)):
            moving.assign(moving * self.momentum + value * (1.0 - self.momentum))
        return tf.cast(outputs, self.compute_dtype)


class FusedAdam(keras.optimizers.Adam):
    """Adam (Kingma and Ba 2015, the form before section 2.1) by TensorFlow's one kernel for a variable."""

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        """As keras.optimizers.Adam.update_step."""
        index = self._get_variable_index(variable)
        done = tf.cast(self.iterations + 1, variable.dtype)
        beta_1, beta_2 = (tf.constant(beta, variable.dtype) for beta in (self.beta_1, self.beta_2))
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            beta1_power=tf.pow(beta_1, done),
            beta2_power=tf.pow(beta_2, done),
            lr=tf.cast(learning_rate, variable.dtype),
            beta1=beta_1,
            beta2=beta_2,
            epsilon=tf.constant(self.epsilon, variable.dtype),
            grad=tf.cast(gradient, variable.dtype),
        )


def use_fused_kernels(networks: Iterable[keras.Model], optimizers: Iterable[keras.optimizers.Optimizer]) -> None:
    """Let the layers and optimizers that have a fused kernel compute with it; variables and names stay as they are.

    Args:
        networks: built; those nested in them count.
        optimizers: of any kind.
    """
    for network in networks:
        for layer in network._flatten_layers(include_self=False, recursive=True):
            if type(layer) is keras.layers.BatchNormalization:
                layer.__class__ = FusedBatchNormalization
    for optimizer in optimizers:
        if type(optimizer) is keras.optimizers.Adam and not optimizer.amsgrad:
            optimizer.__class__ = FusedAdam
