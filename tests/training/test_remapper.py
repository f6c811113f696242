"""TensorFlow's remapper fails on no recipe, and is switched off only where it would."""

import keras
import pytest
import tensorflow as tf
from keras import layers

from building import data_of, stage_step, tiny_run
from tiny import Tiny


@pytest.fixture(autouse=True)
def _as_before():
    tf.config.optimizer.set_experimental_options({"remapping": True})  # other tests of this process may switch it off
    yield
    tf.config.optimizer.set_experimental_options({"remapping": True})


def _remaps():
    return tf.config.optimizer.get_experimental_options().get("remapping", True)


class Convolutional(Tiny):
    """A discriminator of convolutions whose activation is given by its name."""

    activation = "leaky_relu"

    def networks(self):
        pixels = (self.data.image_size, self.data.image_size, self.data.channels)
        convolutions = [layers.Conv2D(filters, 3, padding="same", activation=self.activation) for filters in (4, 8)]
        discriminator = keras.Sequential([keras.Input(pixels), *convolutions, layers.Flatten(), layers.Dense(1)])
        return {**super().networks(), "discriminator": discriminator}


class WithRelu(Convolutional):
    """The same with an activation whose gradient reads its output."""

    activation = "relu"


def test_a_leaky_relu_that_is_no_layer_passes_the_graph_optimizer(capfd):
    run = tiny_run(Convolutional, accumulate=2)
    stage_step(run)(0, 0, data_of(run))
    assert not _remaps()
    assert "remapper failed" not in capfd.readouterr().err


def test_the_remapper_stays_on_for_other_recipes(capfd):
    run = tiny_run(WithRelu)
    stage_step(run)(0, 0, data_of(run))
    assert _remaps()
    assert "remapper failed" not in capfd.readouterr().err
