"""The language a GAN is written in: Recipe, Batch, stages, random draws, losses, measures. It knows no ranks."""

from hvdgan.recipe.recipe import Batch, NoOptions, Recipe

__all__ = ["Batch", "NoOptions", "Recipe"]
