"""Recipes that are slowed down from outside, or stop in each step, so that something can happen to a run meanwhile."""

import os
import signal
import time

import numpy as np
import tensorflow as tf

from tiny import Tiny

_STEP_SECONDS = 0.5


class Paced(Tiny):
    """While the file that the environment names as HVDGAN_BRAKE is there, a step takes half a second longer."""

    def draw(self, random):
        tf.numpy_function(_brake, [], tf.int64, stateful=True)
        return super().draw(random)


def _brake() -> np.int64:
    brake = os.environ.get("HVDGAN_BRAKE")
    if brake and os.path.exists(brake):
        time.sleep(_STEP_SECONDS)
    return np.int64(0)


class OneStep(Tiny):
    """Sends its process SIGUSR2 in each step, so that it does one."""

    def draw(self, random):
        tf.numpy_function(_stop, [random.step], tf.int64, stateful=True)
        return super().draw(random)


def _stop(step) -> np.int64:
    if step >= 0:  # grids of samples draw, too
        os.kill(os.getpid(), signal.SIGUSR2)
    return np.int64(0)
