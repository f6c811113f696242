"""What a run has learnt, to be used: its networks and their averages, without ranks, optimizers or data."""

import dataclasses
from pathlib import Path
from typing import Any, Literal

from hvdgan.checkpoints import checkpoint, files
from hvdgan.checkpoints.files import find
from hvdgan.cli.config import Config
from hvdgan.cli.errors import RunError
from hvdgan.recipe import DataSpec, Recipe, mistakes
from hvdgan.recipe.nets import Nets
from hvdgan.recipe.returned import make_recipe
from hvdgan.training.command import parse_saved
from hvdgan.training.state import TrainState, build_state, prepare_keras

_USED = ("networks/", "ema/")
Weights = Literal["averaged", "trained"]


@dataclasses.dataclass(frozen=True)
class Trained:
    """A checkpoint's networks and the recipe that knows how to use them.

    checkpoint: the folder it is from.
    step: steps done so far.
    config: the settings of the run.
    """

    checkpoint: Path
    step: int
    config: Config
    recipe: Recipe
    state: TrainState

    def nets(self, weights: Weights) -> Nets:
        """The networks in inference mode.

        Args:
            weights: averaged over time, for the networks of which the run has averages, or as trained.
        """
        return self.state.sampling_nets if weights == "averaged" else Nets(self.state.networks, training=False)


def load_trained(path: Path) -> Trained:
    """Build the networks of a checkpoint and give them its values.

    Args:
        path: a run folder, whose newest checkpoint is taken, or the folder of a checkpoint.

    Raises:
        UserError: it is neither, or its recipe is not to be found.
        RunError: the checkpoint is damaged, or of other networks than the recipe now makes.
    """
    found = find(path)
    manifest = files.read_manifest(found)
    command = parse_saved(manifest["config"], str(found))
    prepare_keras("float32")
    spec = _spec(found, manifest)
    with mistakes.of(command.recipe):
        recipe = make_recipe(command.recipe, command.options, spec)
        state = build_state(recipe, command.config.ema_decay)
    used = {name: variable for name, variable in state.tensors().items() if name.startswith(_USED)}
    checkpoint.restore(found, manifest, used, only=_USED)
    return Trained(found, manifest["step"], command.config, recipe, state)


def _spec(found: Path, manifest: dict[str, Any]) -> DataSpec:
    try:
        return DataSpec(**manifest["data"]["spec"])
    except (KeyError, TypeError) as error:
        raise RunError(
            f"{found}: its manifest.json does not tell what the images were like (data, spec); go on training for a "
            "step to get a checkpoint that does"
        ) from error
