"""Describes a rank that runs out of memory in one line: where, for what, and what would fit."""

import functools
import re
from collections.abc import Iterator

import tensorflow as tf

from hvdgan.cli.errors import RunError, in_one_line
from hvdgan.recipe.schedule import Position
from hvdgan.training.building.run import Run
from hvdgan.training.loop import Compute, Steps
from hvdgan.training.memory.device import room
from hvdgan.training.memory.estimate import in_words
from hvdgan.training.memory_use import advice

OUT_OF_MEMORY = (MemoryError, tf.errors.ResourceExhaustedError)
_LONGEST = 200


class MemoryGuard:
    """Follows the steps of a run, and describes a lack of memory in them, before or after one, in one line.

    Args:
        run: run, built.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._place: tuple[str, int, Position] | None = None
        """before, in or after a step: its number and its position; None: the first has not begun"""

    def guarded(self, steps: Steps) -> Iterator[tuple[int, Position, Compute]]:
        """Yield steps that end with a message of one line if there is not enough memory for them."""
        for step, at, compute in steps:
            self._place = "before", step, at
            yield step, at, functools.partial(self._computed, at, compute)

    def failure(self, error: Exception) -> RunError:
        """Describe a lack of memory.

        Args:
            error: error of TensorFlow or of Python.
        """
        run, place = self._run, self._place
        where = "" if place is None else f" {place[0]} step {place[1]}, stage {place[2].stage.name}"
        first = f"rank {run.ranks.rank} is out of memory{where}: {_refused(error)}"
        if place is None or place[0] == "after":
            return RunError(
                f"{first}; this was not in a step, so --accumulate would not help: free memory, or try smaller networks"
            )
        # A batch finds no room beside what the steps take.
        memory = run.estimates[place[2].index]
        words = advice(run, memory, room(run.ranks, failed=True))
        return RunError(f"{first}; the estimate was {in_words(memory.total)}; {words}")

    def _computed(
        self, at: Position, compute: Compute, step: int, stage_step: int, data: dict[str, tf.Tensor]
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        self._place = "in", step, at
        try:
            results = compute(step, stage_step, data)
        except OUT_OF_MEMORY as error:
            raise self.failure(error) from error
        self._place = "after", step, at
        return results


def _refused(error: Exception) -> str:
    """What could not be allocated, and for which operation."""
    text = in_one_line(error)
    tensor = re.search(r"OOM when allocating tensor with shape\[([\d,]*)\] and type (\w+)", text)
    if tensor is None:
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    node = re.search(r"\{\{node ([^}]+)\}\}", text)
    of = f" for {node[1]}" if node else ""
    return f"no room for a tensor of shape ({tensor[1].replace(',', ', ')}) and type {tensor[2]}{of}"
