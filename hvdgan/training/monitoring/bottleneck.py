"""Whether reading images keeps up with computing, told once after the first steps, with what would help."""

from collections.abc import Sequence

from hvdgan.cli.config import Config

_STEPS = 100
_WARM_UP = 5
"""first steps that do not count: compiling and filling the queue"""
_TOLERATED = 0.1
"""part of the time that the slowest rank may wait for its images"""


class InputCheck:
    """Adds up what a rank waits and what its steps take.

    Args:
        steps: after which it has seen enough, > 5.
    """

    def __init__(self, steps: int = _STEPS) -> None:
        self._left = steps
        self._waiting = steps - _WARM_UP
        self._sums = [0.0, 0.0]

    def add(self, wait_seconds: float, step_seconds: float) -> bool:
        """One more step; whether it was the last that counts. Every rank must then tell the others its `seconds`."""
        self._left -= 1
        if 0 <= self._left < self._waiting:
            self._sums[0] += wait_seconds
            self._sums[1] += step_seconds
        return self._left == 0

    @property
    def seconds(self) -> list[float]:
        """Waited for images, and in all, per step."""
        return [total / self._waiting for total in self._sums]


def verdict(everyones: Sequence[Sequence[float]], config: Config, *, threads: int, prepared: bool) -> str:
    """One line about the rank that waits longest: the others wait for it.

    A rank that waits gets images as fast as its pipeline gives them; what a step takes besides is computing.

    Args:
        everyones: of each rank, seconds waited for images and seconds of a step in all.
        config: global_batch_size and pipeline are used.
        threads: that each rank reads with.
        prepared: whether the data is in a form that hvdgan.prepare would not better.
    """
    rank, (waited, total) = max(enumerate(everyones), key=lambda each: each[1][0])
    part = waited / max(total, 1e-9)
    images = config.global_batch_size
    if part <= _TOLERATED:
        return f"input keeps up: {part:.0%} of the first {_STEPS} steps went into waiting for images"
    remedies = [] if prepared else ["pack the data once (python -m hvdgan.prepare)"]
    if config.pipeline.cache == "none":
        remedies.append("keep what is decoded (--pipeline.cache memory or disk)")
    remedies.append(f"read with more threads where there are cores (--pipeline.threads, now {threads})")
    return (
        f"warning: input is the bottleneck: rank {rank} waits for images {part:.0%} of the time; the pipeline gives "
        f"{images / max(total, 1e-9):.0f} images/s, and the steps could take "
        f"{images / max(total - waited, 1e-9):.0f}; {'; '.join(remedies)}"
    )
