"""Runs of a small DCGAN on the CPU or on a GPU, in processes of their own, as a user would start them."""

import functools
import json
import sys
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from launching import launcher, run

GPUS = len(tf.config.list_physical_devices("GPU"))
NEEDS = "needs {}; benchmarks/gpu.sh runs this test"
SMALL = "--recipe dcgan --nf 4 --global-batch-size 8 --max-steps 6 --log-every 1 --report never --run-dir run".split()


class Place(NamedTuple):
    """CPU or GPU, as in TensorFlow's names of devices, and a folder for the files."""

    kind: str
    folder: Path

    def train(self, *flags, name, ranks=1):
        """Train a small DCGAN for six steps, and return its folder; `observed` writes a file for each rank."""
        folder = self.folder / name
        folder.mkdir()
        env = {} if self.kind == "GPU" else {"CUDA_VISIBLE_DEVICES": ""}
        words = [*launcher(ranks), sys.executable, "-m", "observed", ".", *SMALL, *flags]
        done = run(words, folder, seconds=280, **env)
        assert done.returncode == 0, done.stdout + done.stderr
        return folder


@functools.cache
def observed(place, precision):
    """The folder of a run in a precision, with --deterministic, and what was observed in it."""
    folder = place.train("--precision", precision, "--deterministic", name=precision)
    return folder, json.loads((folder / "0.json").read_text())
