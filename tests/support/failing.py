"""A recipe of which a rank dies, freezes, has a bug, stands still or works for long where the environment says so.

HVDGAN_FAULTS names a folder with a file for each fault, PLACE-RANK-WHAT, which is removed when it strikes. It waits
until there are two ranks. PLACE is build, batch (after 30 of them), evaluation, save, or the number of the first step
that it may strike. HVDGAN_WORK_SECONDS is how long work takes.
"""

import ctypes
import os
import signal
import threading
import time

import numpy as np
import tensorflow as tf

from hvdgan.checkpoints import files
from hvdgan.data.batches import Batches
from hvdgan.distributed.joining import is_elastic
from hvdgan.evaluation import held_out
from hvdgan.launching.launched import launched
from tiny import Tiny

WORK_SECONDS = float(os.environ.get("HVDGAN_WORK_SECONDS", "8"))
_ALONE_SECONDS = 0.2


class Failing(Tiny):
    """Its metrics tell the samples of a step; in an elastic run a step takes longer on a rank that is alone."""

    def networks(self):
        _strike("build")
        return super().networks()

    def judge(self, nets, batch):
        loss, metrics = super().judge(nets, batch)
        struck = tf.numpy_function(_strike_in_step, [batch.random.step], tf.float32, stateful=True)
        seen = {"pixels": tf.reduce_mean(batch.images), "latents": tf.reduce_mean(batch.latents)}
        return loss + tf.ensure_shape(struck, ()), {**metrics, **seen}


class Evaluated(Failing):
    def evaluate(self, nets, batch):
        return {"mean": tf.reduce_mean(batch.images, (1, 2, 3))}


def _strike_in_step(step: np.int64) -> np.float32:
    if is_elastic() and launched()[1] == 1:
        time.sleep(_ALONE_SECONDS)
    _strike("step", step)
    return np.float32(0)


def _strike(place: str, step: int = -1) -> None:
    _, size, rank = launched()
    folder = os.environ.get("HVDGAN_FAULTS")
    for name in sorted(os.listdir(folder)) if folder and size == 2 else ():
        where, whose, what = name.split("-")
        if int(whose) == rank and (where == place or (where.isdigit() and step >= int(where))):
            os.unlink(os.path.join(folder, name))
            print(f"{what} at {place if step < 0 else step}", flush=True)
            _FAULTS[what]()


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def freeze() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def bug() -> None:
    raise ValueError("a bug of the recipe")


def stand_still() -> None:
    threading.Event().wait()


def work() -> None:
    end = time.monotonic() + WORK_SECONDS
    while time.monotonic() < end:
        pass


def hold() -> None:
    """As work, but no other thread gets the GIL."""
    ctypes.PyDLL(None).sleep(int(WORK_SECONDS))


_FAULTS = {each.__name__: each for each in (kill, freeze, bug, stand_still, work, hold)}


def _before(place, function, first=0):
    calls = 0

    def wrapped(*arguments):
        nonlocal calls
        calls += 1
        if calls > first:
            _strike(place)
        return function(*arguments)

    return wrapped


Batches.__next__ = _before("batch", Batches.__next__, 30)
held_out.Evaluator.sums = _before("evaluation", held_out.Evaluator.sums)
files.write = _before("save", files.write)
