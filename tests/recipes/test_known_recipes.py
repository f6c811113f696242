"""Each of hvdgan's recipes is built and traced by the command line."""

import pytest

from hvdgan.recipe import DataSpec
from hvdgan.train import main
from small import RECIPES, data_flags, flags, small, write_showers


@pytest.mark.parametrize("name", RECIPES)
def test_each_recipe_passes_a_dry_run(tmp_path, tmp_path_factory, monkeypatch, capsys, name):
    data = tmp_path_factory.mktemp("data")
    write_showers(data / "showers.npz")
    monkeypatch.chdir(tmp_path)
    words = ["--recipe", name, *flags(name), *data_flags(name, data), "--global-batch-size", "4", "--dry-run"]
    assert main(words) == 0
    assert f", recipe {name}; " in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in ("calo3d", "cyclegan", "downscale")])
@pytest.mark.parametrize(("size", "channels"), [(64, 3), (256, 1)])
def test_every_size_has_its_networks(name, size, channels):
    """A subclass of keras.Model, as the generator of stylegan2, does not say its inputs."""
    recipe, options = small(name)
    shape = (size, size, channels)
    networks = recipe(options, DataSpec(shape, 9, 3, shape if recipe.paired else None)).networks()
    known = [each for network in networks.values() for each in getattr(network, "inputs", None) or []]
    assert shape in [each.shape[1:] for each in known]
