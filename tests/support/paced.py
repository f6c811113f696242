"""Recipes and data that are slow, or stop in each step, so that something can happen to a run meanwhile."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

from hvdgan.launching.launched import launched
from tiny import Tiny


def _brake(step) -> np.int64:
    brake = os.environ.get("HVDGAN_BRAKE")
    if brake and os.path.exists(brake):
        time.sleep(0.5)
    return np.int64(0)


def _stop(step) -> np.int64:
    if np.ndim(step) == 0 and step >= 0:  # samples are drawn, too
        os.kill(os.getpid(), signal.SIGUSR2)
    return np.int64(0)


def _work(step) -> np.int64:
    time.sleep(0.03)
    return np.int64(0)


class Paced(Tiny):
    """While the file that the environment names as HVDGAN_BRAKE is there, a step takes half a second longer."""

    act = staticmethod(_brake)

    def draw(self, random):
        tf.numpy_function(self.act, [random.step], tf.int64, stateful=True)
        return super().draw(random)


class OneStep(Paced):
    """Sends its process SIGUSR2 in each step, so that it does one."""

    act = staticmethod(_stop)


class Working(Paced):
    """A step takes a while on every rank, without much use of a processor."""

    act = staticmethod(_work)


class SlowingDisk:
    """Pictures of noise; the rank that the environment names as HVDGAN_SLOW_RANK waits longer for each next one.

    So its reading gets slower than any step, however busy a machine is; pictures are read ahead. It asks the run, whose
    folder is "run", to stop once a rank is named as slow.
    """

    def __init__(self):
        self._read = 0

    def __len__(self):
        return 96

    def __getitem__(self, index):
        if os.environ.get("HVDGAN_SLOW_RANK") == str(launched()[2]):
            events = Path("run/events.jsonl")
            if events.exists() and '"slow_rank"' in events.read_text():
                os.kill(os.getpid(), signal.SIGUSR2)
            else:
                self._read += 1
                time.sleep(0.004 * self._read)
        return np.random.default_rng(index).integers(0, 255, (8, 8, 1), np.uint8)
