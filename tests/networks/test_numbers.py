"""Whole numbers reach another device as they are, by the kernel of tf.range, which is tried on the CPU."""

import tensorflow as tf

from hvdgan.networks import device
from hvdgan.networks.device import to_device
from hvdgan.training.repeatable import operations

NUMBERS = [0, 1, -1, 7, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63)]


def test_the_numbers_are_the_same():
    for numbers in (NUMBERS, *NUMBERS):
        given = tf.constant(numbers, tf.int64)
        with device.computing_as(device.GPU):
            traced = tf.function(to_device, autograph=False).get_concrete_function(given)
        assert traced(given).numpy().tolist() == given.numpy().tolist()
        assert "Range" in {chain[-1].type for chain, _ in operations(traced.graph)}
