"""The tapes that Horovod's tape wraps: it copies their class, so each must carry its data in that class."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hvdgan.distributed import bundling
from hvdgan.distributed.tapes import OwnedTape, UntouchedVariables, tape_of_bundles, tape_of_gradients


@pytest.fixture
def variables():
    random = np.random.default_rng(0)
    shapes = [(3, 5), (7,), (512, 512), ()]
    return [keras.Variable(random.normal(size=shape).astype(np.float32)).value for shape in shapes]


def copied(tape):
    """Another instance of the tape's class, as Horovod makes it."""
    return type("Copy", (type(tape),), {})()


def test_a_tape_of_bundles_gives_each_variable_its_gradient(variables):
    with tf.GradientTape() as tape:
        loss = tf.add_n([(place + 1.0) * tf.reduce_sum(each) for place, each in enumerate(variables)])
    bundled = copied(tape_of_bundles(tape, variables)).gradient(loss, variables[:1])
    for place, gradient in enumerate(bundling.unbundle(bundled, variables)):
        np.testing.assert_array_equal(gradient, np.full(variables[place].shape, place + 1.0))


def test_a_tape_of_gradients_returns_them(variables):
    gradients = [tf.ones_like(variable) for variable in variables]
    assert copied(tape_of_gradients(gradients)).gradient(tf.constant(0.0), variables) is gradients


def test_an_owned_tape_counts_the_variables_that_the_loss_does_not_touch(variables):
    with OwnedTape() as tape:
        loss = tf.reduce_sum(variables[0])
    with pytest.raises(UntouchedVariables) as caught:
        tape.gradient(loss, variables[:3])
    assert caught.value.places == [1, 2]
