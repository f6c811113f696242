"""BatchNorm over two ranks has the statistics and gradients of the whole batch.

Modules: distributed.batch_norm.
"""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from building import tiny_run, trained
from hvdgan.distributed.batch_norm import SynchronisedBatchNormalization
from hvdgan.distributed.ranks import Ranks
from hvdgan.networks.nested_layers import change_classes
from tiny import TinyOptions


def _network():
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Conv2D(3, 3, name="conv"), keras.layers.BatchNormalization(name="norm")]
    inner = keras.Sequential([keras.Input((6, 6, 2)), *layers], name="inner")
    return keras.Sequential([keras.Input((6, 6, 2)), inner, keras.layers.Flatten(), keras.layers.Dense(1)])


def test_output_statistics_and_gradients_are_those_of_the_whole_batch(ranks):
    images = (np.random.default_rng(0).normal(size=(8, 6, 6, 2)) + 5.0).astype(np.float32)
    images[4:] *= 3  # the ranks' parts are unlike each other
    synchronised, plain = _network(), _network()
    (norm,) = change_classes([synchronised], {keras.layers.BatchNormalization: SynchronisedBatchNormalization})
    norm.set_ranks(ranks, 1.0)

    def loss_and_gradients(network, part):
        variables = [variable.value for variable in network.trainable_variables]
        with tf.GradientTape() as tape:
            output = network(part, training=True)
            loss = tf.reduce_mean(tf.square(output - 1.0))
        return output, tape.gradient(loss, variables)

    mine = slice(4 * ranks.rank, 4 * ranks.rank + 4)
    output, gradients = tf.function(lambda: loss_and_gradients(synchronised, tf.constant(images[mine])))()
    expected, whole = tf.function(lambda: loss_and_gradients(plain, tf.constant(images)))()
    np.testing.assert_allclose(output, expected[mine], rtol=1e-4, atol=1e-5)
    for gradient, reference in zip(gradients, whole, strict=True):
        reduced = ranks.stack(gradient.numpy()).mean(axis=0)
        np.testing.assert_allclose(reduced, reference, rtol=1e-3, atol=1e-5 * np.abs(reference).max() + 1e-6)
    for own, reference in zip(synchronised.non_trainable_variables, plain.non_trainable_variables, strict=True):
        np.testing.assert_allclose(own.numpy(), reference.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("batch_size", "slice_unit"), [(16, 0), (13, 1)])
def test_two_ranks_with_batch_norm_compute_what_one_computes(ranks, batch_size, slice_unit):
    settings = {"options": TinyOptions(norm="batch", steps=20), "sync_batch_norm": True}
    together, single = (
        trained(tiny_run(ranks=these, global_batch_size=batch_size, **settings))
        for these in (dataclasses.replace(ranks, slice_unit=slice_unit), Ranks())
    )
    for name in single:
        if name.startswith(("networks/", "ema/")):
            # A bias before BatchNorm has a gradient of zero, and Adam makes steps of its rounding: hence the 1e-3.
            # Without synchronisation the kernels differ by 0.07 and more.
            assert np.linalg.norm(together[name] - single[name]) <= 1e-4 * np.linalg.norm(single[name]) + 1e-3, name
    everyones = ranks.gather({name: value.tobytes().hex() for name, value in together.items()}, "state")
    assert everyones[0] == everyones[1]
