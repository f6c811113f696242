"""A few steps of a GAN in float32, with SGD in place of its optimizers, from the same start on any number of ranks.

hvdgan.verify starts this program as one rank and as two, and compares the files that it writes: N.json and N.npz for N
ranks. One rank also takes the steps from weights that are nudged, which shows how far rounding could lead, and runs
each update of the GAN alone.
"""

from hvdgan.cli import start

start.begin(__name__)

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvdgan.cli.app import leave, main_of
from hvdgan.diagnostics.ownership import check_updates, owned_tensors
from hvdgan.distributed import joining
from hvdgan.distributed.backend import versions
from hvdgan.distributed.batch_norm import SynchronisedBatchNormalization
from hvdgan.errors import UserError
from hvdgan.files import outputs
from hvdgan.networks.layers import layers_of, own_means_of
from hvdgan.recipe import Recipe
from hvdgan.recipe.sampling import Drawing
from hvdgan.recipe.stages import Stage
from hvdgan.settings.config import Config, to_json
from hvdgan.training.build import Run, build
from hvdgan.training.command import Command, parse
from hvdgan.training.session import open_batches
from hvdgan.training.step import Data, used
from hvdgan.training.train_state import copies_of

NUDGED = (1, 2)
"""numbers of the trials that begin with nudged weights; trial 0 begins with the weights themselves"""
_NUDGE = 1e-6
"""largest relative change of a weight: some ten roundings"""
_RATE = 0.01
_MOST = 1024
"""numbers of each tensor that are compared, chosen at random"""
Values = dict[str, np.ndarray]


@main_of()
def main(words: list[str]) -> int:
    """Write to the folder words[0] what the trials of a command line of hvdgan.train, the other words, find."""
    folder = Path(words[0])
    joining.claim()
    command = parse(words[1:])
    if command is None:
        raise UserError("--print-config and --help are for hvdgan.train; leave them out")
    ranks = joining.start()
    evaluation = dataclasses.replace(command.config.evaluation, eval_samples=0, eval_held_out=1)
    off: dict[str, Any] = {"best_metric": None, "best_mode": None, "max_steps": None, "sample_every": 0}
    config = dataclasses.replace(command.config, **off, evaluation=evaluation, logger=("none",), report="never")
    plain = dataclasses.replace(config, precision="float32", compression="none", lr_scaling="none", stages=None)
    facts: dict[str, Any] = {}
    if ranks.size == 1:
        run = build(dataclasses.replace(plain, run_dir=folder), command.recipe, command.options, ranks)
        with open_batches(run, 0) as batches:
            facts["updates"] = list(check_updates(run, used(next(batches))))
    run = build(plain, in_sgd(command.recipe), command.options, ranks)
    with open_batches(run, 0) as batches:
        data = [next(batches) for _ in range(run.last_step)]
    found, first = samples_of(run, data[0]), copies_of(run.state.tensors())
    for trial in (0, *NUDGED) if ranks.size == 1 else (0,):
        found |= trial_of(run, data, first, trial)
    if ranks.is_root:
        if ranks.size == 1:
            facts |= {**facts_of(run), "train": _training(command, config, run, folder)}
        outputs.write_json(folder / f"{ranks.size}.json", facts)
        np.savez(folder / f"{ranks.size}.npz", **found)  # type: ignore[arg-type]  # no name is allow_pickle
    ranks.shutdown()
    return 0


def in_sgd(recipe: type[Recipe]) -> type[Recipe]:
    """The recipe with SGD in place of its optimizers, and stages of the few steps in which all updates run."""

    def optimizers(self: Recipe) -> dict[str, Any]:
        def sgd() -> keras.optimizers.SGD:
            # A slot of the momentum has the gradient's own precision, which a weight rounds away.
            return keras.optimizers.SGD(_RATE, momentum=0.9)

        found = recipe.optimizers(self)
        return {k: {name: sgd() for name in each} if isinstance(each, dict) else sgd() for k, each in found.items()}

    def stages(self: Recipe) -> list[Stage]:
        found = []
        for stage in recipe.stages(self):
            # Without a limit some gradients are too long for the rate.
            limits = [each.clip_norm or (None if each.clip_value else 1.0) for each in stage.updates]
            plain = functools.partial(dataclasses.replace, learning_rate=None, betas=None)
            updates = [plain(each, clip_norm=limit) for each, limit in zip(stage.updates, limits, strict=True)]
            few = min(stage.steps, 1 + max(update.every for update in updates))
            found.append(dataclasses.replace(stage, steps=few, updates=updates))
        return found

    methods = {"optimizers": optimizers, "stages": stages, "__module__": recipe.__module__}
    return type(recipe.__name__, (recipe,), methods)


