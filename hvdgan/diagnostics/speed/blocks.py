"""A stage's steps cut into blocks that alternate between kinds of step, and the times of each block."""

import dataclasses
import math
import statistics
from collections.abc import Sequence

_WARM_UP = 2
_BLOCKS = 3


@dataclasses.dataclass(frozen=True)
class Block:
    """Steps in a row, with or without reduction: `lead` ones that are not counted, and then `measured` ones."""

    reduces: bool
    lead: int
    measured: int


def plan(steps: int, cycle: int, lead: int, *, several: bool) -> list[Block]:
    """The blocks of a stage, after a first one of each kind that warms up.

    Args:
        steps: to measure of each kind, at least; rounded up so that all blocks of a kind are equal.
        cycle: steps after which the same updates are due again; what is measured are whole cycles.
        lead: steps of each block that are not counted.
        several: whether there are ranks to reduce over; else there is one kind.
    """
    blocks = min(_BLOCKS, math.ceil(steps / cycle))
    measured = math.ceil(steps / blocks / cycle) * cycle
    kinds = (True, False) if several else (True,)
    warm_up = [Block(kind, max(_WARM_UP, cycle), 0) for kind in kinds]
    return warm_up + [Block(kind, lead, measured) for _ in range(blocks) for kind in kinds]


class Clock:
    """Which block a step of the stage is in, and what the blocks took.

    Args:
        blocks: of the stage, in order.
    """

    def __init__(self, blocks: Sequence[Block]) -> None:
        lengths = [block.lead + block.measured for block in blocks]
        self.steps = sum(lengths)
        self.times: dict[bool, list[list[float]]] = {True: [], False: []}
        """with reduction and without: for each block the means of (step, wait, call) seconds"""
        self._begins = {sum(lengths[:number]): block for number, block in enumerate(blocks)}
        self._now = blocks[0]
        self._kept: list[tuple[float, float, float]] = []
        self._left = 0

    def enter(self, stage_step: int) -> tuple[Block, bool]:
        """The block of a step, and whether it begins there; steps come in order."""
        begins = stage_step in self._begins
        if begins:
            self._now, self._kept = self._begins[stage_step], []
            self._left = self._now.lead
        return self._now, begins

    def add(self, step: float, wait: float, call: float) -> None:
        """The seconds of the step: all since the one before, waiting for data, and the compiled call."""
        if self._left:
            self._left -= 1
            return
        self._kept.append((step, wait, call))
        if len(self._kept) == self._now.measured:
            self.times[self._now.reduces].append([statistics.mean(values) for values in zip(*self._kept, strict=True)])


def parts(with_reduction: Sequence[Sequence[float]], without: Sequence[Sequence[float]]) -> dict[str, float]:
    """A step's seconds and its parts, which add up to it.

    Args:
        with_reduction: (step, wait, call) seconds of each block.
        without: of the blocks without reduction; none where there is nothing to reduce over.

    Returns:
        step_seconds; compute_seconds, the call without reduction; exposed_allreduce_seconds, what it takes longer with
        it (below 0 where that is less than the noise); input_wait_seconds; host_seconds, all that is left.
    """
    # All of one block, the one in the middle: medians of each part would not add up.
    step, wait, call = sorted(map(tuple, with_reduction))[(len(with_reduction) - 1) // 2]
    compute = statistics.median(call for _, _, call in without) if without else call
    return {
        "step_seconds": step,
        "compute_seconds": compute,
        "exposed_allreduce_seconds": call - compute,
        "input_wait_seconds": wait,
        "host_seconds": step - wait - call,
    }
