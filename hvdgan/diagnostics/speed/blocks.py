"""Divides a stage's steps into blocks with and without all-reduce, and takes the time of each block."""

import dataclasses
import math
import statistics
from collections.abc import Sequence

PARTS = ("compute_seconds", "exposed_allreduce_seconds", "input_wait_seconds", "host_seconds")
"""parts of a step, which add up to its seconds"""
_WARM_UP = 2
_BLOCKS = 3


@dataclasses.dataclass(frozen=True)
class Block:
    """Consecutive steps of one kind.

    Args:
        reduces: True for ordinary steps, False for steps without all-reduce.
        lead: number of first steps that are not measured.
        measured: number of steps after them.
    """

    reduces: bool
    lead: int
    measured: int


def plan(steps: int, cycle: int, lead: int, *, several: bool) -> list[Block]:
    """Plan the blocks of a stage; the first of each kind warms up."""
    blocks = min(_BLOCKS, math.ceil(steps / cycle))
    measured = math.ceil(steps / blocks / cycle) * cycle
    kinds = (True, False) if several else (True,)
    warm_up = [Block(kind, max(_WARM_UP, cycle), 0) for kind in kinds]
    return warm_up + [Block(kind, lead, measured) for _ in range(blocks) for kind in kinds]


class Clock:
    """Finds the block of each step, and averages the times of each block."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        lengths = [block.lead + block.measured for block in blocks]
        self.steps = sum(lengths)
        self.times: dict[bool, list[list[float]]] = {True: [], False: []}
        """mean (step, wait, call) seconds of each block, with all-reduce (True) and without (False)"""
        self._begins = {sum(lengths[:number]): block for number, block in enumerate(blocks)}
        self._now = blocks[0]
        self._kept: list[tuple[float, float, float]] = []
        self._left = 0

    def enter(self, stage_step: int) -> tuple[Block, bool]:
        """Return the block of a step, and True if the step is its first; steps come in order."""
        begins = stage_step in self._begins
        if begins:
            self._now, self._kept = self._begins[stage_step], []
            self._left = self._now.lead
        return self._now, begins

    @property
    def ends_all(self) -> bool:
        """True if the step is the last before the measured ones or the last of these: all steps have to end with it."""
        return self._left == 1 or len(self._kept) + 1 == self._now.measured

    def add(self, step: float, wait: float, call: float) -> None:
        """Add the times of a step."""
        if self._left:
            self._left -= 1
            return
        self._kept.append((step, wait, call))
        if len(self._kept) == self._now.measured:
            self.times[self._now.reduces].append([statistics.mean(values) for values in zip(*self._kept, strict=True)])


def parts(with_reduction: Sequence[Sequence[float]], without: Sequence[Sequence[float]]) -> dict[str, float]:
    """Split a step's seconds into parts that add up to it."""
    # The parts are those of the median block: medians of each part would not add up.
    step, wait, call = sorted(map(tuple, with_reduction))[(len(with_reduction) - 1) // 2]
    compute = statistics.median(call for _, _, call in without) if without else call
    return {
        "step_seconds": step,
        "compute_seconds": compute,
        "exposed_allreduce_seconds": call - compute,
        "input_wait_seconds": wait,
        "host_seconds": step - wait - call,
    }
