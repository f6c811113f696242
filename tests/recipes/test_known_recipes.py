"""Each of hvdgan's recipes is built and traced by the command line."""

import pytest

from hvdgan.train import main
from small import RECIPES, flags


@pytest.mark.parametrize("name", RECIPES)
def test_each_recipe_passes_a_dry_run(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    words = ["--recipe", name, *flags(name), "--image-size", "32", "--global-batch-size", "4", "--dry-run"]
    assert main(words) == 0
    assert f'"recipe": "{name}"' in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
