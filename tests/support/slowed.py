"""Data whose disk is slow for the rank that the environment names as HVDGAN_SLOW_RANK, and a recipe that takes time."""

import os
import time

import numpy as np
import tensorflow as tf

from hvdgan.cli.launcher import launched
from tiny import Tiny


class SlowDisk:
    """Pictures of noise; the slow rank waits for each of them."""

    def __len__(self):
        return 96

    def __getitem__(self, index):
        if os.environ.get("HVDGAN_SLOW_RANK") == str(launched()[2]):
            time.sleep(0.02)
        return np.random.default_rng(index).integers(0, 255, (8, 8, 1), np.uint8)


class Working(Tiny):
    """A step takes a while on every rank, without much use of a processor."""

    def draw(self, random):
        tf.numpy_function(_work, [], tf.int64, stateful=True)
        return super().draw(random)


def _work() -> np.int64:
    time.sleep(0.03)
    return np.int64(0)
