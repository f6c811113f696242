"""The classes and functions that a GAN's file uses: from hvdgan.recipe import Recipe, Stage"""

from hvdgan.errors import UserError
from hvdgan.recipe import losses, metrics
from hvdgan.recipe.batch import Batch, Domain, State
from hvdgan.recipe.data_spec import DataSpec
from hvdgan.recipe.draws import Random
from hvdgan.recipe.nets import Nets
from hvdgan.recipe.recipe import NoOptions, Recipe
from hvdgan.recipe.schedule import Schedule
from hvdgan.recipe.stages import Loss, Plateau, Stage, Update
from hvdgan.settings.types import Count, CountOrNever, Decay, Fraction, NonNegative, Positive, Seed, Words

__all__ = [
    "Batch",
    "Count",
    "CountOrNever",
    "DataSpec",
    "Decay",
    "Domain",
    "Fraction",
    "Loss",
    "Nets",
    "NoOptions",
    "NonNegative",
    "Plateau",
    "Positive",
    "Random",
    "Recipe",
    "Schedule",
    "Seed",
    "Stage",
    "State",
    "Update",
    "UserError",
    "Words",
    "losses",
    "metrics",
]
