"""Maps the global step to a stage and a step within it, for the stages of a recipe or those that --stages chooses."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from hvdgan.cli.errors import UserError
from hvdgan.recipe.checks.stages import check_stage, check_stages
from hvdgan.recipe.mistakes import Mistake
from hvdgan.recipe.stages import Stage


@dataclasses.dataclass(frozen=True)
class Position:
    """The place of a global step: the index of its stage, the stage, and the step within it, counted from 0."""

    index: int
    stage: Stage
    stage_step: int


class Schedule:
    """A sequence of stages: a pure function from the global step to the position.

    Args:
        stages: stages of the recipe, at least one.
        networks: names of all networks of the recipe.
        choice: value of --stages, such as "completion=2000,joint=5000": any of the stages, in any order, also more
            than once; None: the stages of the recipe.

    Raises:
        UserError: a stage or an update cannot be run; the message says what to change.
    """

    def __init__(self, stages: Sequence[Stage], networks: Sequence[str], choice: str | None = None) -> None:
        check_stages(stages, set(networks))
        self.stages = tuple(stages) if choice is None else _choose(stages, choice)
        self.ended: dict[int, int] = {}
        """numbers of steps of the stages that have ended early, by index"""

    def progress(self) -> dict[str, Any]:
        """The state of the schedule for a checkpoint, as JSON can express it."""
        return {"ended": dict(self.ended)}

    def restore(self, progress: dict[str, Any]) -> None:
        """Restore the state that progress() returned, after it was read from JSON."""
        self.ended.update({int(index): steps for index, steps in progress.get("ended", {}).items()})

    @property
    def total_steps(self) -> int:
        """Number of steps of all stages."""
        return sum(self.steps_of(index) for index in range(len(self.stages)))

    def steps_of(self, index: int) -> int:
        """Number of steps of a stage, which is smaller if the stage has ended early."""
        return self.ended.get(index, self.stages[index].steps)

    def at(self, step: int) -> Position:
        """Return the position of a global step, 0 <= step < total_steps.

        Raises:
            ValueError: the step is outside the schedule.
        """
        begin = 0
        for index, stage in enumerate(self.stages):
            if begin <= step < begin + self.steps_of(index):
                return Position(index, stage, step - begin)
            begin += self.steps_of(index)
        raise ValueError(f"step {step} is outside the schedule of {self.total_steps} steps")


def _choose(stages: Sequence[Stage], choice: str) -> tuple[Stage, ...]:
    by_name = {stage.name: stage for stage in stages}
    chosen = []
    for part in choice.split(","):
        name, _, steps = part.strip().partition("=")
        if name not in by_name or not steps.isdecimal():
            known = ",".join(f"{stage.name}={stage.steps}" for stage in stages)
            raise UserError(
                f'--stages: "{part.strip()}" is not NAME=STEPS with a stage of the recipe, which are {known}'
            )
        chosen.append(dataclasses.replace(by_name[name], steps=int(steps)))
        try:
            check_stage(chosen[-1], {owned for update in by_name[name].updates for owned in update.owns})
        except Mistake as mistake:  # the mistake is in the command line, not in the recipe
            raise UserError(f"--stages {choice}: {mistake}") from None
    return tuple(chosen)
