"""Steps that have begun and whose verdicts are not read yet, so that the device computes while the host reads one."""

import contextlib
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FuturesTimeoutError
from typing import Any, NamedTuple

import tensorflow as tf

from hvdgan.cli.errors import RunError
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

    TensorFlow copies a result from a GPU after all work that the GPU has been given when the copy is requested
    (CopyGPUTensorToCPU in its gpu_util.cc). A verdict that is requested when later steps have begun would be read when
    these have ended, with nothing left for the GPU to do. So where several steps may wait, a thread requests each
    verdict as soon as its step has begun.

    Args:
        observations: observations of the run.
        most: number of steps whose verdicts may wait while the next one begins.
    """

    def __init__(self, observations: Observations, most: int) -> None:
        self._observations = observations
        self._most = most
        self._reader = ThreadPoolExecutor(1, "hvdgan-verdicts") if most > 1 else None
        self._steps: deque[tuple[Begun, Callable[[float | None], dict[str, bool]]]] = deque()
        """steps, each with a function that waits for its verdicts; its argument is a time limit in seconds"""
        self._ended = 0.0

    def begin_stage(self, at: Position) -> None:
        """Begin a stage, or resume in the middle of it; the verdicts of the stage before have been read."""
        self._observations.begin_stage(at)

    def add(self, begun: Begun) -> None:
        """Add the newest step, and read the verdict of the oldest if too many wait.

        Raises:
            RunError: an update was not finite --max-bad-steps times in a row.
        """
        wait = self._reader.submit(_skipped, begun.finite).result if self._reader else lambda _: _skipped(begun.finite)
        self._steps.append((begun, wait))
        while len(self._steps) > self._most:
            self._read()

    def settle(self) -> None:
        """Read all verdicts, which waits until the newest step has ended.

        Raises:
            RunError: as in add().
        """
        while self._steps:
            self._read()

    def settle_after_failure(self, seconds: float = 5.0) -> None:
        """Log which updates of the steps that still wait were skipped, without the other ranks.

        An error ends the run, so the other ranks may be elsewhere.

        Args:
            seconds: time limit for all verdicts, because a lost rank may keep one back for ever.
        """
        end = time.perf_counter() + seconds
        with contextlib.suppress(tf.errors.OpError, FuturesTimeoutError):
            while self._steps:
                begun, wait = self._steps.popleft()
                skipped = wait(max(0.0, end - time.perf_counter()))
                self._observations.add_after_failure(begun.step, begun.at, begun.metrics, skipped)

    def _read(self) -> None:
        """Read the verdict of the oldest step.

        Its time counts from the end of the step before, as far as the host knows it: the times of the steps between two
        settle() add up to the time that they took together.
        """
        begun, wait = self._steps.popleft()
        skipped = wait(None)
        now = time.perf_counter()
        seconds = {
            "between_seconds": begun.between,
            "wait_seconds": begun.waited,
            "step_seconds": now - max(begun.begin, self._ended),
        }
        self._ended = now
        try:
            self._observations.add(begun.step, begun.at, begun.data, begun.metrics, skipped, seconds)
        except RunError:  # the run ends with this step, and not with a later one
            self._steps.clear()
            raise


def _skipped(finite: dict[str, tf.Tensor]) -> dict[str, bool]:
    """Wait for the verdict of each update, and return whether the update was skipped."""
    return {update: not is_finite.numpy() for update, is_finite in finite.items()}
