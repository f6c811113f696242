"""Each of hvdgan's recipes is built and traced by the command line."""

import pytest

from hvdgan.train import main
from small import RECIPES, data_flags, flags, write_showers


@pytest.mark.parametrize("name", RECIPES)
def test_each_recipe_passes_a_dry_run(tmp_path, tmp_path_factory, monkeypatch, capsys, name):
    data = tmp_path_factory.mktemp("data")
    write_showers(data / "showers.npz")
    monkeypatch.chdir(tmp_path)
    words = ["--recipe", name, *flags(name), *data_flags(name, data), "--global-batch-size", "4", "--dry-run"]
    assert main(words) == 0
    assert f'"recipe": "{name}"' in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
