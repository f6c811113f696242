"""The options of a recipe as --help reads them from its source, against those of its class."""

import dataclasses
import re

import pytest

from hvdgan.cli.recipe_source import list_of_recipes, options_in_source
from hvdgan.recipe.loading import known_recipes, load_recipe
from launching import ROOT


@pytest.mark.parametrize(
    "name", [*known_recipes(), "tiny:Tiny", "my_gan:MyGAN", "my_conv_gan:MyConvGAN", "my_translator:MyTranslator"]
)
def test_the_source_tells_what_the_class_has(name, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    found, wanted = options_in_source(name), load_recipe(name).Options
    assert found is not None
    assert [field.name for field in dataclasses.fields(found)] == [field.name for field in dataclasses.fields(wanted)]
    for field in dataclasses.fields(wanted):
        default = getattr(found(), field.name)
        assert default == field.default or str(field.default) in str(default)


MADE_AT_RUN_TIME = """
import dataclasses
from hvdgan.recipe import Recipe

class Late(Recipe):
    Options = dataclasses.make_dataclass("Options", [("width", int, 3)], frozen=True)
"""


def test_options_that_only_an_import_can_tell_are_left_to_it(tmp_path, monkeypatch):
    """They are made at run time, inherited or wrong."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "late_options.py").write_text(MADE_AT_RUN_TIME)
    late = ("late_options:Late", "late_options:Nobody", "late_options:")
    for name in (*late, "tiny:Conditional", "tiny:Staged", "no.such:GAN", "nosuch", "../x"):
        assert options_in_source(name) is None


def test_the_list_has_a_paragraph_about_each_recipe():
    said = list_of_recipes()
    for name in known_recipes():
        assert re.search(rf"^  {name} +\w", said, re.MULTILINE)
    assert max(map(len, said.splitlines())) <= 80
