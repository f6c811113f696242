"""Chooses between kernels with the same results but for the rounding, by the kind of device that computes.

No other module decides a computation by the device. What is chosen for CPUs was measured there (docs/performance.md).
What is chosen for GPUs follows from how they compute. For DCGAN-64 on an H200 those that were measured change the rate
by less than its spread of 2 %, because the host is the limit there (docs/results.md); products and blurs were not.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Choice:
    """Kernels for one kind of device."""

    products: bool
    """whether the innermost convolutions, and gradients of large filters, are matrix products of patches; oneDNN needs
    up to three times as long for them, and cuDNN has kernels for them, of which it tries several"""
    wide_slopes: bool
    """whether the gradient of leaky ReLU is computed in float32; Eigen does not vectorise it in bfloat16, and a GPU
    would only move more bytes"""
    blurs_apart: bool
    """whether the blur of StyleGAN2's changes of resolution is a convolution of its own, per channel, instead of a part
    of a larger kernel. The larger kernel needs four times the products of a 3x3 kernel and no pass over the images; a
    CPU waits for memory in such a pass, and a GPU for the products in all layers with 64 channels or more"""
    branches: bool
    """whether an update that is not finite is skipped by a branch, which costs nothing on a CPU. A GPU would stop until
    the host knows which way to go, so there Adam makes a step that changes nothing, and what other optimizers have
    changed gets its old values back, at the price of a copy"""
    own_memory: bool
    """whether the device has a memory of its own. A GPU would stand still until TensorFlow has copied a number of the
    host's in a step, so these reach it as arguments of a kernel (to_device()), and labels with the images. The host
    waits for each number that it reads, so it reads many metrics together"""
    steps_behind: int
    """steps that may begin before it must be known whether the updates of one were finite. On a GPU a step has begun
    when its kernels are queued, and to wait for the newest would empty the queue. On a CPU a step has ended when its
    function returns"""


CPU = Choice(products=True, wide_slopes=True, blurs_apart=False, branches=True, own_memory=False, steps_behind=1)
GPU = Choice(products=False, wide_slopes=False, blurs_apart=True, branches=False, own_memory=True, steps_behind=4)

_given: contextvars.ContextVar[Choice | None] = contextvars.ContextVar("given", default=None)


def chosen() -> Choice:
    """The kernels for the device that this process computes on: a GPU if TensorFlow may use one, else the CPU."""
    return _given.get() or (GPU if tf.config.get_visible_devices("GPU") else CPU)


@contextlib.contextmanager
def computing_as(choice: Choice) -> Iterator[None]:
    """Build and trace as on another kind of device, for instance to look at the graphs for GPUs without one."""
    token = _given.set(choice)
    try:
        yield
    finally:
        _given.reset(token)


def to_device(numbers: tf.Tensor) -> tf.Tensor:
    """Bring int64 numbers that the host knows, as that of the step, to the device that computes, in a tf.function.

    TensorFlow copies a number to a GPU after all work that the GPU had been given before, and enqueues what needs it
    only when it has arrived (CopyCPUTensorToGPU in its gpu_util.cc): the GPU would stand still at the start of each
    step. The kernel of tf.range for GPUs takes its limits from the host as arguments of the launch, so a range of one
    number is that number, without a copy.
    """
    if not chosen().own_memory:
        return numbers
    with tf.device("cpu:0"):
        each = tf.unstack(tf.reshape(numbers, [-1]))
        # Away from the largest and the smallest number, whose neighbour int64 cannot hold.
        steps = [tf.where(one > 0, tf.constant(-1, tf.int64), tf.constant(1, tf.int64)) for one in each]
        limits = [one + step for one, step in zip(each, steps, strict=True)]
    found = tf.concat([tf.range(*one) for one in zip(each, limits, steps, strict=True)], 0)
    return tf.reshape(found, numbers.shape)
