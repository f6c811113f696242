"""The current values of schedules, which losses, sample() and evaluate() read as batch.schedule(name)."""

import numbers
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from hvdgan.recipe.schedule import Schedule
from hvdgan.recipe.stage_plan import StagePlan
from hvdgan.recipe.stages import Stage


class ScheduledValues:
    """The values of the schedules that stages name, as variables; no checkpoint holds them, as the step gives them.

    Args:
        stages: all stages of the recipe, also those that a run leaves out.
        options: the recipe's options, of which one may have the name of a schedule.
        epoch: number of samples of an epoch and of a global batch.
    """

    def __init__(self, stages: Sequence[Stage] = (), options: Any = None, epoch: tuple[int, int] = (1, 1)) -> None:
        self._options, self._epoch = options, epoch
        self._initial: dict[str, tf.Tensor] = {}
        for stage in stages:
            for name in stage.schedules.keys() - self._initial.keys():
                option, first = self._option(name), tf.constant(0, tf.int64)
                # An option's value lasts until a stage names the schedule.
                self._initial[name] = self.at(stage.schedules[name], stage, first) if option is None else option
        self.variables = {
            name: keras.Variable(value, trainable=False, dtype="float32", name=f"schedule_{name}")
            for name, value in self._initial.items()
        }
        """by the schedule's name"""

    def at(self, schedule: Schedule, stage: Stage, stage_step: tf.Tensor) -> tf.Tensor:
        """The value of a schedule at a step of a stage, from 0, scalar float32."""
        return schedule.at(stage_step, stage.steps, self._epoch)

    def assign(self, stage: Stage, stage_step: tf.Tensor) -> None:
        """Set the values that the stage names to those of its step, from 0."""
        for name, schedule in stage.schedules.items():
            self.variables[name].assign(self.at(schedule, stage, stage_step))

    def restore(self, plan: StagePlan, step: int) -> None:
        """Set the values to those after a number of steps of the whole run."""
        for name, value in self._initial.items():
            self.variables[name].assign(value)
        if step == 0:
            return
        last = plan.at(step - 1)
        for index, stage in enumerate(plan.stages[: last.index + 1]):
            done = last.stage_step if index == last.index else plan.steps_of(index) - 1
            self.assign(stage, tf.constant(done, tf.int64))

    def read(self, name: str) -> tf.Tensor:
        """The value of a schedule, or of the option of its name if no stage names it, scalar float32."""
        if name in self.variables:
            return self.variables[name].value.read_value()
        option = self._option(name)
        if option is None:
            known = ", ".join(self.variables) or "none"
            raise ValueError(f"there is no schedule {name}, nor an option of that name; the stages have {known}")
        return option

    def _option(self, name: str) -> tf.Tensor | None:
        option = getattr(self._options, name, None)
        return tf.constant(option, tf.float32) if isinstance(option, numbers.Real) else None
