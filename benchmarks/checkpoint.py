"""What saving costs: how long the step loop stands still for a save, and how fast the thread behind it writes.

    python benchmarks/checkpoint.py --nf 64 --image-size 64 --saves 9

One process trains a DCGAN on synthetic images; every few steps it saves. The stall is the time in the loop's own call,
which copies the tensors to memory (evaluations and samples are not part of it); it is given as a part of the median
step between saves, and of the time from one save to the next at the default of 500 steps.
"""

import argparse
import functools
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

from hvdgan.checkpoints import checkpoint
from hvdgan.checkpoints.saver import Retention, Saver
from hvdgan.cli.config import Config
from hvdgan.distributed.ranks import Ranks
from hvdgan.recipes.dcgan import DCGAN, DCGANOptions
from hvdgan.training.run import build
from hvdgan.training.saving import snapshot


def main() -> None:
    """Train, save, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--nf", type=int, default=64)
    parser.add_argument("--global-batch-size", type=int, default=16)
    parser.add_argument("--saves", type=int, default=9)
    parser.add_argument("--steps", type=int, default=10, help="between two saves")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: a temporary one")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="hvdgan-checkpoint-"))
    config = Config(data="synthetic", image_size=given.image_size, global_batch_size=given.global_batch_size)
    run = build(config, DCGAN, DCGANOptions(nf=given.nf), Ranks())
    indices = np.arange(given.global_batch_size)
    facts = {"images": run.source.fetch_batch(indices), **run.source.facts(indices)}
    data = {name: tf.constant(values) for name, values in facts.items()}
    saver = Saver(folder / "checkpoints", Retention(3), print)
    stalls, writes, steps, during = [], [], [], []
    write = checkpoint.write

    def timed(*arguments: object) -> Path:
        begin = time.perf_counter()
        path = write(*arguments)  # type: ignore[arg-type]
        writes.append(time.perf_counter() - begin)
        return path

    checkpoint.write = timed  # type: ignore[assignment]
    for step in range(given.saves * given.steps):
        begin = time.perf_counter()
        _, finite = run.steps[0](step, step, data)
        assert finite.numpy().all()
        (during if step % given.steps < 2 and step >= given.steps else steps).append(time.perf_counter() - begin)
        if (step + 1) % given.steps == 0:
            begin = time.perf_counter()
            own = run.state.statistics.read()[None]
            saver.save(functools.partial(snapshot, run, step + 1, 0, "benchmark", own, {}))
            stalls.append(time.perf_counter() - begin)
    saver.finish()
    size = sum(path.stat().st_size for path in next((folder / "checkpoints").glob("step-*")).iterdir())
    stall, step_seconds = statistics.median(stalls[1:]), statistics.median(steps[1:])
    print(f"checkpoint: {size / 1e6:.1f} MB; {len(stalls)} saves, every {given.steps} steps")
    print(f"step: {1e3 * step_seconds:.0f} ms; the two after a save: {1e3 * statistics.median(during):.0f} ms")
    print(f"stall: {1e3 * stall:.1f} ms ({1e3 * min(stalls):.1f} to {1e3 * max(stalls):.1f})")
    verdict = "reached" if stall < 0.5 * step_seconds else "MISSED"
    print(f"stall / step: {stall / step_seconds:.3f} (goal: under 0.5: {verdict})")
    print(f"stall / 500 steps: {stall / (500 * step_seconds):.1e}")
    rate = size / statistics.median(writes) / 1e6
    print(f"written in the background: {rate:.0f} MB/s ({1e3 * statistics.median(writes):.0f} ms, checksums and fsync)")
    if not given.folder:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
