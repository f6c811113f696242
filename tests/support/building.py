"""Building the parts of a tiny run in this process."""

import dataclasses
import itertools
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import tensorflow as tf

from hvdgan.checkpoints import files
from hvdgan.data.domains import named
from hvdgan.distributed.ranks import Ranks
from hvdgan.recipe import Batch, Random, Recipe
from hvdgan.recipe.batch import unpack
from hvdgan.settings.config import Config
from hvdgan.settings.evaluation import EvaluationConfig
from hvdgan.training.build import Run, build
from hvdgan.training.step import StageStep
from hvdgan.training.train_state import copies_of
from tiny import Tiny, TinyOptions

_OF_EVALUATIONS = {field.name for field in dataclasses.fields(EvaluationConfig)}

FACTS: dict = {
    **dict.fromkeys(("stage_index", "stage_step", "samples_seen", "seed"), 0),
    **{"run_id": "r", "stage": "adversarial", "stages": [["adversarial", 8]], "ranks": 1, "best": None},
    **{"config": {}, "code": {}, "frozen": {}, "versions": {}},
    "progress": {"ended": {}, "bad_files": {}, "bad_updates": {}, "ranks": []},
    "data": {
        **{"source": "a", "fingerprint": "", "num_images": 100},
        "spec": {"shape": [8, 8, 1], "num_classes": 10, "class_names": [], "domains": {}, "values": None},
    },
}
"""what a checkpoint says besides its step and its tensors"""


def tiny_run(
    recipe: type[Recipe] = Tiny, options: TinyOptions | None = None, ranks: Ranks | None = None, **settings
) -> Run:
    """A built run on 8x8 digits; nothing is written."""
    defaults = {"recipe": "tiny:Tiny", "image_size": 8, "global_batch_size": 16, "run_dir": Path("never-written")}
    evaluation = {name: settings.pop(name) for name in _OF_EVALUATIONS & settings.keys()}
    defaults["evaluation"] = EvaluationConfig(**evaluation)
    config = Config(**{**defaults, **settings})
    ranks = dataclasses.replace(ranks or Ranks(), deterministic=config.deterministic)
    return build(config, recipe, options or TinyOptions(), ranks)


def stage_step(run: Run, stage: int = 0, ranks: Ranks | None = None) -> StageStep:
    """The step of one of its stages, as it was traced; with ranks named, one over these that is not traced yet."""
    return StageStep(run.recipe, run.state, run.plan.stages[stage], ranks, run.config) if ranks else run.steps[stage]


def write_checkpoint(folder: Path, step: int, tensors, facts: dict) -> Path:
    """A checkpoint on the disk."""
    return files.write(folder, files.Snapshot(step, copies_of(tensors), facts))


def data_of(run: Run, step: int = 0) -> dict[str, tf.Tensor]:
    """This rank's part of a global batch, without the pipeline's help: the digits from 16 * step on."""
    first, last = run.ranks.slice_of(run.config.global_batch_size)
    begin = step * run.config.global_batch_size
    indices = np.arange(begin + first, begin + last)
    data = {}
    for name, source in run.source.domains.items():
        data |= named(name, {**source.fetch_batch(indices), **source.facts(indices)})
    return {name: tf.constant(values) for name, values in data.items()}


def batch_of(run: Run, update: str) -> Batch:
    """The batch of the first step, as an update of this name sees it."""
    random, data = Random(run.config.seed, tf.constant(0, tf.int64), 0, 16), data_of(run)
    images, inputs, *_ = unpack(data, run.recipe.data)
    drawn, conditions = run.recipe.draw(random.scoped("draw")), data.get("conditions")
    batch = Batch(images, None, random.scoped(update), drawn, inputs=inputs, conditions=conditions)
    batch.schedule = run.state.schedules.read
    return batch


def values_of(run: Run) -> dict[str, np.ndarray]:
    """Copies of all variables by their checkpoint names."""
    return {name: variable.numpy().copy() for name, variable in run.state.tensors().items()}


def trained(run: Run, steps: int = 20, stage: int = 0) -> dict[str, np.ndarray]:
    """The values after some steps of a stage."""
    for number in range(steps):
        stage_step(run, stage)(number, number, data_of(run, number))
    return values_of(run)


def filled(run: Run) -> Run:
    """Fill kernels that begin with zeros, as the last of r3gan's blocks, which let no gradient through."""
    for network in run.state.networks.values():
        for variable in network.trainable_variables:
            if variable.name == "kernel" and not variable.numpy().any():
                variable.assign(0.3 * tf.random.stateless_normal(variable.shape, (0, 1)))
    return run


def start_equally(*runs: Run) -> None:
    """Give all runs the variables of the first, and new optimizers."""
    fresh = values_of(runs[0])
    for run in runs:
        for variable, value in zip(run.state.tensors().values(), fresh.values(), strict=True):
            variable.assign(value)
        run.state.reset_optimizers(run.recipe, run.state.networks)


def assert_equal_gradients(owns: Iterable[str], expected: dict, found: dict, tolerance: float = 2e-2) -> None:
    """Compare the gradients of a first step by Adam's means, which are these times 1 - beta_1, and their squares.

    A square differs by twice as much as what is squared.

    Rounding moves some of a deep network's inputs across the kinks of its ReLUs, so one variable's gradient may differ
    by more than a thousandth. What is 0 but for rounding, such as that of a bias before BatchNorm, is compared with the
    network's largest.
    """
    for owned, (kind, times) in itertools.product(owns, (("/momentum", 1), ("/velocity", 2))):
        begin = f"optimizers/{owned}/"
        mine = {name: value for name, value in expected.items() if name.startswith(begin) and name.endswith(kind)}
        largest = max(np.linalg.norm(value) for value in mine.values())
        for name, value in mine.items():
            difference = np.linalg.norm(found[name] - value)
            assert difference <= times * tolerance * np.linalg.norm(value) + 1e-5 * largest, name


def changed(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> set[str]:
    """The names whose bits differ."""
    return {name for name in before if before[name].tobytes() != after[name].tobytes()}
