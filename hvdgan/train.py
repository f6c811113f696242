"""Trains a GAN: python -m hvdgan.train, by itself or under horovodrun, mpirun or srun; hvdgan.train() in Python.

In Python this module is the function, too: `import hvdgan` and `hvdgan.train(recipe=MyGAN)`. A function of this name in
the package would be replaced by this module as soon as anything imports hvdgan.train, so the module itself is callable.
"""

from hvdgan.cli import start

start.begin(__name__)

import dataclasses
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from hvdgan.cli.app import at_once, leave, main_of
from hvdgan.errors import RunError, UserError
from hvdgan.runs.folder import Folder
from hvdgan.runs.metrics import latest
from hvdgan.settings.file import as_words
from hvdgan.training.command import Command, answer, parse

at_once(__name__, answer)

import keras
import numpy as np
import tensorflow as tf

from hvdgan.distributed import joining
from hvdgan.distributed.collective_errors import failures_in_words
from hvdgan.distributed.devices import everyones_devices, limit_memory
from hvdgan.distributed.liveness.heartbeat import Heartbeat
from hvdgan.distributed.ranks import Ranks
from hvdgan.recipe import Recipe
from hvdgan.training import session
from hvdgan.training.build import build, folder_of
from hvdgan.training.loggers import Logger, LoggerChoice, StopRun, choice_of, find, name_of
from hvdgan.training.report import Page
from hvdgan.training.resume_point import Commits
from hvdgan.training.stopping import STOPPED, Stopping
from hvdgan.training.summary import as_if, describe

