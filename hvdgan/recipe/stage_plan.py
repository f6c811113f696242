"""Chooses the stages to run, and maps the global step to a stage and a step within it."""

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from hvdgan.errors import UserError
from hvdgan.recipe.recipe_errors import Mistake, check, check_unique, described
from hvdgan.recipe.sharing import Sharing
from hvdgan.recipe.stages import Stage, local_networks

_EXAMPLE = '[Stage("adversarial", 1000, [Update(...)])]'


def checked_stages(
    stages: Sequence[Stage],
    networks: Sequence[str],
    choice: str | None = None,
    *,
    frozen: Collection[str] = (),
    sharing: Sharing | None = None,
) -> tuple[Stage, ...]:
    """Return the stages of --stages, such as "completion=2000,joint=5000", or all; refuse those with wrong owners."""
    sharing = sharing or Sharing({})
    fits = isinstance(stages, tuple | list) and stages and all(isinstance(stage, Stage) for stage in stages)
    check(fits, f"stages() returns {described(stages)}; it must return a list of Stage, as in {_EXAMPLE}")
    check_unique("stage", [stage.name for stage in stages])
    known = {*networks, *frozen}
    for stage in stages:
        owned, where = {*stage.owns}, f"stage {stage.name}"
        check(owned <= known, f"{where}: owns {_listed(owned - known)}, and networks() returns {_listed(known)}")
        check(
            not owned & {*frozen},
            f"{where}: owns {_listed(owned & {*frozen})}, which has no trainable variables; leave trainable = False "
            "out, as an update changes only what it owns, or leave the frozen network out of owns",
        )
    unowned = {*networks} - sharing.covered(name for stage in stages for name in stage.owns)
    check(
        not unowned,
        f"no update owns {_listed(unowned)}; name it in some update's owns, set its trainable = False in networks() "
        "if it is frozen, or leave it out",
    )
    local = sharing.relatives(local_networks(stages))
    for stage in stages:
        for update in stage.updates:
            both = local & {*update.owns} if update.reduce else set()
            check(
                not both,
                f"stage {stage.name}, update {update.name}: owns {_listed(both)}, whose variables an update with "
                "reduce=False trains, too; give reduce=False to every update of these variables, or to none",
            )
    return tuple(stages) if choice is None else tuple(_chosen(stages, choice))


def _chosen(stages: Sequence[Stage], choice: str) -> Iterable[Stage]:
    by_name = {stage.name: stage for stage in stages}
    for part in choice.split(","):
        name, _, steps = part.strip().partition("=")
        if name not in by_name or not steps.isdecimal():
            known = ",".join(f"{stage.name}={stage.steps}" for stage in stages)
            raise UserError(
                f'--stages: "{part.strip()}" is not NAME=STEPS with a stage of the recipe, which are {known}'
            )
        try:
            yield dataclasses.replace(by_name[name], steps=int(steps))
        except Mistake as mistake:  # in the command line, not in the recipe
            raise UserError(f"--stages {choice}: {mistake}") from None


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


@dataclasses.dataclass(frozen=True)
class Position:
    """The place of a global step: the index of its stage, the stage, and the step within it, counted from 0."""

    index: int
    stage: Stage
    stage_step: int


class StagePlan:
    """A sequence of stages, as checked_stages() returns it: a pure function from the global step to the position."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = tuple(stages)
        self._ended: dict[int, int] = {}
        """numbers of steps of the stages that have ended early, by index"""

    def progress(self) -> dict[str, Any]:
        """The state of the plan for a checkpoint, as JSON can express it."""
        return {"ended": dict(self._ended)}

    def resume(self, progress: dict[str, Any]) -> None:
        """Continue from what progress() returned, after it was read from JSON."""
        self._ended.update({int(index): steps for index, steps in progress.get("ended", {}).items()})

    @property
    def total_steps(self) -> int:
        """Number of steps of all stages."""
        return sum(self.steps_of(index) for index in range(len(self.stages)))

    def steps_of(self, index: int) -> int:
        """Number of steps of a stage, which is smaller if the stage has ended early."""
        return self._ended.get(index, self.stages[index].steps)

    def end_early(self, at: Position) -> None:
        """Let the stage of a position end with this step."""
        self._ended[at.index] = at.stage_step + 1

    def at(self, step: int) -> Position:
        """Return the position of a global step, 0 <= step < total_steps."""
        begin = 0
        for index, stage in enumerate(self.stages):
            if begin <= step < begin + self.steps_of(index):
                return Position(index, stage, step - begin)
            begin += self.steps_of(index)
        raise ValueError(f"step {step} is outside the plan of {self.total_steps} steps")


def is_due(done: int, every: int) -> bool:
    """Return whether periodic work is due after `done` steps; never if its period, `every`, is 0."""
    return every > 0 and done % every == 0
