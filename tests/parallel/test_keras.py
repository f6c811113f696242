"""Layers of Keras on two ranks, and the table "What of Keras works" of docs/recipes.md, of docs/make_keras_table.py."""

import importlib.util

import numpy as np
import pytest

from building import data_of, stage_step, tiny_run, values_of
from hvdgan.distributed.ranks import Ranks
from keras_cases import CASES
from keras_parts import Spectral, SubclassSynchronized, Synchronized, Wide
from keras_trials import WORKS, outcomes
from launching import ROOT


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


def test_layers_in_other_types(ranks):
    assert_as_on_one_rank(ranks, Wide, ema_decay=0.5, sync_batch_norm=True)


def test_normalisations(ranks):
    assert_as_on_one_rank(ranks, Synchronized)
    assert_as_on_one_rank(ranks, SubclassSynchronized)
    assert_as_on_one_rank(ranks, Spectral)


_SPEC = importlib.util.spec_from_file_location("make_keras_table", ROOT / "docs" / "make_keras_table.py")
make_keras_table = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(make_keras_table)

SOME = [
    ("layers", "MultiHeadAttention"),
    ("layers", "Dropout"),
    ("layers", "BatchNormalization"),
    ("optimizers", "Muon"),
    ("optimizers", "LossScaleOptimizer"),
    ("schedules", "CosineDecay"),
    ("regularizers", "OrthogonalRegularizer"),
    ("constraints", "UnitNorm"),
    ("losses", "MeanSquaredError(reduction='sum')"),
]
EVERY = [(group, name) for group, cases in CASES.items() for name in cases]


def assert_as_on_the_page(ranks, chosen):
    on_page = make_keras_table.on_page()
    found = {name: make_keras_table.in_words(name, text) for (_, name), text in outcomes(chosen, ranks).items()}
    assert found == {name: on_page.get(name, WORKS) for name in found}, "run: python docs/make_keras_table.py"


def test_some_of_each_kind(ranks):
    assert_as_on_the_page(ranks, SOME)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_case(ranks):
    assert_as_on_the_page(ranks, EVERY)
