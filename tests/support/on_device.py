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
QUIET = {
    "CPU": "--nf 4 --global-batch-size 8 --max-steps 20 --log-every 20",
    "GPU": "--nf 256 --global-batch-size 128 --max-steps 60 --log-every 60",
}
"""runs without a log between their steps; on a GPU a step takes longer than the host takes to begin it"""


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

    def train(self, *flags, name, ranks=1, size=SMALL):
        """Train a DCGAN, a small one for six steps, and return its folder; `observed` writes a file for each rank."""
        words = f"--recipe dcgan {size} --report never".split()
        return self.start("observed", ".", *words, "--run-dir", "run", *flags, name=name, ranks=ranks)


@functools.cache
def observed(place, precision):
    """The folder of a run in a precision, with --deterministic, and what was observed in it."""
    folder = place.train("--precision", precision, "--deterministic", name=precision)
    return folder, json.loads((folder / "0.json").read_text())


def steps_ahead(place):
    """How many later steps had begun when the verdict of each step arrived, but for the first and last ones."""
    folder = place.train("--sample-every", "0", "--checkpoint-every", "0", name="ahead", size=QUIET[place.kind])
    seen = json.loads((folder / "0.json").read_text())
    begun, ended = seen["begun"], {int(step): time for step, time in seen["ended"].items()}
    assert ended.keys() == set(range(len(begun)))
    # The first steps are traced, and measured by cuDNN; after the last ones none begins.
    steps = range(len(begun) // 4, len(begun) - 4)
    return [sum(time < ended[step] for time in begun[step + 1 :]) for step in steps]
