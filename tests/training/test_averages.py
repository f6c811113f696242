"""Averages over time follow the weights, and ignore updates that are not finite."""

import numpy as np
import pytest
import tensorflow as tf

from building import changed, data_of, stage_step, tiny_run, values_of
from tiny import Tiny, TinyOptions


class ExplodingGenerator(Tiny):
    """A loss that is not finite in the third step."""

    def fool(self, nets, batch):
        loss, metrics = super().fool(nets, batch)
        return loss * tf.where(tf.equal(batch.random.step, 2), tf.constant(float("nan")), 1.0), metrics


@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_update_that_is_not_finite_leaves_the_averages(accumulate):
    run = tiny_run(ExplodingGenerator, options=TinyOptions(norm="batch"), accumulate=accumulate)
    step = stage_step(run)
    for number in range(3):
        before = values_of(run)
        _, finite = step(number, number, data_of(run))
        averages = [name for name in changed(before, values_of(run)) if name.startswith("ema/generator/")]
        assert bool(averages) == bool(finite["fool"]) == (number < 2)


def test_the_moving_average_follows_the_weights():
    run = tiny_run(ema_decay=0.5)
    step = stage_step(run)
    name = "generator/generator/dense/kernel"
    average = values_of(run)[f"ema/{name}"]
    np.testing.assert_array_equal(average, values_of(run)[f"networks/{name}"])
    for number in range(12):
        step(number, number, data_of(run, number))
        decay = min(0.5, (1 + number) / (10 + number))
        average = decay * average + (1 - decay) * values_of(run)[f"networks/{name}"]
    np.testing.assert_allclose(values_of(run)[f"ema/{name}"], average, rtol=1e-5, atol=1e-7)


def test_no_decay_keeps_no_average():
    assert not [name for name in values_of(tiny_run(ema_decay=0.0)) if name.startswith("ema/")]
