"""Adds three tensors or more in one order, so that a run and its resume have the same bits."""

import functools
from collections.abc import Sequence

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import backprop


def fix_order() -> None:
    """Let this process add three tensors or more one after the other, in every tape and every graph from now on.

    TensorFlow's AddN begins with the first tensor whose buffer no other operation needs any more. Which one that is
    depends on the threads, so parallel branches had several results. Tapes add gradients with it, and TensorFlow's
    arithmetic optimizer puts it in place of sums of sums.
    """
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    pywrap_tfe.TFE_Py_RegisterVSpace(backprop._default_vspace._replace(aggregate_fn=_sum))


def _sum(gradients: Sequence[tf.Tensor | tf.IndexedSlices]) -> tf.Tensor | tf.IndexedSlices:
    # Lists of tensors, as recurrent networks have them, are variants: AddN alone adds these.
    if all(isinstance(each, tf.Tensor) and each.dtype != tf.variant for each in gradients):
        return functools.reduce(tf.add, gradients)
    return backprop._aggregate_grads(gradients)
