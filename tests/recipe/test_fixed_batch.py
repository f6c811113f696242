"""A network with a layer that is written for a number of samples trains with it, and is refused with others."""

import keras
import pytest
import tensorflow as tf
from keras import layers

from building import data_of, stage_step, tiny_run
from hvdgan.errors import UserError
from hvdgan.training.summary import as_if
from tiny import Tiny


class OfSixteen(layers.Layer):
    """Adds noise for 16 samples, as a sampling layer that is made with a batch size."""

    def call(self, inputs):
        return inputs + tf.linspace(0.0, 1.0, 16)[:, None]


class DrawnForSixteen(layers.Layer):
    """Draws noise for 16 samples, as the sampler of an encoder of styles."""

    def call(self, inputs):
        return inputs + keras.random.normal((16, inputs.shape[-1]))


class Fixed(Tiny):
    inner: tuple[type[layers.Layer], ...] = (OfSixteen,)

    def networks(self):
        parts = [keras.Input((8,), batch_size=16), *(each() for each in self.inner), layers.Dense(64)]
        return {**super().networks(), "generator": keras.Sequential([*parts, layers.Reshape((8, 8, 1))])}


class Trained(Fixed):
    """Its sample() does not call the network."""

    shows_data = True

    def sample(self, nets, batch):
        return batch.images


class Drawn(Trained):
    inner = (DrawnForSixteen,)


class OfAnyNumber(Fixed):
    """Only its Input has a batch size, which Keras does not hold it to."""

    inner = ()


@pytest.mark.parametrize(("recipe", "count"), [(Trained, 16), (Drawn, 16), (OfAnyNumber, 8)])
def test_a_network_trains_with_a_number_of_samples_that_it_can_take(recipe, count):
    run = tiny_run(recipe, global_batch_size=count)
    assert all(stage_step(run)(0, 0, data_of(run))[1])


@pytest.mark.parametrize(
    ("recipe", "settings", "count"),
    [
        (Trained, {"global_batch_size": 8}, 8),
        (Trained, {"global_batch_size": 1}, 1),  # which TensorFlow broadcasts
        (Drawn, {"global_batch_size": 1}, 1),
        (Trained, {"accumulate": 2}, 8),
        (Fixed, {}, 64),
    ],
)
def test_other_numbers_are_refused_by_the_networks_name(recipe, settings, count):
    with pytest.raises(UserError, match=f"network generator always gives 16 samples, and is called with {count}; let"):
        tiny_run(recipe, **settings)


def test_a_dry_run_as_if_on_two_ranks_refuses_their_slices():
    with pytest.raises(UserError, match="with 8 samples a rank: .* network generator always gives 16"):
        list(as_if(tiny_run(Trained), 2))
