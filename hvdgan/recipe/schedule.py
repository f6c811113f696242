"""Numbers that change during a stage, such as learning rates: each is a function of the step within the stage."""

import dataclasses
import math
import numbers
from collections.abc import Callable
from typing import Any, Literal, get_args

import tensorflow as tf

from hvdgan.recipe.recipe_errors import check

Kind = Literal["linear", "cosine", "exponential", "constant"]


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A number that changes over the steps of a stage.

    Args:
        start: value after the warm-up.
        end: value at the stage's last step; None: the value stays `start`. Of the kind exponential both are above 0.
        kind: how the value goes from `start` to `end`; constant: it stays `start`.
        factor: factor of each change, above 0, in place of `end`, of the kind exponential. A longer stage then changes
            no earlier value.
        warmup_steps: number of first steps in which the value grows linearly to `start`, from 0 up.
        hold_steps: number of steps after these in which the value stays `start`, from 0 up.
        every: number of steps from one change to the next, from 1 up. A value in between is that of the last change.
        epochs: number of epochs of the data from one change to the next, from 1 up, in place of `every`.

    Reference: Goyal et al. 2017, section 2.2 (warm-up); Loshchilov and Hutter 2017, equation 5 (cosine).
    """

    start: float
    end: float | None = None
    kind: Kind = "linear"
    _: dataclasses.KW_ONLY
    factor: float | None = None
    warmup_steps: int = 0
    hold_steps: int = 0
    every: int = 1
    epochs: int | None = None

    def __post_init__(self) -> None:
        check(self.kind in get_args(Kind), f"{self}; kind must be {', '.join(get_args(Kind))}")
        fits = self.start is not None and fits_throughout(self, lambda end: True)
        check(fits, f"{self}; start and end must be numbers")
        counts = self.warmup_steps, self.hold_steps, self.every - 1, 0 if self.epochs is None else self.epochs - 1
        fits = all(float(each).is_integer() and each >= 0 for each in counts)
        check(fits, f"{self}; warmup_steps and hold_steps must be whole numbers from 0 up, every and epochs from 1 up")
        check(self.every == 1 or self.epochs is None, f"{self}; leave out every or epochs")
        if self.kind == "exponential":
            factor = self.end if self.factor is None else self.factor
            fits = all(fits_throughout(each, lambda number: number > 0) for each in (self, factor))
            fits = fits and factor is not None and None in (self.end, self.factor)
            check(fits, f"{self}; exponential needs start, and end or factor, above 0")
        else:
            check(self.factor is None, f'{self}; a factor needs kind="exponential"')
            check(self.kind != "cosine" or self.end is not None, f"{self}; cosine needs an end")


def value_at(schedule: Schedule, stage_step: tf.Tensor, steps: int, epoch: tuple[int, int]) -> tf.Tensor:
    """The value at a step, from 0, of a stage of `steps` steps, a scalar float32.

    epoch: number of samples of an epoch and of a global batch, whose quotient is the steps of an epoch.
    """
    start, end, factor = schedule.start, schedule.end, schedule.factor
    first, done = float(schedule.warmup_steps + schedule.hold_steps), tf.cast(stage_step, tf.float32)
    # In whole numbers, as an epoch may have a broken number of steps.
    length, count = (schedule.every, 1) if schedule.epochs is None else (schedule.epochs * epoch[0], epoch[1])
    changes = begun = done - first
    if (length, count) != (1, 1):
        number = tf.maximum(stage_step - int(first), 0) * count // length
        changes, begun = (tf.cast(each, tf.float32) for each in (number, -(-number * length // count)))
    # A product, into which TensorFlow's graph optimizer turns a division: bits are equal with it and without it.
    moved = tf.clip_by_value(begun * (1.0 / max(steps - 1 - first, 1.0)), 0.0, 1.0)
    left, value = 1.0 - moved, tf.constant(start, tf.float32)
    if factor is not None:
        value *= tf.exp(math.log(factor) * tf.maximum(changes, 0.0))
    elif end is not None and schedule.kind == "exponential":
        value *= tf.exp(math.log(end / start) * moved)
    elif end is not None and schedule.kind != "constant":
        if schedule.kind == "cosine":
            left = 0.5 * (1.0 - tf.cos(math.pi * left))
            moved = 1.0 - left
        # From the smaller end, so that no value is below it.
        value = float(min(start, end)) + float(abs(end - start)) * (left if end < start else moved)
    return value * tf.minimum(1.0, (done + 1.0) * (1.0 / (schedule.warmup_steps + 1.0)))


def fits_throughout(value: Any, fits: Callable[[float], bool]) -> bool:
    """Whether a number, or both ends of a schedule, are as they must be; None is."""
    ends = (
        each for each in ((value.start, value.end) if isinstance(value, Schedule) else (value,)) if each is not None
    )
    return all(isinstance(each, numbers.Real) and math.isfinite(float(each)) and fits(float(each)) for each in ends)
