"""Tapes and bundles; tests/parallel reduces them. Horovod copies the class of a tape, so it must carry the tape's data.

Modules: distributed.reduction.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hvdgan.distributed import reduction


@pytest.fixture
def tensors():
    shapes = [(3, 5), (7,), (512, 512), (2, 2, 3), (256, 300), ()]
    random = np.random.default_rng(0)
    wide = [tf.constant(random.normal(size=shape), tf.float32) for shape in shapes]
    return [*wide, tf.constant([1.0, 2.0], tf.float16), tf.constant([3.0], tf.float16)]


def copied(tape):
    """Another instance of the tape's class, as Horovod makes it."""
    return type("Copy", (type(tape),), {})()


def test_small_gradients_of_a_dtype_are_one_bundle_and_unbundling_reverses_it(tensors):
    assert reduction.bundles(tensors) == [[0, 1, 3, 5], [2], [4], [6, 7]]
    back = reduction.unbundle(reduction.bundle(tensors, tensors), tensors)
    for before, after in zip(tensors, back, strict=True):
        assert before.dtype == after.dtype
        np.testing.assert_array_equal(before, after)


def test_a_tape_of_bundles_gives_each_variable_its_gradient_and_one_of_gradients_these(tensors):
    variables = [keras.Variable(tensor).value for tensor in tensors[:6]]
    with tf.GradientTape() as tape:
        loss = tf.add_n([(place + 1.0) * tf.reduce_sum(each) for place, each in enumerate(variables)])
    bundled = copied(reduction.tape_of_bundles(tape, variables)).gradient(loss, variables[:1])
    for place, gradient in enumerate(reduction.unbundle(bundled, variables)):
        np.testing.assert_array_equal(gradient, np.full(variables[place].shape, place + 1.0))
    assert copied(reduction.tape_of_gradients(tensors)).gradient(tf.constant(0.0), tensors) is tensors


def test_an_owned_tape_counts_the_variables_that_the_loss_does_not_touch(tensors):
    variables = [keras.Variable(tensor).value for tensor in tensors[:3]]
    with reduction.OwnedTape() as tape:
        loss = tf.reduce_sum(variables[0])
    with pytest.raises(reduction.UntouchedVariables) as caught:
        tape.gradient(loss, variables)
    assert caught.value.indices == [1, 2]
