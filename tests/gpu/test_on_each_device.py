"""What a run does on a GPU, and on the CPU where there is none: placement, precision, memory, bits.

On a machine without a GPU the tests of the GPU are skipped by name; those of the CPU show that their code works; what
they prove of a CPU other tests do, so that CI alone runs them there. benchmarks/gpu.sh takes no heed of the mark.
"""

import functools
import json
import math
import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import tensorflow as tf

from hvdgan.checkpoints.contents import difference
from hvdgan.checkpoints.files import find
from launching import launcher, run

pytestmark = pytest.mark.long
COMPUTING = re.compile("Conv2D|MatMul|BatchNorm|ResourceApplyAdam")
"""types of operations that compute most of a step, under whatever names TensorFlow gives to fused ones"""
HALVES = {"mixed_float16": "float16", "mixed_bfloat16": "bfloat16"}


GPUS = len(tf.config.list_physical_devices("GPU"))
NEEDS = "needs {}; benchmarks/gpu.sh runs this test"
SMALL = "--recipe dcgan --nf 4 --global-batch-size 8 --max-steps 6 --log-every 1 --report never --run-dir run".split()
MARKS = [pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason=NEEDS.format("a GPU"))]


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
        done = run(words, folder, **env)
        assert done.returncode == 0, done.stdout + done.stderr
        return folder


@functools.cache
def observed(place, precision):
    """The folder of a run in a precision, with --deterministic, and what was observed in it."""
    folder = place.train("--precision", precision, "--deterministic", name=precision)
    return folder, json.loads((folder / "0.json").read_text())


@pytest.fixture(scope="session", params=["CPU", pytest.param("GPU", marks=MARKS)])
def place(request, tmp_path_factory):
    return Place(request.param, tmp_path_factory.mktemp(request.param))


def computing(seen):
    """The recorded operations that compute most of the step."""
    return [each for each in seen["operations"] if COMPUTING.search(each["type"])]


def test_variables_batches_and_operations_are_on_the_device_and_the_memory_of_the_own_gpu_alone_grows(place):
    seen = observed(place, "float32")[1]
    floats = {name: each["device"] for name, each in seen["variables"].items() if each["dtype"] == "float32"}
    assert {"networks", "optimizers", "ema"} <= {name.split("/")[0] for name in floats}
    kept = [device for name, device in floats.items() if name.endswith(("/kernel", "momentum", "velocity"))]
    operations = computing(seen)
    assert {"Conv2D", "BatchNorm", "ResourceApplyAdam"} <= {COMPUTING.search(each["type"])[0] for each in operations}
    assert len(seen["steps"]) == 6 <= len(seen["batches"])
    assert {each["dtype"] for each in seen["batches"]} == {"uint8"}
    devices = [*kept, *seen["steps"], *(each["device"] for each in (*operations, *seen["batches"]))]
    assert len(kept) > 20 and not [device for device in devices if not device.endswith(f"device:{place.kind}:0")]
    expected = 1 if place.kind == "GPU" else 0
    assert len(seen["visible"]) == expected and seen["growth"] == [True] * expected


@pytest.mark.parametrize("precision", HALVES)
def test_half_precision_trains(place, precision):
    folder, seen = observed(place, precision)
    records = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [value for record in records for name, value in record.items() if name.endswith("/loss")]
    assert losses and all(value is not None and math.isfinite(value) for value in losses)
    # A loss scale may skip the first steps.
    assert {name for name in records[-1] if name.endswith("/loss")} == {"generator/loss", "discriminator/loss"}
    kinds = [each["dtype"] for each in computing(seen) if "Conv2D" in each["type"]]
    assert kinds and kinds.count(HALVES[precision]) > len(kinds) / 2


def test_two_runs_with_deterministic_have_the_same_bits(place):
    folder = observed(place, "float32")[0]
    again = place.train("--deterministic", name="again")
    found = difference(find(folder / "run"), find(again / "run"))
    assert found["identical"] > 40
    assert not [found[kind] for kind in ("changed", "unlike", "only_in_first", "only_in_second") if found[kind]]


def test_each_of_two_ranks_has_a_device_of_its_own(place):
    if place.kind == "GPU" and GPUS < 2:
        pytest.skip(NEEDS.format("two GPUs"))
    folder = place.train(name="two", ranks=2)
    seen = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    visible = [gpu for each in seen for gpu in each["visible"]]
    assert len(set(visible)) == len(visible) == (2 if place.kind == "GPU" else 0)
