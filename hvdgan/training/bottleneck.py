"""Checks once, after the first steps, whether reading images keeps up with computing, and suggests remedies."""

from collections.abc import Callable, Sequence

from hvdgan.cli.config import Config
from hvdgan.cli.events import Event, InputSpeed
from hvdgan.distributed.affinity import reading_threads
from hvdgan.distributed.ranks import Ranks

_STEPS = 100
"""number of steps after which the verdict is logged"""
_WARM_UP = 5
"""number of first steps that do not count: they compile, and fill the queue"""
_TOLERATED = 0.1
"""largest fraction of the time that the slowest rank may wait for its images"""


class InputCheck:
    """Adds up the seconds that a rank waits for images, and logs the verdict once."""

    def __init__(
        self, ranks: Ranks, config: Config, tell: Callable[[Event], None], *, prepared: bool, steps: int = _STEPS
    ) -> None:
        self._ranks = ranks
        self._config = config
        self._tell = tell
        self._prepared = prepared
        self._left = steps
        self._counted = steps - _WARM_UP
        self._sums = [0.0, 0.0]

    def add(self, wait_seconds: float, step_seconds: float) -> None:
        """Add a step; every rank calls this after each step."""
        self._left -= 1
        if 0 <= self._left < self._counted:
            self._sums[0] += wait_seconds
            self._sums[1] += step_seconds
        if self._left == 0:
            mine = [total / self._counted for total in self._sums]
            everyones = self._ranks.gather(mine, "seconds waited for images")
            threads = reading_threads(self._config.pipeline.threads, self._ranks)
            self._tell(verdict(everyones, self._config, threads=threads, prepared=self._prepared))


def verdict(everyones: Sequence[Sequence[float]], config: Config, *, threads: int, prepared: bool) -> InputSpeed:
    """Describe in one line the rank that waits longest; the other ranks wait for it.

    A rank that waits receives images as fast as its pipeline reads them; the rest of a step is computing.
    """
    rank, (waited, total) = max(enumerate(everyones), key=lambda each: each[1][0])
    part = waited / max(total, 1e-9)
    images = config.global_batch_size
    if part <= _TOLERATED:
        spent = f"input keeps up: {part:.0%} of the first {_STEPS} steps was spent waiting for images"
        return InputSpeed(is_bottleneck=False, text=spent)
    remedies = [] if prepared else ["pack the data once (python -m hvdgan.prepare)"]
    if config.pipeline.cache == "none":
        remedies.append("cache decoded images (--pipeline.cache memory)")
    remedies.append(f"if there are idle cores, read with more threads (--pipeline.threads, now {threads})")
    text = (
        f"input is the bottleneck: rank {rank} waits for images {part:.0%} of the time; the pipeline reads "
        f"{images / max(total, 1e-9):.0f} images/s, and the steps could take "
        f"{images / max(total - waited, 1e-9):.0f}; {'; '.join(remedies)}"
    )
    return InputSpeed(is_bottleneck=True, text=text)
