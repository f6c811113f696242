"""A recipe that does what the environment asks for: a rank that is killed, frozen or has a bug at a certain step."""

import os
import signal
import time

import numpy as np
import tensorflow as tf

from tiny import Tiny

_ALONE_SECONDS = 0.2


class Failing(Tiny):
    """Tiny, whose metrics tell the samples of a step; a step takes longer on a rank that is alone.

    HVDGAN_FAULTS names a folder with a file for each fault, which is removed when it strikes: FIRST_STEP-RANK-WHAT,
    where WHAT is kill, freeze or bug. It waits until there are two ranks.
    """

    def judge(self, nets, batch):
        loss, metrics = super().judge(nets, batch)
        seen = {"pixels": tf.reduce_mean(batch.images), "latents": tf.reduce_mean(batch.latents)}
        return loss + struck(batch), {**metrics, **seen}


def struck(batch):
    """Zero, as a part of a loss, after the faults of its step have struck."""
    return tf.ensure_shape(tf.numpy_function(_strike, [batch.random.step], tf.float32, stateful=True), ())


def _strike(step: np.int64) -> np.float32:
    folder = os.environ.get("HVDGAN_FAULTS")
    if folder is None:
        return np.float32(0)
    if os.environ["HOROVOD_SIZE"] == "1":
        time.sleep(_ALONE_SECONDS)
        return np.float32(0)
    for name in sorted(os.listdir(folder)):
        first, rank, what = name.split("-")
        if rank == os.environ["HOROVOD_RANK"] and step >= int(first):
            os.unlink(os.path.join(folder, name))
            print(f"{what} at {step}", flush=True)
            _fail(what)
    return np.float32(0)


def _fail(what: str) -> None:
    if what == "bug":
        raise ValueError("a bug of the recipe")
    os.kill(os.getpid(), signal.SIGKILL if what == "kill" else signal.SIGSTOP)
