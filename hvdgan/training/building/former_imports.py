"""Former names of the modules that a recipe's file may import, for the runs of recipes that were written before."""

import sys

from hvdgan import recipe
from hvdgan.cli import errors
from hvdgan.networks import spectral
from hvdgan.recipe import draws, losses, measures, nets, stages
from hvdgan.training.steps import augment

# All modules of a recipe lay in hvdgan/ until the packages of docs/architecture.md were made, before version 0.1.0.
_FORMER = {
    "hvdgan.augment": augment,
    "hvdgan.config": recipe,
    "hvdgan.draws": draws,
    "hvdgan.errors": errors,
    "hvdgan.losses": losses,
    "hvdgan.measures": measures,
    "hvdgan.nets": nets,
    "hvdgan.spectral": spectral,
    "hvdgan.stages": stages,
}


def allow() -> None:
    """Let a recipe's file import modules by their former names, as in `from hvdgan.stages import Stage`."""
    for name, module in _FORMER.items():
        sys.modules.setdefault(name, module)
