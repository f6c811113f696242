"""Each of hvdgan's recipes with options and data that train in a moment; what is on by choice is on."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hvdgan.recipe import DataSpec
from hvdgan.recipe.loading import known_recipes, load_recipe
from hvdgan.recipe.recipe import Recipe
from hvdgan.training.command import parse
from hvdgan.values.sample_values import SampleValues
from hvdgan.values.transforms import Power, Standard
from hvdgan.values.value_map import ValueMap

_OPTIONS = {
    "calo3d": {"nf": 2, "latent_size": 4, "steps": 3, "r1_every": 1},
    "completion": {"nf": 8, "completion_steps": 3, "discriminator_steps": 3, "joint_steps": 3},
    "cyclegan": {"nf": 2, "blocks": 1, "pool": 2, "steps": 3, "decay_steps": 3},
    "dcgan": {"nf": 2, "steps": 3},
    "downscale": {"nf": 2, "blocks": 1, "noise_channels": 2, "steps": 3, "n_critic": 1},
    "pix2pix": {"nf": 2, "steps": 3, "outputs": "images=l1:100,half=mse:10"},
    "progressive": {"nf": 2, "latent_size": 4, "fade_steps": 3, "size_steps": 3, "steps": 3},
    "r3gan": {"nf": 2, "blocks": 1, "latent_size": 4, "burn_in_steps": 3, "steps": 3},
    "sngan": {"nf": 2, "steps": 3, "d_updates": 1},
    "srgan": {"nf": 2, "blocks": 1, "pixel_steps": 3, "steps": 3},
    "stylegan2": {
        "nf": 2,
        "latent_size": 8,
        "steps": 3,
        "r1_every": 1,
        "path_length_weight": 2.0,
        "path_length_every": 1,
    },
    "vae_gan": {"nf": 2, "latent_size": 4, "steps": 3, "margin": 10.0},
    "wgan_gp": {"nf": 2, "steps": 3, "n_critic": 1},
}
_SIZES = {"progressive": "8"}
"""pixels where 32 are more than the test needs: each size has two stages"""
assert sorted(_OPTIONS) == known_recipes()
RECIPES = list(_OPTIONS)


def long_but(*quick: str) -> list[Any]:
    """All recipes as parameters of a test, which is long for all but these."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.long) for name in RECIPES]


def small(name: str) -> tuple[type[Recipe], object]:
    """The recipe's class and options for it."""
    recipe = load_recipe(name)
    return recipe, recipe.Options(**_OPTIONS[name])


def write_showers(path: Path, num: int = 40) -> Path:
    """Write sparse showers of 8^3 cells, with the energy [GeV] and theta [rad] of each, as .npz."""
    random = np.random.default_rng(0)
    energy, theta = random.uniform(10, 500, num), random.uniform(1.0, 2.0, num)
    shapes = random.exponential(size=(num, 8, 8, 8)) * (random.uniform(size=(num, 8, 8, 8)) < 0.3)
    cells = (shapes * (0.9 * energy / shapes.sum(axis=(1, 2, 3)))[:, None, None, None]).astype(np.float32)
    np.savez(path, ECAL=cells, energy=energy.astype(np.float32), theta=theta.astype(np.float32))
    return path


def data_flags(name: str, folder: Path) -> list[str]:
    """Words of the command line for data that the recipe takes; write_showers(folder / "showers.npz") has made them."""
    if name == "cyclegan":
        return "--image-size 32 --data digits --data synthetic --channels 1".split()
    if name != "calo3d":
        return ["--image-size", _SIZES.get(name, "32")]
    words = "--axes DHW --conditions energy,theta --values power:0.85".split()
    return ["--data", f"{folder / 'showers.npz'}:ECAL", *words]


def settings(name: str, folder: Path) -> dict[str, Any]:
    """The same as settings of a Config."""
    config = parse(["--recipe", name, *data_flags(name, folder)]).config
    return {each: getattr(config, each) for each in ("data", "other_data", "channels", "image_size", "arrays")}


def spec(name: str, num_classes: int = 0) -> DataSpec:
    """Facts about 100 samples of such data."""
    if name != "calo3d":
        size = int(_SIZES.get(name, "32"))
        inputs = (size, size, 1) if load_recipe(name).paired else None
        found = DataSpec((size, size, 1), 100, num_classes, inputs)
        return dataclasses.replace(found, domains=dict.fromkeys(load_recipe(name).domains, found))
    conditions = ValueMap(((Standard((250.0, 1.5), (140.0, 0.3)),),), ("energy", "theta"))
    values = SampleValues(ValueMap(((Power(0.85),),), ("0",)), conditions=conditions)
    return DataSpec((8, 8, 8, 1), 100, conditions=("energy", "theta"), values=values)


def flags(name: str) -> list[str]:
    """The same options as words of the command line."""
    return [word for key, value in _OPTIONS[name].items() for word in (f"--{key.replace('_', '-')}", str(value))]
