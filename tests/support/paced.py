"""A recipe that can be slowed down from outside, so that something can happen to a run in the middle."""

import os
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
