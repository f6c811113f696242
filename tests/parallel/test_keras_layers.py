"""Layers of Keras, and losses of their outputs, train on two ranks as on one."""

import numpy as np
import pytest

from building import data_of, stage_step, tiny_run, values_of
from hvdgan.distributed.ranks import Ranks
from keras_parts import Critic, Spectral, SubclassSynchronized, Synchronized, Wide


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


def test_a_gradient_penalty_of_volumes_as_deep_as_a_slice_of_the_batch(ranks):
    measured = assert_as_on_one_rank(ranks, type("Penalised", (Critic,), {"shape": (8, 2, 4, 1)}))
    assert measured["judge_critic/penalty"] < 10  # |gradient| - 1 of one sample, and not of a batch of them


def test_layers_in_other_types(ranks):
    assert_as_on_one_rank(ranks, Wide, ema_decay=0.5, sync_batch_norm=True)


def test_normalisations(ranks):
    assert_as_on_one_rank(ranks, Synchronized)
    assert_as_on_one_rank(ranks, SubclassSynchronized)
    assert_as_on_one_rank(ranks, Spectral)
