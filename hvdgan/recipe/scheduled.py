"""The current values of schedules, which losses, sample() and evaluate() read as batch.schedule(name)."""

import numbers
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from hvdgan.recipe.schedule import Schedule, value_at
from hvdgan.recipe.stage_plan import StagePlan
from hvdgan.recipe.stages import Stage


class ScheduledValues:
    """The values of the schedules of a recipe's stages, as variables; no checkpoint holds them, as the step gives them.

    `options` are the recipe's. `epoch` is the number of samples of an epoch and of a global batch.
    """

    def __init__(self, stages: Sequence[Stage] = (), options: Any = None, epoch: tuple[int, int] = (1, 1)) -> None:
        self._options, self._epoch, first = options, epoch, tf.constant(0, tf.int64)
        named = ((stage, *each) for stage in reversed(stages) for each in stage.schedules.items())
        initial = {name: self.at(schedule, stage, first) for stage, name, schedule in named}
        # An option's value lasts until a stage names the schedule.
        self._initial = {name: self._options_value(name, value) for name, value in initial.items()}
        self.variables = {
            name: keras.Variable(value, trainable=False, dtype="float32", name=f"schedule_{name}")
            for name, value in self._initial.items()
        }
        """by the schedule's name"""

    def at(self, schedule: Schedule, stage: Stage, stage_step: tf.Tensor) -> tf.Tensor:
        """The value of a schedule at a step of a stage, from 0, scalar float32."""
        return value_at(schedule, stage_step, stage.steps, self._epoch)

    def assign(self, stage: Stage, stage_step: tf.Tensor) -> None:
        """Set the values that the stage names to those of its step, from 0."""
        for name, schedule in stage.schedules.items():
            self.variables[name].assign(self.at(schedule, stage, stage_step))

    def restore(self, plan: StagePlan, step: int) -> None:
        """Set the values to those after a number of steps of the whole run."""
        for name, value in self._initial.items():
            self.variables[name].assign(value)
        last = plan.at(step - 1) if step else None
        for index, stage in enumerate(plan.stages[: last.index + 1] if last else ()):
            done = last.stage_step if last and index == last.index else plan.steps_of(index) - 1
            self.assign(stage, tf.constant(done, tf.int64))

    def read(self, name: str) -> tf.Tensor:
        """The value of a schedule, or of the option of its name if no stage names it, scalar float32."""
        if name in self.variables:
            return self.variables[name].value.read_value()
        if (value := self._options_value(name)) is None:
            known = ", ".join(self.variables) or "none"
            raise ValueError(f"there is no schedule {name}, nor an option of that name; the stages have {known}")
        return value

    def _options_value(self, name: str, default: Any = None) -> Any:
        option = getattr(self._options, name, None)
        return tf.constant(option, tf.float32) if isinstance(option, numbers.Real) else default