__all__ = ["Logger", "RunError", "StopRun", "TrainedRun", "UserError", "main", "train"]
_AT_A_TIME = 16
"""samples that are drawn together, as by hvdgan.sample"""
_INTERRUPTED = "interrupted; with --resume auto the same command resumes from the last checkpoint"


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, build the run, and train it or describe it.

    Args:
        arguments: words of the command line; None: those of this process.

    Returns:
        The exit code: 0 done, 75 stopped on request and saved; after an error that of Main.
    """
    return main_of(interrupted=_INTERRUPTED)(_main)(arguments)


def _main(arguments: list[str]) -> int:
    # The devices are claimed first, because the command line depends on the recipe, whose file may run operations.
    joining.claim()
    command = parse(arguments)
    if command is None:
        return 0  # the help or the settings were asked for, and are printed
    return 0 if _run(_with_loggers(command), is_process=True) else STOPPED


def _with_loggers(command: Command, own: Sequence[LoggerChoice] = ()) -> Command:
    """Find the loggers before data are read; `own` are those that Python code has given."""
    given = {each.name: each for each in own}
    names = [name for name in command.config.logger if name != "none"]
    if len({*names}) < len(names):
        raise UserError(f"--logger {','.join(names)}: one is named twice")
    return dataclasses.replace(command, loggers=tuple(given.get(name) or find(name) for name in names))


def _run(command: Command, *, is_process: bool) -> bool:
    limit_memory(command.config.gpu_memory_limit, shared=command.config.share_gpu)
    if command.config.deterministic:
        tf.config.experimental.enable_op_determinism()
    with Page(command.config.report) as page:
        if joining.is_elastic() and not command.dry_run:
            return _elastic(command, page)
        return _work(command, page, is_process=is_process)


def _elastic(command: Command, page: Page) -> bool:
    from hvdgan.training import elastic  # only elastic runs need it

    return elastic.train(command, page)


def _work(command: Command, page: Page, *, is_process: bool) -> bool:
    with failures_in_words(lambda: None):
        ranks = joining.start(command.expect_size, share_gpu=command.config.share_gpu)
    with session.watch(command, ranks) as heart, failures_in_words(heart.explanation):
        if command.dry_run:
            reached = _describe(command, ranks)
        else:
            reached = _train(command, ranks, heart, page, is_process=is_process)
        if is_process:
            ranks.shutdown()
        else:  # a program may train again, and Horovod's ring is there once
            ranks.meet("the end of the run")
    return reached


def _describe(command: Command, ranks: Ranks) -> bool:
    run = build(command.config, command.recipe, command.options, ranks)
    devices = everyones_devices(ranks)
    if ranks.is_root:
        print(describe(run, devices))
        for line in as_if(run, command.as_if_ranks) if command.as_if_ranks else ():
            print(line)
    return True


def _train(command: Command, ranks: Ranks, heart: Heartbeat, page: Page, *, is_process: bool) -> bool:
    # Requests to stop are noticed from before the build on.
    stop_file = folder_of(command.config) / "stop"
    with Stopping(ranks, stop_file, command.time_budget, ends_process=is_process) as stopping:
        commits = Commits()
        run, resume_point = session.build_and_restore(command, ranks, commits)
        return session.train(run, resume_point, heart, stopping, commits, page, loggers=command.loggers)


@dataclasses.dataclass(frozen=True)
class TrainedRun:
    """A run that hvdgan.train() has trained.

    Attributes:
        run_dir: run folder.
        is_finished: False if the run was asked to stop earlier, as by Ctrl-C or by StopRun; it is saved.
        step: number of steps done.
        metrics: latest value of each number in metrics.jsonl by its name; None for one that was not finite.
    """

    run_dir: Path
    is_finished: bool
    step: int
    metrics: dict[str, float | None]
    _named: tuple[str | None, str | None] = dataclasses.field(default=(None, None), repr=False)  # recipe and data

    def sample(self, samples: int = 64, *, seed: int = 0, class_: int | None = None) -> np.ndarray:
        """Draw samples with the networks of the newest checkpoint, as hvdgan.sample does.

        Args:
            samples: number of samples.
            seed: seed of the samples; sample i of a seed is the same for every number.
            class_: class to draw, for recipes with classes; None: those that the recipe draws.

        Returns:
            (N, ...) in the units of the data: uint8 (N, H, W, C) of pictures.

        Raises:
            UserError: the samples need conditions, which hvdgan.sample takes.
        """
        from hvdgan.inference.inputs import blank_inputs, data_inputs
        from hvdgan.inference.trained import load_trained
        from hvdgan.recipe.display import restored, shown
        from hvdgan.recipe.sampling import Drawing, draw_batches

        trained = load_trained(self.run_dir, self._named[0])
        recipe, spec = trained.recipe, trained.recipe.data
        if spec.conditions and not recipe.shows_data:
            raise UserError(f"samples of this run need conditions: python -m hvdgan.sample {self.run_dir} --condition")
        inputs = data_inputs(trained, self._named[1], seed) if recipe.shows_data else blank_inputs(spec)
        drawing = Drawing(recipe, trained.nets("averaged"), seed=seed, class_=class_)
        drawn = [each for each, _ in draw_batches(drawing, inputs, samples, _AT_A_TIME)]
        return restored(shown(np.concatenate(drawn), spec), spec)


def train(
    recipe: str | type[Recipe] = "dcgan", data: str | Path = "digits", *, logger: Any = "tensorboard", **settings: Any
) -> TrainedRun:
    """Train a GAN from Python: the run of python -m hvdgan.train with the same settings, also on several ranks.

    Args:
        recipe: name as for --recipe, or a class that its module, or the notebook, has under its name.
        data: path or name as for --data, such as __main__:photos for an object of the notebook.
        logger: name as for --logger, a class, an object with the methods of Logger, or a list of these.
        settings: flags of hvdgan.train with underscores, such as max_steps=100; True and False switch a flag on and
            off, and None leaves it out.

    Returns:
        The run, on every rank.

    Raises:
        UserError: a setting, the data or the recipe cannot be used; the message names it as a flag.
        RunError: the run has failed; its last checkpoint resumes with the same call.
    """
    if threading.current_thread() is not threading.main_thread():
        raise UserError("hvdgan.train(): call it in the main thread, which receives the signals that stop a run")
    given = [logger] if isinstance(logger, str) or not isinstance(logger, list | tuple) else logger
    own = [choice_of(each) for each in given if not isinstance(each, str)]
    names = [each if isinstance(each, str) else name_of(each) for each in given]
    joining.claim()
    words = as_words({"recipe": _name_of_recipe(recipe), "data": data, "logger": names or "none", **settings})
    command = parse(words)
    if command is None:
        raise UserError("hvdgan.train(): help and print_config are for the command line")
    policy = keras.config.dtype_policy()
    try:
        is_finished = _run(_with_loggers(command, own), is_process=False)
    finally:
        keras.config.set_dtype_policy(policy)
    run_dir = folder_of(command.config)
    metrics = {name: value for name, value in latest(Folder(run_dir)).items() if name not in ("stage", "stage_step")}
    step = metrics.pop("step", 0)
    return TrainedRun(run_dir, is_finished, step, metrics, (command.config.recipe, command.config.data))


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


class _Callable(ModuleType):
    """The type of this module, which is called as train() is."""

    def __call__(self, *arguments: Any, **settings: Any) -> TrainedRun:
        return train(*arguments, **settings)


if __name__ == "__main__":
    if code := main():
        leave(code)
else:
    sys.modules[__name__].__class__ = _Callable
