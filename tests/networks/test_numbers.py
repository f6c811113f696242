"""Whole numbers reach another device as they are, by the kernel of tf.range, which is tried on the CPU."""

import pytest
import tensorflow as tf

from hvdgan.networks.devices import device
from hvdgan.networks.devices.device import to_device
from hvdgan.recipe.draws import Random
from hvdgan.training.repeatable import operations

NUMBERS = [0, 1, -1, 7, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63)]


def on(kind, function, *arguments):
    """The result of a function that is traced for a kind of device, and the types of its operations."""
    with device.computing_as(kind):
        traced = tf.function(function, autograph=False).get_concrete_function(*arguments)
    return traced(*arguments).numpy(), {chain[-1].type for chain, _ in operations(traced.graph)}


@pytest.mark.parametrize("numbers", [NUMBERS, *NUMBERS])
def test_the_numbers_are_the_same(numbers):
    given = tf.constant(numbers, tf.int64)
    found, used = on(device.GPU, to_device, given)
    assert found.tolist() == given.numpy().tolist() and "Range" in used
    assert "Range" not in on(device.CPU, to_device, given)[1]


@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_draws_by_such_numbers_are_those_of_the_cpu(kind):
    def drawn(step):
        return getattr(Random(3, step, 5, 7, to_device=to_device), kind)("latents", (3,))

    for step in (0, 1, 12_345):
        of_gpu, of_cpu = (on(each, drawn, tf.constant(step, tf.int64))[0] for each in (device.GPU, device.CPU))
        assert of_gpu.tobytes() == of_cpu.tobytes()
