"""Steps that have begun and whose results are not read yet, so that the device computes while the host reads some."""

import functools
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import tensorflow as tf

from hvdgan.recipe.schedule import Position
from hvdgan.training.observations import Observations


class PendingStep(NamedTuple):
    """A step that has begun, with the seconds that it waited for its images, and those of the work before it."""

    step: int
    at: Position
    data: dict[str, tf.Tensor]
    metrics: dict[str, Any]
    finite: tf.Tensor
    """(n,) bool for each update that was due, in order"""
    begin: float
    """time by perf_counter"""
    waited: float
    between: float


class PendingSteps:
    """Reads whether the updates of steps were finite, in their order, and hands each step to the observations.

    TensorFlow copies a result from a GPU after all work that the GPU has been given when the copy is requested
    (CopyGPUTensorToCPU in its gpu_util.cc). A result that is requested when later steps have begun would be read when
    these have ended, with nothing left for the GPU to do. So where several steps may wait, which `most` says, each
    step's one tensor is requested at once, by a thread that waits for no other.
    """

    def __init__(self, observations: Observations, most: int) -> None:
        self._observations = observations
        self._most = most
        # The newest step is requested before the oldest one is awaited.
        self._threads = ThreadPoolExecutor(most + 1, "hvdgan-results") if most > 1 else None
        self._steps: deque[tuple[PendingStep, Callable[[], list[bool]]]] = deque()
        """steps, each with the function that waits for its result"""
        self._ended = 0.0

    def begin_stage(self, at: Position) -> None:
        """Begin a stage, or resume in the middle of it; the steps of the stage before have been read."""
        self._observations.begin_stage(at)

    def add(self, begun: PendingStep) -> None:
        """Add the newest step, and read the oldest if too many wait."""
        read = functools.partial(_read, begun.finite)
        self._steps.append((begun, self._threads.submit(read).result if self._threads else read))
        while len(self._steps) > self._most:
            self._read_oldest()

    def read_all(self) -> None:
        """Read all steps, which waits until the newest one has ended."""
        while self._steps:
            self._read_oldest()

    def _read_oldest(self) -> None:
        """Read the oldest step.

        Its time counts from the end of the step before, as far as the host knows it: the times of the steps between two
        read_all() add up to the time that they took together.
        """
        begun, wait = self._steps.popleft()
        due = begun.at.stage.due(begun.at.stage_step)
        skipped = {update.name: not finite for update, finite in zip(due, wait(), strict=True)}
        now = time.perf_counter()
        newest = self._steps[-1][0].step if self._steps else begun.step
        seconds = {
            "between_seconds": begun.between,
            "wait_seconds": begun.waited,
            "step_seconds": now - max(begun.begin, self._ended),
        }
        self._ended = now
        self._observations.add(begun.step, begun.at, begun.data, begun.metrics, skipped, seconds, newest)


def _read(finite: tf.Tensor) -> list[bool]:
    results: list[bool] = finite.numpy().tolist()
    return results
