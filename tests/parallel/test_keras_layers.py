"""Layers of Keras, and losses of their outputs, train on two ranks as on one."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from building import data_of, stage_step, tiny_run, values_of
from hvdgan.distributed.ranks import Ranks
from hvdgan.recipe import Recipe, Stage, Update, losses


class Penalised(Recipe):
    """A critic of digits that are reshaped, against noise, under the penalty of its gradient."""

    shape: tuple[int, ...] = (64,)

    def networks(self):
        return {"critic": keras.Sequential([keras.Input(self.shape), *self.inner(), layers.Dense(1)])}

    def inner(self):
        return [layers.Flatten(), layers.Dense(16, "tanh")]

    def optimizers(self):
        return {"critic": keras.optimizers.SGD(0.01)}

    def stages(self):
        return [Stage("judge", 5, [Update("judge", ["critic"], self.judge)])]

    def judge(self, nets, batch):
        real = tf.reshape(batch.images, (-1, *self.shape))
        fake = batch.random.normal("fake", self.shape)
        penalty = losses.gradient_penalty(nets.critic, real, fake, batch.random.uniform("mix", ()))
        loss = losses.wasserstein_critic(nets.critic(real), nets.critic(fake))
        return loss + 10.0 * penalty, {"penalty": penalty}

    def sample(self, nets, batch):
        return tf.zeros((1, 8, 8, 1))


def trained(recipe, ranks, **settings):
    """The variables after five steps, and the mean loss of the last over all ranks."""
    run = tiny_run(recipe, ranks=ranks, **settings)
    step = stage_step(run)
    for number in range(5):
        metrics, finite = step(number, number, data_of(run, number))
        assert all(finite)
    return values_of(run), {name: float(ranks.mean(value)) for name, value in metrics.items()}


def assert_as_on_one_rank(ranks, recipe, **settings):
    together, measured = trained(recipe, ranks, **settings)
    alone, expected = trained(recipe, Ranks(), **settings)
    assert measured == pytest.approx(expected, rel=1e-4, abs=1e-5)
    for name, value in alone.items():
        np.testing.assert_allclose(together[name], value, rtol=1e-3, atol=1e-5, err_msg=name)
    return measured


# A rank's slice has 8 samples: as many as the sequence has steps, and the volume has cells in depth.
@pytest.mark.parametrize("shape", [(64,), (8, 8), (8, 8, 1), (8, 2, 4, 1)])
def test_a_gradient_penalty_of_any_rank_of_tensor(ranks, shape):
    measured = assert_as_on_one_rank(ranks, type("Penalised", (Penalised,), {"shape": shape}))
    assert measured["judge/penalty"] < 10  # |gradient| - 1 of one sample, and not of a batch of them
