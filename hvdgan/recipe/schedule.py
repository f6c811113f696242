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
        check(all(map(_is_number, self.ends)), f"{self}; start and end must be numbers")
        counts = self.warmup_steps, self.hold_steps, self.every - 1, 0 if self.epochs is None else self.epochs - 1
        fits = all(float(each).is_integer() and each >= 0 for each in counts)
        check(fits, f"{self}; warmup_steps and hold_steps must be whole numbers from 0 up, every and epochs from 1 up")
        check(self.every == 1 or self.epochs is None, f"{self}; leave out every or epochs")
        if self.kind == "exponential":
            rates = [each for each in (self.end, self.factor) if each is not None]
            fits = len(rates) == 1 and all(_is_number(each) and each > 0 for each in (self.start, *rates))
            check(fits, f"{self}; exponential needs start, and end or factor, above 0")
        else:
            check(self.factor is None, f'{self}; a factor needs kind="exponential"')
            check(self.kind != "cosine" or self.end is not None, f"{self}; cosine needs an end")

    @property
    def ends(self) -> tuple[float, ...]:
        """The values between which the schedule stays after its warm-up, if it has no factor."""
        return (self.start,) if self.end is None else (self.start, self.end)

    @property
    def spans_stage(self) -> bool:
        """Whether a longer stage changes earlier values."""
        return self.kind != "constant" and self.end not in (None, self.start)

    def at(self, stage_step: tf.Tensor, steps: int, epoch: tuple[int, int]) -> tf.Tensor:
        """The value at a step, from 0, of a stage of so many steps, a scalar float32.

        epoch: number of samples of an epoch and of a global batch, whose quotient is the steps of an epoch.
        """
        first, done = float(self.warmup_steps + self.hold_steps), tf.cast(stage_step, tf.float32)
        # In whole numbers, as an epoch may have a broken number of steps.
        length, count = (self.every, 1) if self.epochs is None else (self.epochs * epoch[0], epoch[1])
        changes = begun = done - first
        if (length, count) != (1, 1):
            number = tf.maximum(stage_step - int(first), 0) * count // length
            changes, begun = (tf.cast(each, tf.float32) for each in (number, -(-number * length // count)))
        # A product, into which TensorFlow's graph optimizer turns a division: bits are equal with it and without it.
        moved = tf.clip_by_value(begun * (1.0 / max(steps - 1 - first, 1.0)), 0.0, 1.0)
        left = 1.0 - moved
        value, end = tf.constant(self.start, tf.float32), self.end
        if self.factor is not None:
            value *= tf.exp(math.log(self.factor) * tf.maximum(changes, 0.0))
        elif end is not None and self.kind == "exponential":
            value *= tf.exp(math.log(end / self.start) * moved)
        elif end is not None and self.kind != "constant":
            if self.kind == "cosine":
                left = 0.5 * (1.0 - tf.cos(math.pi * left))
                moved = 1.0 - left
            # From the smaller end, so that no value is below it.
            value = float(min(self.ends)) + float(abs(end - self.start)) * (left if end < self.start else moved)
        return value * tf.minimum(1.0, (done + 1.0) * (1.0 / (self.warmup_steps + 1.0)))


def fits_throughout(value: Any, fits: Callable[[float], bool]) -> bool:
    """Whether a number, or both ends of a schedule, are as they must be; None is."""
    ends = value.ends if isinstance(value, Schedule) else () if value is None else (value,)
    return all(_is_number(each) and fits(each) for each in ends)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and math.isfinite(float(value))
