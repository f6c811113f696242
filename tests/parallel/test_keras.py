"""Layers of Keras on two ranks, and the table "What of Keras works" of docs/recipes.md, of docs/make_keras_table.py."""

import importlib.util

import pytest

from keras_cases import CASES
from keras_trials import WORKS, outcomes
from launching import ROOT

_SPEC = importlib.util.spec_from_file_location("make_keras_table", ROOT / "docs" / "make_keras_table.py")
make_keras_table = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(make_keras_table)

SOME = {
    "layers": ["MultiHeadAttention", "Dropout", "BatchNormalization", "BatchNormalization(synchronized=True)"],
    "optimizers": ["Muon"],
    "constraints": ["UnitNorm"],
    "losses": ["MeanSquaredError(reduction='sum')", "MeanSquaredError(reduction='mean_with_sample_weight')"],
}


def assert_as_on_the_page(ranks, chosen):
    on_page = make_keras_table.on_page()
    found = outcomes({(group, name): CASES[group][name] for group in chosen for name in chosen[group]}, ranks)
    said = {name: make_keras_table.in_words(name, text) for (_, name), text in found.items()}
    assert said == {name: on_page.get(name, WORKS) for name in said}, "run: python docs/make_keras_table.py"


def test_some_of_each_kind(ranks):
    assert_as_on_the_page(ranks, SOME)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_fifth_case(ranks):
    """docs/make_keras_table.py tries all, in a quarter of an hour; CONTRIBUTING.md says when to run it."""
    assert_as_on_the_page(ranks, {group: sorted(CASES[group])[::5] for group in CASES})
