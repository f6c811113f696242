"""Adds the gradients of a tensor with several uses in one order, so that a run and its resume have the same bits."""

import functools
from collections.abc import Sequence

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import backprop


def fix_order() -> None:
    """Let every tape of this process add three gradients or more one after the other.

    TensorFlow's AddN begins with the first gradient whose buffer no other operation needs any more. Which one that is
    depends on the threads, so parallel branches had several results.
    """
    pywrap_tfe.TFE_Py_RegisterVSpace(backprop._default_vspace._replace(aggregate_fn=_sum))


def _sum(gradients: Sequence[tf.Tensor | tf.IndexedSlices]) -> tf.Tensor | tf.IndexedSlices:
    # Lists of tensors, as recurrent networks have them, are variants: AddN alone adds these.
    if len(gradients) < 3 or not all(isinstance(each, tf.Tensor) and each.dtype != tf.variant for each in gradients):
        return backprop._aggregate_grads(gradients)
    first, second, *others = gradients
    # TensorFlow's graph optimizer makes an AddN of sums of sums, but not across Snapshot, which copies nothing here.
    return functools.reduce(lambda left, right: tf.raw_ops.Snapshot(input=left) + right, others, first + second)


@tf.RegisterGradient("Snapshot")
def _gradient_of_snapshot(_: tf.Operation, gradient: tf.Tensor) -> tf.Tensor:
    """Gradients of gradients pass it, as those of penalties."""
    return gradient
