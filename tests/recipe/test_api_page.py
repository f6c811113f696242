"""docs/api.md shows everything that a recipe can import, and hvdgan.recipe exports these names alone."""

import importlib
import re

import hvdgan.recipe
from launching import ROOT

SHOWN = re.findall(r"^::: ([\w.]+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)


def test_the_page_shows_each_name_that_a_recipe_can_import():
    assert set(hvdgan.recipe.__all__) <= {name.rpartition(".")[2] for name in SHOWN}
    for name in SHOWN:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name


def test_the_names_that_a_recipe_imports():
    assert hvdgan.recipe.__all__ == [
        *("Batch", "Count", "CountOrNever", "DataSpec", "Decay", "Domain", "Fraction", "LearningRate", "Loss", "Nets"),
        *("NoOptions", "NonNegative", "Plateau", "Positive", "Random", "Recipe", "Seed", "Stage", "State"),
        *("Update", "UserError", "Words", "losses", "measures"),
    ]
