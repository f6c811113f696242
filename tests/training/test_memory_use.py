"""What a run says about its memory: after a stage, and when there is too little.

Modules: training.memory.
"""

import dataclasses
import re
import sys

import pytest

from building import tiny_run
from hvdgan.distributed.ranks import Ranks
from hvdgan.training.memory import MemoryGuard
from launching import run, train

ARGUMENTS = "--recipe hungry:Hungry --image-size 8 --global-batch-size 16 --report never --run-dir run".split()


def test_each_stage_is_measured_at_its_end(tmp_path):
    train(tmp_path, *"--recipe tiny:Staged --image-size 8 --global-batch-size 16 --run-dir run".split(), ranks=2)
    log = (tmp_path / "run" / "log.txt").read_text()
    for stage in ("generator", "discriminator", "joint"):
        assert re.search(rf"stage {stage}: peak memory of a process [\d.]+ GB, on rank [01]$", log, re.MULTILINE), log


def test_out_of_memory_is_one_line(tmp_path):
    done = run([sys.executable, "-m", "hvdgan.train", *ARGUMENTS], tmp_path, forked=True, HVDGAN_HUNGRY="0")
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("hvdgan: ")]
    assert re.fullmatch(
        r"hvdgan: rank 0 is out of memory at step 2, stage adversarial: no room for a tensor with shape"
        r"\[281474976710656\] and type float, for \S*; "
        r"try --accumulate 2, a smaller --global-batch-size or smaller networks",
        line,
    ), line
    assert "stopped: rank 0 is out of memory" in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.parametrize(
    ("batch", "size", "accumulate", "slice_unit", "expected"),
    [(24, 2, 4, 0, 12), (8, 8, 1, 0, None), (64, 3, 4, 4, 8)],
)
def test_the_micro_batches_that_are_suggested_are_possible(batch, size, accumulate, slice_unit, expected):
    built = tiny_run(global_batch_size=batch, accumulate=accumulate)
    built = dataclasses.replace(built, ranks=Ranks(size=size, slice_unit=slice_unit))
    said = str(MemoryGuard(built).failure(MemoryError()))
    assert (f"try --accumulate {expected}, a smaller" if expected else "try a smaller") in said
