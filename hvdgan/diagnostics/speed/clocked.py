"""Takes the time of every step and batch of the training loop.

The loop is given a ClockedStep for each stage's step, and ClockedBatches. The time between two calls, minus
the wait for data, is the host's: the loop itself, checks for signals, and logging at its usual period.
"""

import contextlib
import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from hvdgan.data.batches import Batches
from hvdgan.diagnostics.speed.blocks import Block, Clock
from hvdgan.diagnostics.speed.meeting import Meeting
from hvdgan.distributed.batch_norm import SynchronisedBatchNormalization
from hvdgan.distributed.ranks import Ranks
from hvdgan.networks import device
from hvdgan.networks.nested_layers import layers_of
from hvdgan.training.gradients import used
from hvdgan.training.memory import peak_memory
from hvdgan.training.pending import Requests
from hvdgan.training.run import Run
from hvdgan.training.step import StageStep


def largest(peaks: Iterable[Mapping[str, int | None]]) -> dict[str, int | None]:
    """The largest of each figure of peak_memory(), such as of several stages or ranks."""
    every = list(peaks)
    return {name: max((each[name] for each in every), key=lambda value: value or 0) for name in every[0]}


class Unreduced(Ranks):
    """Ranks with the same slices of the batch, which do not exchange gradients."""

    def reduced_gradients(self, *arguments: Any, **more: Any) -> list[tf.Tensor]:
        """Return this rank's own gradients."""
        return Ranks().reduced_gradients(*arguments, **more)

    def mean(self, values: tf.Tensor) -> tf.Tensor:
        """Return this rank's own values."""
        return values


class WithoutCommunication:
    """A context in which this rank's networks do not communicate, not even for --sync-batch-norm."""

    def __init__(self, run: Run) -> None:
        fields = dataclasses.fields(run.ranks)
        self.ranks = Unreduced(**{field.name: getattr(run.ranks, field.name) for field in fields})
        self._together = run.ranks
        self._layers = [
            layer
            for network in run.state.networks.values()
            for layer in layers_of(network)
            if isinstance(layer, SynchronisedBatchNormalization)
        ]

    def __enter__(self) -> None:
        self._set(self.ranks)

    def __exit__(self, *exception: object) -> None:
        self._set(self._together)

    def _set(self, ranks: Ranks) -> None:
        # Tracing reads it; functions that are traced already do not change.
        for layer in self._layers:
            layer.set_ranks(ranks, layer.weight)


class Ends:
    """Waits for the ends of steps, as far behind the newest one as the training loop does: a GPU computes meanwhile."""

    def __init__(self) -> None:
        self._most = device.chosen().steps_behind
        self._request = Requests(self._most)
        self._waiting: deque[Callable[[], list[bool]]] = deque()

    def wait(self, finite: tf.Tensor, *, all_of_them: bool) -> None:
        """Wait for the ends of those steps that the loop would wait for."""
        self._waiting.append(self._request(finite))
        all_of_them |= self._most == 1  # on a CPU the step has ended
        while len(self._waiting) > (0 if all_of_them else self._most):
            self._waiting.popleft()()


@dataclasses.dataclass
class Session:
    """State that the steps of all stages share."""

    ranks: Ranks
    meeting: Meeting | None
    began: float
    ended: float = 0.0
    """end of the last call, by perf_counter"""
    waited: float = 0.0
    """seconds that the loop waited for its newest batch"""
    startup: float | None = None
    """seconds from the launch to the end of the first step"""
    met: bool = False
    ends: Ends = dataclasses.field(default_factory=Ends)

    def together(self, block: Block) -> None:
        """Wait until all ranks, or all copies, are about to begin a block."""
        if self.ranks.size > 1:
            self.ranks.gather(None, "bench: block")
        elif self.meeting and block.measured and not self.met:
            self.met = True
            self.meeting.wait()


class ClockedStep:
    """A stage's step, with and without all-reduce, and its clock."""

    def __init__(self, inner: StageStep, apart: WithoutCommunication, clock: Clock, session: Session) -> None:
        self.inner = inner
        self.stage = inner.stage
        self.apart = apart
        self.unreduced = inner.with_ranks(apart.ranks)
        self.clock = clock
        self.session = session
        self.data: dict[str, tf.Tensor] = {}
        self.peak: dict[str, int | None] = {}
        """peak memory of the stage before its first step without all-reduce; without such steps, at its end"""

    def __call__(self, step: int, stage_step: int, data: dict[str, tf.Tensor]) -> Any:
        session = self.session
        if stage_step >= self.clock.steps:  # a copy that waits for the others
            return self.inner(step, stage_step, data)
        block, begins = self.clock.enter(stage_step)
        if begins:
            if not (block.reduces or self.clock.times[True]):
                self.peak = peak_memory()
            session.together(block)
        with contextlib.nullcontext() if block.reduces else self.apart:
            begin = time.perf_counter()
            metrics, finite = (self.inner if block.reduces else self.unreduced)(step, stage_step, data)
            session.ends.wait(finite, all_of_them=self.clock.ends_all)
            end = time.perf_counter()
        if not self.peak and stage_step + 1 == self.clock.steps:
            self.peak = peak_memory()
        self.clock.add(end - session.ended, session.waited, end - begin)
        session.ended = end
        if session.startup is None:
            session.startup = time.time() - session.began
        self.data = used(data)
        return metrics, finite


class ClockedBatches(Batches):
    """Batches that record how long the loop waits for each."""

    def __init__(self, session: Session, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._session = session

    def __next__(self) -> dict[str, tf.Tensor]:
        begin = time.perf_counter()
        batch = super().__next__()
        self._session.waited = time.perf_counter() - begin
        return batch
