"""Each of hvdgan's recipes with options that train in a moment; what is on by choice is on."""

from hvdgan.recipe.loading import known_recipes, load_recipe
from hvdgan.recipe.recipe import Recipe

_OPTIONS = {
    "completion": {"nf": 8, "completion_steps": 3, "discriminator_steps": 3, "joint_steps": 3},
    "dcgan": {"nf": 2, "steps": 3},
    "downscale": {"nf": 2, "blocks": 1, "noise_channels": 2, "steps": 3, "n_critic": 1},
    "pix2pix": {"nf": 2, "steps": 3, "outputs": "images=l1:100,half=mse:10"},
    "sngan": {"nf": 2, "steps": 3, "d_updates": 1},
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
assert sorted(_OPTIONS) == known_recipes()
RECIPES = list(_OPTIONS)


def small(name: str) -> tuple[type[Recipe], object]:
    """The recipe's class and options for it."""
    recipe = load_recipe(name)
    return recipe, recipe.Options(**_OPTIONS[name])


def flags(name: str) -> list[str]:
    """The same options as words of the command line."""
    return [word for key, value in _OPTIONS[name].items() for word in (f"--{key.replace('_', '-')}", str(value))]
