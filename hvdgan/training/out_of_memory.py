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


def guarded(run: Run, steps: Steps) -> Iterator[tuple[int, Position, Compute]]:
    """Yield steps that end with a message of one line if there is not enough memory for them."""
    for step, at, compute in steps:
        yield step, at, functools.partial(_computed, run, at, compute)


def out_of_memory(error: Exception, run: Run, at: Position | None = None, step: int | None = None) -> RunError:
    """Describe a lack of memory in one line.

    Args:
        error: error of TensorFlow or of Python.
        run: run that ends.
        at: position of the step; None: it was not in a step.
        step: global step, from 0.
    """
    where = "" if at is None else f" in step {step}, stage {at.stage.name}"
    index = 0 if at is None else at.index
    memory = run.estimates[index]
    return RunError(
        f"rank {run.ranks.rank} is out of memory{where}: {_refused(error)}; the estimate was "
        f"{in_words(memory.total)}; {advice(run, memory, room(run.ranks, failed=True))}"
    )


def _computed(
    run: Run, at: Position, compute: Compute, step: int, stage_step: int, data: dict[str, tf.Tensor]
) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
    try:
        return compute(step, stage_step, data)
    except OUT_OF_MEMORY as error:
        raise out_of_memory(error, run, at, step) from error


def _refused(error: Exception) -> str:
    """What could not be allocated, and for which operation."""
    text = in_one_line(error)
    tensor = re.search(r"OOM when allocating tensor with shape\[([\d,]*)\] and type (\w+)", text)
    if tensor is None:
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    node = re.search(r"\{\{node ([^}]+)\}\}", text)
    of = f" for {node[1]}" if node else ""
    return f"no room for a tensor of shape ({tensor[1].replace(',', ', ')}) and type {tensor[2]}{of}"
