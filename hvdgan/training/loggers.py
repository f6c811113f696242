"""Loggers: what a run has measured goes to TensorBoard, W&B, MLflow, or to a class of the user's own.

Rank 0 alone has loggers. Each gets its calls in a thread of its own, because a server that is slow or gone must not
keep the ranks waiting; one that fails, or falls far behind, is left out from then on, and the run continues.
"""

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import queue
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hvdgan.errors import UserError, in_one_line
from hvdgan.runs.events import Event, LostLogger
from hvdgan.settings.own_code import refuse_borrowed, search_working_folder
from hvdgan.training.trackers import MLflow, TensorBoard, WeightsAndBiases

MOST_CALLS = 1000
"""calls that may wait for a logger"""
SOON, PATIENCE = 5.0, 60.0
"""seconds that the end of a run waits for a logger before it says so, and in all"""
_METHODS = ("settings", "scalars", "pictures", "close")


class StopRun(Exception):
    """Raised by a logger to end the run early: all ranks stop after the same step, and the run is saved."""


class Logger(Protocol):
    """Receives what a run measures, on rank 0 alone; `--logger my_module:MyLogger` names a class of your own.

    It is made as MyLogger(run_dir). Its methods are called one at a time, in a thread of its own. A subclass of this
    class needs only the methods that it uses. StopRun ends the run; after any other error the run continues without the
    logger. A resumed run repeats the steps after its checkpoint; what was logged of them is not logged again.
    """

    def settings(self, values: Mapping[str, Any]) -> None:
        """Take the settings of the run, first of all and after each resumption.

        Args:
            values: settings by their names in config.json, as JSON types.
        """

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Take losses and times every `--log-every` steps, and the figures of each evaluation.

        Args:
            step: number of steps done.
            values: numbers by their names in metrics.jsonl, which may be NaN.
        """

    def pictures(self, step: int, values: Mapping[str, np.ndarray]) -> None:
        """Take the grid of real samples under the name real at the start, and each grid of drawn ones as samples.

        Args:
            step: number of steps done.
            values: uint8 (H, W, 3) by name.
        """

    def close(self) -> None:
        """Write what is left; the run ends, or is interrupted."""


@dataclasses.dataclass(frozen=True)
class LoggerChoice:
    """A logger that was asked for."""

    name: str
    make: Callable[[Path, int], Logger]  # from the run folder and the number of steps done so far
    repeats: bool = False  # whether it replaces what was logged of a step before, so that it gets repeated steps, too


_KNOWN: Mapping[str, Callable[[Path, int], Logger]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}


def chosen_loggers(names: Sequence[str], own: Sequence[LoggerChoice] = ()) -> list[LoggerChoice]:
    """Find the loggers of --logger before data are read; `own` are those that Python code has given."""
    given, chosen = {each.name: each for each in own}, [name for name in names if name != "none"]
    if len({*chosen}) < len(chosen):
        raise UserError(f"--logger {','.join(chosen)}: one is named twice")
    return [given.get(name) or find(name) for name in chosen]


def find(name: str) -> LoggerChoice:
    """Find a logger by a name of --logger; a UserError says that there is none, or that its library is missing."""
    module, _, attribute = name.partition(":")
    if name in _KNOWN:
        if importlib.util.find_spec(name) is None:
            raise UserError(f"--logger {name}: {name} is not installed for this Python; pip install {name}")
        return LoggerChoice(name, _KNOWN[name], repeats=name == "tensorboard")
    expected = f"expected none, {', '.join(_KNOWN)}, or a class of your own as my_module:MyLogger"
    if not attribute or not module or module.endswith(".py"):
        raise UserError(f"--logger {name}: {expected}")
    search_working_folder()
    try:
        made_by = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # the user's module may raise anything
        raise UserError(f"--logger {name}: {type(error).__name__}: {in_one_line(error)}; {expected}") from error
    refuse_borrowed(f"--logger {name}", made_by)
    return choice_of(made_by, name)


def choice_of(logger: Any, name: str = "") -> LoggerChoice:
    """Make a choice of a class, of another function of the run folder, or of a logger; a UserError if it is none."""
    name = name or name_of(logger)
    is_one = not isinstance(logger, type) and hasattr(logger, "scalars")
    missing = [method for method in _METHODS if not callable(getattr(logger, method, None))]
    if missing and (is_one or isinstance(logger, type) or not callable(logger)):
        raise UserError(
            f"--logger {name}: it has no {', '.join(missing)}(); a subclass of hvdgan.Logger needs only the "
            "methods that it uses"
        )
    return LoggerChoice(name, lambda run_dir, _: logger if is_one else logger(run_dir))


def name_of(thing: Any) -> str:
    """The name of a class, or of the class of an object, with its module, as the command line would have it."""
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}:{named.__qualname__}"


def _log(logger: Logger, step: int, values: dict[str, float]) -> None:
    logger.scalars(step, values)


class _Feed:
    """Calls a logger in a thread: makes it at the first call, and drops it after an error."""

    def __init__(
        self, choice: LoggerChoice, run_dir: Path, step: int, tell: Callable[[Event], None], stop: Callable[[str], None]
    ) -> None:
        self.choice, self._run_dir, self._step, self._tell, self._stop = choice, run_dir, step, tell, stop
        self._calls: queue.Queue[Callable[[Logger], None] | None] = queue.Queue(MOST_CALLS)
        self._is_lost = False
        # A daemon thread: a logger that hangs does not keep the process.
        self._thread = threading.Thread(target=self._work, name=f"logger {choice.name}", daemon=True)
        self._thread.start()

    def put(self, call: Callable[[Logger], None] | None) -> None:
        """Begin a call of the logger; None closes it."""
        if not self._is_lost:
            try:
                self._calls.put_nowait(call)
            except queue.Full:
                self._lose(f"it is {MOST_CALLS:,} calls behind")

    def join(self, seconds: float) -> bool:
        """Wait until the logger is closed, for a time; returns whether it is, or was lost before."""
        if not self._is_lost:
            self._thread.join(seconds)
        return self._is_lost or not self._thread.is_alive()

    def _work(self) -> None:
        logger = None
        try:
            logger = self.choice.make(self._run_dir, self._step)
            while (call := self._calls.get()) is not None and not self._is_lost:
                try:
                    call(logger)
                except StopRun as error:
                    self._stop(f"logger {self.choice.name}: {in_one_line(error)}")
            logger.close()
        except Exception as error:  # the user's code and servers may raise anything
            self._lose(f"{type(error).__name__}: {in_one_line(error)[:300]}")
            if logger is not None:
                with contextlib.suppress(Exception):
                    logger.close()

    def _lose(self, why: str) -> None:
        if not self._is_lost:
            self._is_lost = True
            name = self.choice.name
            self._tell(LostLogger(logger=name, text=f"logger {name} has failed ({why}); the run continues without it"))


class Loggers:
    """The loggers of a run, on rank 0; `repeated`: names logged before the resume, by step; they are not sent again."""

    def __init__(
        self,
        choices: Sequence[LoggerChoice],
        run_dir: Path,
        step: int,
        repeated: Mapping[int, set[str]],
        settings: Mapping[str, Any],
        tell: Callable[[Event], None],
        stop: Callable[[str], None],
    ) -> None:
        self._repeated = repeated
        self._feeds = [_Feed(each, run_dir, step, tell, stop) for each in choices]
        for feed in self._feeds:
            feed.put(lambda logger: logger.settings(dict(settings)))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Give numbers to each logger, without those that it has of this step."""
        known = self._repeated.get(step, ())
        new = {name: value for name, value in values.items() if name not in known}
        for feed in self._feeds:
            if given := values if feed.choice.repeats else new:
                feed.put(functools.partial(_log, step=step, values=dict(given)))

    def pictures(self, step: int, values: Mapping[str, np.ndarray], *, repeated: bool) -> None:
        """Give pictures to each logger, or if they are `repeated`, to those that replace them."""
        for feed in self._feeds:
            if feed.choice.repeats or not repeated:
                feed.put(lambda logger: logger.pictures(step, dict(values)))

    def close(self) -> None:
        """Close the loggers, and wait for them: for a bounded time, and after a few seconds not in silence."""
        for feed in self._feeds:
            feed.put(None)
        for feed in self._feeds:
            if not feed.join(SOON):
                print(f"hvdgan: waiting for the logger {feed.choice.name} to finish", file=sys.stderr, flush=True)
                if not feed.join(PATIENCE - SOON):
                    feed._lose(f"it has not finished within {PATIENCE:.0f} s")
