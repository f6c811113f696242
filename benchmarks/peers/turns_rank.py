"""Runs hvdgan.train for turns.py, and records the time at which each step begins.

TURNS_CLOCK is the prefix of the file's name. With TURNS_CHANGE=lockstep each step of a copy waits for the same step of
the other copy; with TURNS_CHANGE=small the ranks reduce 16 kB instead of an update's gradients.
"""

import mmap
import os
import struct
import sys
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

from hvdgan import train
from hvdgan.distributed.ranks import Ranks
from hvdgan.training.step import StageStep

LINE = 64  # bytes of a cache line, which the two counters must not share
SMALL = 4000  # number of float32 values


def main() -> int:
    """Train with the arguments of hvdgan.train."""
    name = os.environ["TURNS_CLOCK"]
    clock = os.open(f"{name}.{os.getpid()}.clock", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    change = os.environ.get("TURNS_CHANGE")
    meet = meeting(Path(f"{name}.meeting")) if change == "lockstep" else lambda: None
    if change == "small":
        Ranks.reduced_gradients = hardly_reduced  # type: ignore[method-assign]
    call = StageStep.__call__

    def timed(self: StageStep, *arguments: Any) -> Any:
        meet()
        os.write(clock, struct.pack("d", time.monotonic()))
        return call(self, *arguments)

    StageStep.__call__ = timed  # type: ignore[method-assign]
    return train.main(sys.argv[1:])


def hardly_reduced(self: Ranks, tape: tf.GradientTape, loss: tf.Tensor, variables: Any, *_: Any) -> list[tf.Tensor]:
    """Return this rank's own gradients; once all are computed, a small tensor is reduced."""
    *others, last = map(tf.convert_to_tensor, tape.gradient(loss, [variable.value for variable in variables]))
    with tf.control_dependencies([*others, last]):
        # This is always zero, but the graph optimizer cannot know that: it would reduce a constant before the step.
        zero = tf.minimum(tf.abs(tf.reshape(last, [-1])[0]), 0.0)
    # The update needs all gradients, so it waits for the reduction.
    return [*others, last + self.mean(tf.fill([SMALL], zero))[0]]


def meeting(path: Path) -> Any:
    """Return a barrier of the two copies, without any exchange of data."""
    with path.open("ab") as file:
        file.truncate(2 * LINE)
    with path.open("r+b") as file:
        counts = mmap.mmap(file.fileno(), 0)
    mine = LINE * min(os.sched_getaffinity(0))
    done = 0

    def meet() -> None:
        nonlocal done
        done += 1
        struct.pack_into("q", counts, mine, done)
        while struct.unpack_from("q", counts, LINE - mine)[0] < done:
            os.sched_yield()

    return meet


if __name__ == "__main__":
    raise SystemExit(main())
