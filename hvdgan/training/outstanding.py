"""Steps that have begun and whose verdicts are not read yet, so that the device computes while the host reads one."""

import time
from collections import deque
from typing import Any, NamedTuple

import tensorflow as tf

from hvdgan.recipe.schedule import Position
from hvdgan.training.observations import Observations


class Begun(NamedTuple):
    """A step that has begun.

    Args:
        step: global step, from 0.
        at: its position in the schedule.
        data: images and labels.
        metrics: metrics by name, which nobody has read.
        finite: scalar bool of each update that was due: whether it was finite, and applied.
        begin: time at which it began, by perf_counter (seconds).
        waited: time from there until its images were there (seconds).
        between: time of the work since the step before (seconds).
    """

    step: int
    at: Position
    data: dict[str, tf.Tensor]
    metrics: dict[str, Any]
    finite: dict[str, tf.Tensor]
    begin: float
    waited: float
    between: float


class Outstanding:
    """Reads the verdicts of steps in their order, and hands each step to the observations.

    Args:
        observations: observations of the run.
        most: number of steps whose verdicts may wait while the next one begins.
    """

    def __init__(self, observations: Observations, most: int) -> None:
        self._observations = observations
        self._most = most
        self._steps: deque[Begun] = deque()
        self._ended = 0.0

    def begin_stage(self, at: Position) -> None:
        """Begin a stage, or resume in the middle of it; the verdicts of the stage before have been read."""
        self._observations.begin_stage(at)

    def add(self, begun: Begun) -> None:
        """Add the newest step, and read the verdict of the oldest if too many wait.

        Raises:
            RunError: an update was not finite --max-bad-steps times in a row.
        """
        self._steps.append(begun)
        while len(self._steps) > self._most:
            self._read()

    def settle(self) -> None:
        """Read all verdicts, which waits until the newest step has ended.

        Raises:
            RunError: as in add().
        """
        while self._steps:
            self._read()

    def _read(self) -> None:
        """Read the verdict of the oldest step.

        Its time counts from the end of the step before, as far as the host knows it: the times of the steps between two
        settle() add up to the time that they took together.
        """
        begun = self._steps.popleft()
        skipped = {update: not is_finite.numpy() for update, is_finite in begun.finite.items()}
        now = time.perf_counter()
        seconds = {
            "between_seconds": begun.between,
            "wait_seconds": begun.waited,
            "step_seconds": now - max(begun.begin, self._ended),
        }
        self._ended = now
        self._observations.add(begun.step, begun.at, begun.data, begun.metrics, skipped, seconds)
