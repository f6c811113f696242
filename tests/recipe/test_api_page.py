"""docs/api.md is what docs/make_api.py writes, and names everything that a recipe can use, with all arguments."""

import dataclasses
import importlib
import importlib.util
import inspect
import re

import pytest

import hvdgan.recipe
from launching import ROOT

_SPEC = importlib.util.spec_from_file_location("make_api", ROOT / "docs" / "make_api.py")
make_api = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(make_api)

PAGE = (ROOT / "docs" / "api.md").read_text()
NAMED = [
    (module, name)
    for module, names in make_api.DOCUMENTED.items()
    for name in (make_api.public_names(module) if names is None else names)
]


def entry_of(name):
    """The part of the page about a name."""
    (entry,) = re.findall(rf"^### `{name}`\n(.*?)(?=^##+ `\w|\Z)", PAGE, re.DOTALL | re.MULTILINE)
    return entry


def test_the_page_is_what_the_docstrings_say():
    assert make_api.page() == PAGE, "run: python docs/make_api.py"


def test_each_name_is_there_with_its_arguments():
    for module, name in NAMED:
        found, entry = getattr(importlib.import_module(module), name), entry_of(name)
        if name in make_api.HANDED or not (inspect.isfunction(found) or dataclasses.is_dataclass(found)):
            continue
        for parameter in inspect.signature(found).parameters.values():
            assert f"\n- `{parameter.name}`: " in entry, f"{name} does not describe {parameter.name}"
            assert re.search(rf"[(,]\s*{parameter.name}: .", entry), f"{name} lacks {parameter.name} in its signature"


@pytest.mark.parametrize("module", make_api.DOCUMENTED)
def test_each_public_name_is_on_the_page_or_the_trainers_own(module):
    loaded = importlib.import_module(module)
    own = {
        name
        for name, value in vars(loaded).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module
    }
    documented = {name for other, name in NAMED if other == module}
    internal = set(make_api.INTERNAL.get(module, ()))
    assert own | documented == documented | internal, "name it in DOCUMENTED or INTERNAL of docs/make_api.py"
    assert not documented & internal and internal <= own


def test_the_names_that_a_recipe_imports():
    assert hvdgan.recipe.__all__ == [
        *("Batch", "Count", "CountOrNever", "DataSpec", "Decay", "Fraction", "LearningRate", "Loss", "Nets"),
        *("NoOptions", "NonNegative", "Plateau", "Positive", "Random", "Recipe", "Seed", "Stage", "State"),
        *("Update", "UserError", "Words", "losses", "measures"),
    ]
