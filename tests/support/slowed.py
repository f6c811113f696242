"""Data whose disk is slow for the rank that the environment names as HVDGAN_SLOW_RANK."""

import os
import time

import numpy as np

from hvdgan.cli.launcher import launched


class SlowDisk:
    """Pictures of noise; the slow rank waits for each of them."""

    def __len__(self):
        return 96

    def __getitem__(self, index):
        if os.environ.get("HVDGAN_SLOW_RANK") == str(launched()[2]):
            time.sleep(0.02)
        return np.random.default_rng(index).integers(0, 255, (8, 8, 1), np.uint8)
