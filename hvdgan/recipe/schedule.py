"""Maps the global step to a stage and a step within it."""

import dataclasses
from collections.abc import Sequence
from typing import Any

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
        stages: stages to run, at least one, as checked_stages() returns them.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = tuple(stages)
        self._ended: dict[int, int] = {}
        """numbers of steps of the stages that have ended early, by index"""

    def progress(self) -> dict[str, Any]:
        """The state of the schedule for a checkpoint, as JSON can express it."""
        return {"ended": dict(self._ended)}

    def restore(self, progress: dict[str, Any]) -> None:
        """Restore the state that progress() returned, after it was read from JSON."""
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


def is_due(done: int, every: int) -> bool:
    """Return whether periodic work is due after `done` steps; never if its period, `every`, is 0."""
    return every > 0 and done % every == 0