def samples_of(run: Run, data: Data) -> Values:
    """Samples of the first global batch, of which each rank draws those of its slice."""
    numbers = tf.range(*run.ranks.slice_of(run.config.global_batch_size), dtype=tf.int64)
    made = tf.function(Drawing(run.recipe, run.state.sampling_nets, seed=0), autograph=False)(numbers, used(data))
    return {f"samples/{name}": run.ranks.concatenate(each.numpy()) for name, each in made.items()}


def trial_of(run: Run, data: Sequence[Data], first: Mapping[str, np.ndarray], trial: int) -> Values:
    """Some numbers of each tensor after each step, from the `first` values, which all trials but 0 nudge."""
    random, found, tensors = np.random.default_rng(trial), Values(), run.state.tensors()
    trained = {id(variable) for net in run.state.networks.values() for variable in net.trainable_variables}
    for name, variable in tensors.items():
        nudge = 1.0 + _NUDGE * random.uniform(-1.0, 1.0, variable.shape) if trial and id(variable) in trained else 1
        variable.assign((first[name] * nudge).astype(first[name].dtype))
    compared = {name: each for name, each in tensors.items() if name not in run.state.of_local()}
    for step, batch in enumerate(data):
        at = run.plan.at(step)
        run.steps[at.index](step, at.stage_step, batch)
        found |= {f"{trial}/{step}/{name}": _some(value) for name, value in copies_of(compared).items()}
    return found


def _some(value: np.ndarray) -> np.ndarray:
    if value.size <= _MOST:
        return value.ravel()
    return value.ravel()[np.random.default_rng(0).integers(value.size, size=_MOST)]


def facts_of(run: Run) -> dict[str, Any]:
    """What the comparison needs: the updates of each step, the tensors of each, and what may differ between ranks."""
    state, names = run.state, {id(variable): name for name, variable in run.state.tensors().items()}
    layer_state = {names[id(variable)]: where for where, variable in state.other_state().items()}
    averages = [each for name, net in state.networks.items() if name not in state.local for each in own_means_of(net)]
    layer_state |= {names[id(each)]: f"layer {layer.name}: {each.path}" for layer, each in averages}
    norms = [
        f"{layer.name} of {name}"
        for name, network in state.networks.items()
        for layer in layers_of(network)
        if isinstance(layer, keras.layers.BatchNormalization) and not isinstance(layer, SynchronisedBatchNormalization)
    ]
    updates = {f"{stage.name}, update {each.name}": each for stage in run.plan.stages for each in stage.updates}
    positions = [run.plan.at(step) for step in range(run.last_step)]
    return {
        "steps": [[f"{at.stage.name}, update {u.name}" for u in at.stage.due(at.stage_step)] for at in positions],
        "owned": {where: owned_tensors(state, update) for where, update in updates.items()},
        "not_reduced": [where for where, update in updates.items() if not update.reduce],
        "layer_state": layer_state,
        "batch_norms": norms,
        "code": run.code,
        "settings": to_json(run.config, run.recipe.options),
        "versions": versions(),
    }


def _training(command: Command, config: Config, run: Run, folder: Path) -> list[str]:
    """Words of hvdgan.train for a run of as many steps, with the GAN's own optimizers."""
    stages = ",".join(f"{stage.name}={stage.steps}" for stage in run.plan.stages)
    often: dict[str, Any] = {"checkpoint_every": max(1, run.last_step // 2), "keep": 0, "log_every": 1}
    config = dataclasses.replace(config, run_dir=folder / "run", stages=stages, **often)
    (folder / "settings.json").write_text(json.dumps(to_json(config, command.options)))
    words = ["--config", str(folder / "settings.json"), f"--recipe={config.recipe}", f"--data={config.data}"]
    return [*words, *([f"--other-data={','.join(config.other_data)}"] if config.other_data else [])]


if __name__ == "__main__":
    if code := main():
        leave(code)
