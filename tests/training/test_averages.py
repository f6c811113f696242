"""Averages over time follow the weights, and ignore updates that are not finite."""

import dataclasses
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from building import changed, data_of, stage_step, tiny_run, values_of
from hvdgan.cli.config import Config
from hvdgan.cli.errors import UserError
from hvdgan.recipe import Stage
from hvdgan.training.averages import move_averages, share_of_images
from hvdgan.training.state import TrainState
from tiny import Tiny


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


class EverySecond(Tiny):
    """The generator is updated in every second step."""

    def stages(self):
        judge, fool = super().stages()[0].updates
        return [Stage("adversarial", self.options.steps, [judge, dataclasses.replace(fool, every=2)])]


def averaged(weight_at, images, **settings):
    """The average of one weight after a number of images; the weight is a function of the images seen."""
    network = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    average = keras.Variable([[weight_at(0)]], trainable=False)
    state = TrainState({"generator": network}, {}, {}, {"generator": [average]})
    config = Config(**settings)

    @tf.function
    def move(step):
        move_averages(state, {"generator": [tf.constant(True)]}, step, config)

    for step in range(images // config.global_batch_size):
        network.trainable_variables[0].assign([[weight_at((step + 1) * config.global_batch_size)]])
        move(tf.constant(step, tf.int64))
    return average.numpy().item()


def jump(images):
    """A weight that is 0 up to the 40,960th image, and 1 from then on."""
    return float(images > 40_960)


@pytest.mark.parametrize("batch_size", [8, 64])
def test_half_of_what_changed_is_in_the_average_after_the_half_life_at_any_batch_size(batch_size):
    """Early in a run the half-life is a twentieth of the images seen, so nothing of the initial weights stays."""
    after = averaged(jump, 40_960 + 3 * 1024, global_batch_size=batch_size, ema_half_life=1024)
    assert after == pytest.approx(1 - 0.5**3, abs=1e-4)
    after = averaged(jump, 45_056, global_batch_size=batch_size, ema_half_life=1e6)
    assert after == pytest.approx(1 - (40_960 / 45_056) ** (20 * math.log(2)), abs=0.006)
    share = share_of_images(tf.constant(10**8, tf.int64), 1e7, 4).numpy()  # no digits are lost in float32
    assert share == pytest.approx(4e-7 * math.log(2), rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "moves"), [({"ema_half_life": 16.0}, [False, True, True]), ({"ema_decay": 0.5}, [False, True, False])]
)
def test_with_a_half_life_the_average_moves_in_steps_without_an_update_too(settings, moves):
    """The generator is updated in the second step alone; before that the average equals the weights."""
    run = tiny_run(EverySecond, **settings)
    for number, expected in enumerate(moves):
        before = values_of(run)
        stage_step(run)(40 + number, number, data_of(run, number))
        assert ("ema/generator/generator/dense/kernel" in changed(before, values_of(run))) == expected


class NoAverage(Tiny):
    ema = ()


def test_a_half_life_for_a_recipe_without_averages_is_refused():
    with pytest.raises(UserError, match="--ema-half-life 1000: the recipe averages no network .* leave the flag out"):
        tiny_run(NoAverage, ema_half_life=1000.0)
