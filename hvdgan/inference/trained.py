"""Loads the networks of a checkpoint for use: their weights and averages, without ranks, optimizers or data."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from hvdgan.checkpoints import files
from hvdgan.checkpoints.tensor_names import EMA, NETWORKS
from hvdgan.distributed import devices, joining
from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import RunError, UserError
from hvdgan.networks import sums
from hvdgan.recipe import Recipe, recipe_errors
from hvdgan.recipe.contract import grown_of, make_recipe, stages_of, state_of
from hvdgan.recipe.data_spec import of_json
from hvdgan.recipe.nets import Nets
from hvdgan.recipe.scheduled import ScheduledValues
from hvdgan.recipe.stage_plan import StagePlan
from hvdgan.settings.config import Config
from hvdgan.settings.own_code import refuse_foreign
from hvdgan.settings.types import Weights
from hvdgan.training.command import parse_saved
from hvdgan.training.digests import digest_of_network, frozen_network
from hvdgan.training.initial_weights import fill_frozen
from hvdgan.training.train_state import DeclaredState, TrainState, build_state, prepare_keras

PRECISION = "float32"
"""dtype policy of the networks, also of those that were trained in mixed precision"""
USED = (f"{NETWORKS}/", f"{EMA}/")
"""folders of the tensors that are restored"""


@dataclasses.dataclass(frozen=True)
class TrainedNetworks:
    """The networks of a checkpoint and the recipe that uses them, with the settings of the run."""

    checkpoint: Path
    step: int  # number of steps that the run had done
    config: Config
    recipe: Recipe
    state: TrainState  # networks and averages; the optimizers have not been restored
    manifest: dict[str, Any]

    def nets(self, weights: Weights) -> Nets:
        """The networks in inference mode, averaged where the run averages them, or with the weights themselves."""
        return self.state.sampling_nets if weights == "averaged" else self.state.nets()

    @functools.cached_property
    def grown(self) -> dict[str, keras.Model]:
        """The networks of the size of the checkpoint's stage; empty if it names none."""
        stages = [each for each in stages_of(self.recipe) if each.name == self.manifest.get("stage")]
        return grown_of(self.recipe, self.state.networks, stages[0]) if stages else {}


def _schedules(recipe: Recipe, config: Config, manifest: dict[str, Any]) -> ScheduledValues:
    """The values of the schedules at a checkpoint, whose manifest has the steps of its stages."""
    stages = {each.name: each for each in stages_of(recipe)}
    done = [(stages[name], steps) for name, steps in manifest["stages"] if name in stages]
    plan = StagePlan([dataclasses.replace(stage, steps=steps) for stage, steps in done])
    plan.resume(manifest["progress"])
    values = ScheduledValues([*stages.values()], recipe.options, (recipe.data.num_images, config.global_batch_size))
    values.restore(plan, min(manifest["step"], plan.total_steps))
    return values


def load_trained(path: Path, named: str | None = None) -> TrainedNetworks:
    """Build the networks of a checkpoint, or of the newest one of a run folder, in float32 and restore their values.

    `named` is the recipe if the user names it in place of the run.
    """
    joining.claim()  # otherwise TensorFlow reserves all memory of every GPU, on which a run may train
    devices.refuse_cpu_by_mistake()
    # It fails, aloud, on networks that add something to a convolution before a leaky ReLU. dcgan is as fast without.
    tf.config.optimizer.set_experimental_options({"remapping": False})
    sums.fix_order()
    found = files.find(path)
    manifest = files.read_manifest(found)
    if named is None:
        refuse_foreign(f"{found}: --recipe", str(manifest["config"].get("recipe")), manifest["code"])
    command = parse_saved(manifest["config"] | ({"recipe": named} if named else {}), str(found))
    try:
        spec = of_json(manifest["data"]["spec"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{found}: its manifest does not describe the data: {error!r}; name another one") from error
    with recipe_errors.of(command.recipe):
        prepare_keras(PRECISION, command.config.seed, "__init__()")
        recipe = make_recipe(command.recipe, command.options, spec)
        prepare_keras(PRECISION, command.config.seed)
        state = build_state(recipe, command.config.ema_decay, command.config.freeze)
        shared = {name: each for name, each in state_of(recipe).items() if not each.per_sample}
        kept = DeclaredState(shared, Ranks(), command.config.global_batch_size)
        state = dataclasses.replace(state, declared_state=kept, schedules=_schedules(recipe, command.config, manifest))
    try:
        fill_frozen(command.config, state)
    except UserError as error:
        raise UserError(f"{found}: the run was given {error}") from error
    for name, network in state.frozen.items():  # which no checkpoint holds
        what = frozen_network(name)
        if manifest.get("frozen", {}).get(what) != digest_of_network(network):
            raise UserError(
                f"{found}: {what} has other values than in training; restore the file that it is loaded from"
            )
    used = {name: variable for name, variable in state.tensors().items() if name.startswith(USED)}
    used |= state.declared_state.shared()
    files.assign(used, files.read(found, (*USED, *state.declared_state.shared()), manifest).of_root(), found)
    return TrainedNetworks(found, manifest["step"], command.config, recipe, state, manifest)
