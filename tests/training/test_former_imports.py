"""Recipes that were written for older versions still load, so that their runs resume by the same command."""

import sys

import pytest

from hvdgan.training.building.command import parse
from launching import ROOT

NOW = "from hvdgan.recipe import Count, LearningRate, Positive, Recipe, Stage, Update\n"


@pytest.mark.parametrize(
    "imports",
    [
        "from hvdgan.config import Count, Positive\nfrom hvdgan.stages import LearningRate, Stage, Update",
        f"from hvdgan import losses\nfrom hvdgan.losses import hinge_generator\nimport hvdgan.measures\n{NOW}",
        f"from hvdgan.draws import Random\nfrom hvdgan.nets import Nets\nfrom hvdgan.errors import UserError\n{NOW}",
        f"from hvdgan.spectral import SpectralConv2D\nfrom hvdgan.augment import diff_augment\n{NOW}",
    ],
)
def test_a_recipe_with_former_imports(tmp_path, monkeypatch, imports):
    text = (ROOT / "examples" / "my_gan.py").read_text()
    assert NOW in text
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "older_gan.py").write_text(text.replace(NOW, f"{imports}\nfrom hvdgan.recipe import Recipe\n"))
    sys.modules.pop("older_gan", None)
    assert parse(["--recipe", "older_gan:MyGAN"]).recipe.__name__ == "MyGAN"
