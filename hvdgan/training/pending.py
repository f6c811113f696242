"""Steps that have begun and whose verdicts are not read yet, so that the device computes while the host reads one."""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FuturesTimeoutError
from typing import Any, NamedTuple

import tensorflow as tf

from hvdgan.cli.errors import RunError
from hvdgan.recipe.schedule import Position
from hvdgan.training.observations import Observations


class PendingStep(NamedTuple):
    """A step that has begun.

    Args:
        step: global step, from 0.
        at: its position in the schedule.
        data: batch of data.
        metrics: metrics by name, which nobody has read.
        finite: verdicts, (n,) bool for each update that was due, in order: whether it was finite.
        begin: time at which it began, by perf_counter (seconds).
        waited: time from there until its images were there (seconds).
        between: time of the work since the step before (seconds).
    """

    step: int
    at: Position
    data: dict[str, tf.Tensor]
    metrics: dict[str, Any]
    finite: tf.Tensor
    begin: float
    waited: float
    between: float


class Requests:
    """Requests the verdicts of steps, each as soon as its step has begun.

    TensorFlow copies a result from a GPU after all work that the GPU has been given when the copy is requested
    (CopyGPUTensorToCPU in its gpu_util.cc). A verdict that is requested when later steps have begun would be read when
    these have ended, with nothing left for the GPU to do. So a step has one tensor of verdicts, and where several steps
    may wait, each is requested by a thread that waits for no other.

    Args:
        most: number of steps whose verdicts may wait while the next one begins.
    """

    def __init__(self, most: int) -> None:
        # The newest step is requested before the oldest one is awaited.
        self._threads = ThreadPoolExecutor(most + 1, "hvdgan-verdicts") if most > 1 else None

    def __call__(self, finite: tf.Tensor) -> Callable[[float | None], list[bool]]:
        """Request the verdicts of the newest step.

        Args:
            finite: verdicts, (n,) bool.

        Returns:
            Function that waits for them. Its argument is a time limit in seconds, which holds where several steps may
            wait; None: no limit.
        """
        return self._threads.submit(_read, finite).result if self._threads else lambda _: _read(finite)


class PendingSteps:
    """Reads the verdicts of steps in their order, and hands each step to the observations."""

    def __init__(self, observations: Observations, most: int) -> None:
        self._observations = observations
        self._most = most
        self._request = Requests(most)
        self._steps: deque[tuple[PendingStep, Callable[[float | None], list[bool]]]] = deque()
        """steps, each with the function that waits for its verdicts"""
        self._ended = 0.0

    def begin_stage(self, at: Position) -> None:
        """Begin a stage, or resume in the middle of it; the verdicts of the stage before have been read."""
        self._observations.begin_stage(at)

    def add(self, begun: PendingStep) -> None:
        """Add the newest step, and read the verdict of the oldest if too many wait."""
        self._steps.append((begun, self._request(begun.finite)))
        while len(self._steps) > self._most:
            self._read()

    def settle(self) -> None:
        """Read all verdicts, which waits until the newest step has ended."""
        while self._steps:
            self._read()

    def settle_after_failure(self, seconds: float = 5.0) -> None:
        """Log which updates of the steps that still wait were skipped, without the other ranks.

        An error ends the run, so the other ranks may be elsewhere.
        """
        end = time.perf_counter() + seconds
        with contextlib.suppress(tf.errors.OpError, FuturesTimeoutError):
            while self._steps:
                begun, wait = self._steps.popleft()
                skipped = _skipped(begun.at, wait(max(0.0, end - time.perf_counter())))
                self._observations.add_after_failure(begun.step, begun.at, begun.metrics, skipped)

    def _read(self) -> None:
        """Read the verdict of the oldest step.

        Its time counts from the end of the step before, as far as the host knows it: the times of the steps between two
        settle() add up to the time that they took together.
        """
        begun, wait = self._steps.popleft()
        skipped = _skipped(begun.at, wait(None))
        now = time.perf_counter()
        newest = self._steps[-1][0].step if self._steps else begun.step
        seconds = {
            "between_seconds": begun.between,
            "wait_seconds": begun.waited,
            "step_seconds": now - max(begun.begin, self._ended),
        }
        self._ended = now
        try:
            self._observations.add(begun.step, begun.at, begun.data, begun.metrics, skipped, seconds, newest)
        except RunError:  # the run ends with this step, and not with a later one
            self._steps.clear()
            raise


def _read(finite: tf.Tensor) -> list[bool]:
    """Wait for the verdicts of a step."""
    verdicts: list[bool] = finite.numpy().tolist()
    return verdicts


def _skipped(at: Position, verdicts: Sequence[bool]) -> dict[str, bool]:
    """Whether each update that was due was skipped, by its name."""
    due = at.stage.due(at.stage_step)
    return {update.name: not is_finite for update, is_finite in zip(due, verdicts, strict=True)}
