"""What of Keras works on two ranks, as the page on recipes says it."""

import re
from fnmatch import fnmatch

import pytest

from keras_cases import CASES
from keras_trials import WORKS, outcomes
from launching import ROOT

SOME = {"layers": ["MultiHeadAttention(dropout=0.5)", "BatchNormalization"]}
MORE = {
    "layers": ["LSTM(dropout=0.5)", "MixUp", "RandAugment", "BatchNormalization(synchronized=True)"],
    "constraints": ["UnitNorm"],
    "optimizers": ["Muon"],
    "losses": ["MeanSquaredError(reduction='sum')", "MeanSquaredError(reduction='mean_with_sample_weight')"],
}


def on_page():
    """What the page says of each exception, by its name or pattern; all other cases work."""
    page = (ROOT / "docs" / "recipes.md").read_text()
    table = page.partition("## What of Keras works\n")[2].partition("\n## ")[0].partition("| exceptions |")[2]
    rows = [row[2:-2].split(" | ", 1) for row in table.splitlines() if row.startswith("| ")]
    return {name.strip("`"): text for names, text in rows for name in re.split(r", (?![^(]*\))", names)}


def without_places(outcome):
    """An outcome in the words of the page."""
    text = re.sub(r"recipe Trial(, | \([^)]*\): )|(stage \w+, update \w+|step \d+)( \([^)]*\))?: ", "", outcome)
    return re.sub(r" \(layer \w+\)|network \w+(, layer \w+:)? ", "", text)


def assert_as_on_the_page(ranks, chosen):
    said = on_page()
    found = outcomes({(group, name): CASES[group][name] for group in chosen for name in chosen[group]}, ranks)
    for (_, name), outcome in found.items():  # the page has the beginning, and may add advice
        (expected,) = {text for names, text in said.items() if fnmatch(name, names)} or {WORKS}
        assert without_places(outcome).startswith(expected.partition("; ")[0]), (name, outcome)


def test_some_of_each_kind(ranks):
    assert_as_on_the_page(ranks, SOME)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_fifth_case_and_some_more(ranks):
    assert_as_on_the_page(ranks, {group: sorted({*sorted(CASES[group])[::5], *MORE.get(group, ())}) for group in CASES})


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_every_case(ranks):
    """A quarter of an hour; CONTRIBUTING.md says when to run it."""
    assert_as_on_the_page(ranks, CASES)
