"""Calls of a function of tensors from a graph inside the one that is being traced."""

import tensorflow as tf


def within_cond(compute, inputs):
    return tf.cond(tf.reduce_sum(inputs) < 1e9, lambda: compute(inputs), lambda: 2.0 * compute(inputs))


def within_function(compute, inputs):
    return tf.function(lambda: compute(inputs), autograph=False)()


def within_loop(compute, inputs):
    """Call it twice, so that the statistics of an owned network move twice."""
    body = lambda turn, total: (turn + 1, total + compute(inputs))  # noqa: E731
    return tf.while_loop(lambda turn, _: turn < 2, body, (0, tf.constant(0.0)))[1]
