"""Layers of Keras on two ranks, and the table "What of Keras works" of docs/recipes.md, of docs/make_keras_table.py."""

import importlib.util

import pytest

from keras_cases import CASES
from keras_trials import WORKS, outcomes
from launching import ROOT

_SPEC = importlib.util.spec_from_file_location("make_keras_table", ROOT / "docs" / "make_keras_table.py")
make_keras_table = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(make_keras_table)

SOME = [
    ("layers", "MultiHeadAttention"),
    ("layers", "Dropout"),
    ("layers", "BatchNormalization"),
    ("layers", "BatchNormalization(synchronized=True)"),
    ("layers", "a subclass of BatchNormalization"),
    ("layers", "a layer with dtype='float64'"),
    ("layers", "ActivityRegularization"),
    ("layers", "LSTM"),
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
