"""A recipe of which one rank stands still, or works for long while the others wait.

HVDGAN_STANDS names a folder with a file for each fault, RANK-PLACE-WHAT, which is removed when it strikes.
It waits until there are two ranks. PLACE is build, batch, step, evaluation or save. WHAT is sleep (for ever), work
(for HVDGAN_WORK_SECONDS), hold (the same, and no other thread gets the GIL) or kill. In an elastic run a step takes
longer on a rank that is alone, so that another can join it.
"""

import ctypes
import os
import signal
import threading
import time

import numpy as np
import tensorflow as tf

from hvdgan.checkpoints import checkpoint
from hvdgan.cli.launcher import launched
from hvdgan.data.batches import Batches
from hvdgan.distributed.joining import is_elastic
from hvdgan.evaluation import held_out
from tiny import Tiny

WORK_SECONDS = float(os.environ.get("HVDGAN_WORK_SECONDS", "8"))
_FIRST_BATCH = 30
_ALONE_SECONDS = 0.2


class Standing(Tiny):
    """Tiny with the faults; its evaluate() measures next to nothing."""

    def networks(self):
        _strike("build")
        return super().networks()

    def judge(self, nets, batch):
        loss, metrics = super().judge(nets, batch)
        struck = tf.numpy_function(_strike_in_step, [batch.random.step], tf.float32, stateful=True)
        return loss + tf.ensure_shape(struck, ()), metrics

    def evaluate(self, nets, batch):
        return {"mean": tf.reduce_mean(batch.images, (1, 2, 3))}


def _strike_in_step(step: np.int64) -> np.float32:
    if is_elastic() and launched()[1] == 1:
        time.sleep(_ALONE_SECONDS)
    if step >= _FIRST_BATCH:
        _strike("step")
    return np.float32(0)


def _strike(place: str) -> None:
    _, size, rank = launched()
    folder = os.environ.get("HVDGAN_STANDS")
    if folder is None or size != 2:
        return
    for what in ("sleep", "work", "hold", "kill"):
        name = os.path.join(folder, f"{rank}-{place}-{what}")
        if os.path.exists(name):
            os.unlink(name)
            print(f"rank {rank}: {what} in {place}", flush=True)
            {"sleep": stand_still, "work": _work, "hold": _hold, "kill": _kill}[what]()


def stand_still() -> None:
    threading.Event().wait()


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _work() -> None:
    end = time.monotonic() + WORK_SECONDS
    while time.monotonic() < end:
        pass


def _hold() -> None:
    ctypes.PyDLL(None).sleep(int(WORK_SECONDS))


def _before(place, function, first=0):
    calls = 0

    def wrapped(*arguments):
        nonlocal calls
        calls += 1
        if calls > first:
            _strike(place)
        return function(*arguments)

    return wrapped


Batches.__next__ = _before("batch", Batches.__next__, _FIRST_BATCH)
held_out.Evaluator.sums = _before("evaluation", held_out.Evaluator.sums)
checkpoint.write = _before("save", checkpoint.write)
