"""Trains a GAN from Python: hvdgan.fit(), the run that it returns, and what a logger of one's own needs."""

import dataclasses
import sys
import threading
from pathlib import Path
from typing import Any

import keras
import numpy as np

from hvdgan.distributed import joining
from hvdgan.errors import RunError, UserError
from hvdgan.recipe import Recipe
from hvdgan.runs.folder import Folder
from hvdgan.runs.metrics import latest
from hvdgan.settings.file import as_words
from hvdgan.training.build import folder_of
from hvdgan.training.command import parse
from hvdgan.training.execution import execute
from hvdgan.training.loggers import Logger, StopRun, choice_of, name_of

__all__ = ["Logger", "RunError", "StopRun", "TrainedRun", "UserError", "fit"]
_AT_A_TIME = 16
"""samples that are drawn together, as by hvdgan.sample"""


@dataclasses.dataclass(frozen=True)
class TrainedRun:
    """A run that fit() has trained.

    Attributes:
        run_dir: run folder.
        is_finished: False if the run was asked to stop earlier, as by Ctrl-C or by StopRun; it is saved.
        step: number of steps done, which is that of the newest checkpoint.
        metrics: value that metrics.jsonl has last of each number, by its name; None for one that was not finite.
        recipe: name as for --recipe, with which samples are drawn; None: that of the checkpoint.
        data: name as for --data, from which they start; None: that of the checkpoint.
    """

    run_dir: Path
    is_finished: bool
    step: int
    metrics: dict[str, float | None]
    recipe: str | None = dataclasses.field(default=None, repr=False)
    data: str | None = dataclasses.field(default=None, repr=False)

    def sample(
        self, samples: int = 64, *, seed: int = 0, class_: int | None = None
    ) -> np.ndarray | dict[str, np.ndarray]:
        """Draw samples with the networks of the newest checkpoint, as hvdgan sample does.

        Args:
            samples: number of samples.
            seed: seed of the samples; sample i of a seed is the same for every number.
            class_: class to draw, for recipes with classes; None: those that the recipe draws.

        Returns:
            (N, ...) in the units of the data: uint8 (N, H, W, C) of pictures; a dict of arrays by name if the recipe's
            sample() makes several.

        Raises:
            UserError: the samples need conditions, which hvdgan sample takes.
        """
        from hvdgan.inference.inputs import blank_inputs, data_inputs
        from hvdgan.inference.trained import load_trained
        from hvdgan.recipe.display import all_shown
        from hvdgan.recipe.sampling import Drawing, draw_batches, joined

        trained = load_trained(self.run_dir, self.recipe)
        recipe, spec = trained.recipe, trained.recipe.data
        if spec.conditions and not recipe.shows_data:
            raise UserError(f"samples of this run need conditions: hvdgan sample {self.run_dir} --condition")
        inputs = data_inputs(trained, self.data, seed) if recipe.shows_data else blank_inputs(spec)
        drawing = Drawing(recipe, trained.nets("averaged"), seed=seed, class_=class_)
        made = all_shown(joined([each for each, _ in draw_batches(drawing, inputs, samples, _AT_A_TIME)]), spec)
        return made if len(made) > 1 else made["images"]


def fit(
    recipe: str | type[Recipe] = "dcgan", data: str | Path = "digits", *, logger: Any = "tensorboard", **settings: Any
) -> TrainedRun:
    """Train a GAN from Python: the run of hvdgan train with the same settings, also on several ranks.

    Args:
        recipe: name as for --recipe, or a class that its module, or the notebook, has under its name.
        data: path or name as for --data, such as __main__:photos for an object of the notebook.
        logger: name as for --logger, a class, an object with the methods of Logger, or a list of these.
        settings: flags of hvdgan train with underscores, such as max_steps=100; True and False switch a flag on and
            off, and None leaves it out.

    Returns:
        The run, on every rank.

    Raises:
        UserError: a setting, the data or the recipe cannot be used; the message names it as a flag.
        RunError: the run has failed; its last checkpoint resumes with the same call.
    """
    if threading.current_thread() is not threading.main_thread():
        raise UserError("hvdgan.fit(): call it in the main thread, which receives the signals that stop a run")
    given = [logger] if isinstance(logger, str) or not isinstance(logger, list | tuple) else logger
    own = [choice_of(each) for each in given if not isinstance(each, str)]
    names = [each if isinstance(each, str) else name_of(each) for each in given]
    joining.claim()
    command = parse(as_words({"recipe": _name_of_recipe(recipe), "data": data, "logger": names or "none", **settings}))
    if command is None:
        raise UserError("hvdgan.fit(): help and print_config are for the command line")
    policy = keras.config.dtype_policy()
    try:
        reached = execute(command, own, is_process=False)
    finally:
        keras.config.set_dtype_policy(policy)
    run_dir, config = folder_of(command.config), command.config
    if reached is None:  # --dry-run
        return TrainedRun(run_dir, False, 0, {}, config.recipe, config.data)
    metrics = {
        name: each for name, each in latest(Folder(run_dir)).items() if name not in ("step", "stage", "stage_step")
    }
    return TrainedRun(run_dir, reached.is_finished, reached.step, metrics, config.recipe, config.data)


def _name_of_recipe(recipe: str | type[Recipe]) -> str:
    if not isinstance(recipe, type):
        return str(recipe)
    module = sys.modules.get(recipe.__module__)
    if getattr(module, recipe.__qualname__, None) is not recipe:
        raise UserError(
            f"recipe {recipe.__qualname__}: define the class at the top of its module, or of the notebook: checkpoints "
            "know it by its name"
        )
    package, _, name = recipe.__module__.rpartition(".")
    return name if package == "hvdgan.recipes" and getattr(module, "RECIPE", None) is recipe else name_of(recipe)
