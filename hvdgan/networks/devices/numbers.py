"""Brings whole numbers that the host knows, such as the number of the step, to the device that computes.

TensorFlow copies a number to a GPU after all work that the GPU had been given before, and enqueues what needs it only
when it has arrived (CopyCPUTensorToGPU in its gpu_util.cc): the GPU would stand still at the start of each step. The
kernel of tf.range for GPUs takes its limits from the host as arguments of the launch, so a range of one number is that
number, without a copy.
"""

import tensorflow as tf

from hvdgan.networks.devices import device


def to_device(numbers: tf.Tensor) -> tf.Tensor:
    """Bring numbers to the device that computes, inside of a tf.function.

    Args:
        numbers: int64 in the host's memory, a scalar or (n,).

    Returns:
        The same numbers.
    """
    if not device.chosen().own_memory:
        return numbers
    with tf.device("cpu:0"):
        each = tf.unstack(tf.reshape(numbers, [-1]))
        # Away from the largest and the smallest number, whose neighbour int64 cannot hold.
        steps = [tf.where(one > 0, tf.constant(-1, tf.int64), tf.constant(1, tf.int64)) for one in each]
        limits = [one + step for one, step in zip(each, steps, strict=True)]
    found = tf.concat([tf.range(*one) for one in zip(each, limits, steps, strict=True)], 0)
    return tf.reshape(found, numbers.shape)
