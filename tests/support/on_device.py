"""Runs of a small DCGAN on the CPU or on a GPU, in processes of their own, as a user would start them."""

import dataclasses
import functools
import json
import sys
from pathlib import Path

import tensorflow as tf

from launching import launcher, run

GPUS = len(tf.config.list_physical_devices("GPU"))
NEEDS = "needs {}; benchmarks/gpu.sh runs this test"
SMALL = "--nf 4 --global-batch-size 8 --max-steps 6 --log-every 1"


@dataclasses.dataclass(frozen=True)
class Place:
    """What the processes of a test compute on.

    Args:
        kind: CPU or GPU, as in TensorFlow's names of devices.
        folder: folder for their files.
    """

    kind: str
    folder: Path

    def start(self, *words, name, ranks=1):
        """Run a module to its end with its command line, in a new folder, and require that it succeeds."""
        folder = self.folder / name
        folder.mkdir()
        env = {} if self.kind == "GPU" else {"CUDA_VISIBLE_DEVICES": ""}
        done = run([*launcher(ranks), sys.executable, "-m", *words], folder, seconds=280, **env)
        assert done.returncode == 0, done.stdout + done.stderr
        return folder

    def train(self, *flags, name, ranks=1):
        """Train a DCGAN, a small one for six steps, and return its folder; `observed` writes a file for each rank."""
        words = f"--recipe dcgan {SMALL} --report never".split()
        return self.start("observed", ".", *words, "--run-dir", "run", *flags, name=name, ranks=ranks)


@functools.cache
def observed(place, precision):
    """The folder of a run in a precision, with --deterministic, and what was observed in it."""
    folder = place.train("--precision", precision, "--deterministic", name=precision)
    return folder, json.loads((folder / "0.json").read_text())
