"""Staged training as data: updates, stages, and the schedule that maps the global step to them."""

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

from hvdgan.errors import UserError

# (networks, batch) -> (scalar loss, metrics by name)
Loss = Callable[[Any, Any], tuple[Any, dict[str, Any]]]


@dataclasses.dataclass(frozen=True)
class Update:
    """One optimizer step on the networks it owns.

    Args:
        name: unique in its stage; metrics are reported as <name>/<metric>.
        owns: the networks whose trainable variables get gradients and whose statistics move.
        loss: called with the networks and the batch; returns a scalar, the mean over the batch, and a dict of scalars.
        every: run at the steps of the stage that this divides; a critic that steps n times as often as its
            generator is an update with every=1 beside one with every=n.
    """

    name: str
    owns: Sequence[str]
    loss: Loss
    every: int = 1

    def due(self, stage_step: int) -> bool:
        """Whether the update runs at this step of its stage; the first step is 0, and an n-th is the last of each n."""
        return (stage_step + 1) % self.every == 0


@dataclasses.dataclass(frozen=True)
class Stage:
    """A number of steps, each of which runs the same updates in order."""

    name: str
    steps: int
    updates: Sequence[Update]

    def due(self, stage_step: int) -> tuple[Update, ...]:
        """The updates that run at a step of this stage, in order."""
        return tuple(update for update in self.updates if update.due(stage_step))


@dataclasses.dataclass(frozen=True)
class Position:
    """Where a global step is: the index of its stage, the stage, and the step within it (from 0)."""

    index: int
    stage: Stage
    stage_step: int


class Schedule:
    """The stages one after another: a pure function from the global step to the position.

    Args:
        stages: at least one.
        networks: the names of all networks of the recipe.

    Raises:
        UserError: a stage or update that cannot be run; the message says what to change.
    """

    def __init__(self, stages: Sequence[Stage], networks: Sequence[str]) -> None:
        self.stages = tuple(stages)
        _check(self.stages, set(networks))
        self.total_steps = sum(stage.steps for stage in self.stages)

    def at(self, step: int) -> Position:
        """The position of a global step, 0 <= step < total_steps.

        Raises:
            ValueError: the step is outside the schedule.
        """
        begin = 0
        for index, stage in enumerate(self.stages):
            if begin <= step < begin + stage.steps:
                return Position(index, stage, step - begin)
            begin += stage.steps
        raise ValueError(f"step {step} is outside the schedule of {self.total_steps} steps")


def _check(stages: Sequence[Stage], networks: set[str]) -> None:
    if not stages:
        raise UserError("the recipe has no stages; stages() must return at least one Stage")
    _check_unique([stage.name for stage in stages], "stages() of the recipe", "stage")
    for stage in stages:
        _check_name(stage.name, f"stage {stage.name}")
        if stage.steps < 1:
            raise UserError(f"stage {stage.name}: {stage.steps} steps; a stage needs at least 1, or leave it out")
        if not stage.updates:
            raise UserError(f"stage {stage.name}: no updates; give it at least one Update, or leave it out")
        _check_unique([update.name for update in stage.updates], f"stage {stage.name}", "update")
        for update in stage.updates:
            _check_update(stage, update, networks)
    unowned = networks - {name for stage in stages for update in stage.updates for name in update.owns}
    if unowned:
        raise UserError(
            f"no update owns {_names(unowned)}; name it in some update's owns, or leave it out of networks()"
        )


def _check_update(stage: Stage, update: Update, networks: set[str]) -> None:
    where = f"stage {stage.name}, update {update.name}"
    _check_name(update.name, where)
    if isinstance(update.owns, str) or not update.owns:
        raise UserError(f"{where}: owns is {update.owns!r}; it must be a list of at least one network's name")
    _check_unique(update.owns, where, "owned network")
    unknown = set(update.owns) - networks
    if unknown:
        raise UserError(f"{where}: owns {_names(unknown)}, and networks() returns {_names(networks)}")
    if not 1 <= update.every <= stage.steps:
        raise UserError(f"{where}: every is {update.every}; it must be from 1 to the stage's {stage.steps} steps")


def _check_name(name: str, where: str) -> None:
    # The ranks' tensors and the metrics are named after it.
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
        raise UserError(f"{where}: a name is made of letters, digits, and _ . - after the first; choose another")


def _check_unique(names: Sequence[str], where: str, kind: str) -> None:
    twice = {name for name in names if list(names).count(name) > 1}
    if twice:
        raise UserError(f"{where}: {kind} {_names(twice)} is named twice; every name must be there once")


def _names(names: set[str]) -> str:
    return ", ".join(sorted(names))
