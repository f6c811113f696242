"""Measures what an evaluation costs: two ranks against one, and the memory for few and for many samples.

    python benchmarks/evaluation/cost.py --rounds 3

It evaluates an untrained DCGAN at 64 pixels with the features of a small Keras network, in turn on one core, by two
ranks under horovodrun, and by two independent processes at the same time, each on its own core with half of the
samples, which is the most that the machine can do. The seconds are those of the comparison, which the log has, without
the start of the processes. The goals: two ranks are 1.8 times as fast as one, or as fast as two copies, and the memory
does not grow with the number of samples.
"""

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import keras
from keras import layers

TRAINING = "--recipe dcgan --data synthetic --image-size 64 --nf 16 --global-batch-size 16 --max-steps 1"
ONE, TWO = ["taskset", "-c", "0"], ["horovodrun", "-np", "2"]
GOAL = 1.8


class Cost(NamedTuple):
    """Seconds of the comparison; CPU seconds of all processes, with their start; peak memory of a process in MiB."""

    seconds: float
    cpu: float
    memory: int


def main() -> None:
    """Make a run, evaluate it in turn, print seconds and memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="evaluations by one rank and by two; 0: memory alone")
    parser.add_argument("--num", type=int, default=10_000, help="samples of each")
    parser.add_argument("--few", type=int, default=2000, help="samples for the memory of few")
    parser.add_argument("--many", type=int, default=20_000, help="samples for the memory of many")
    parser.add_argument("--features", type=int, default=64, help="numbers of the features of a sample")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hvdgan-cost-") as made:
        run = Path(made) / "run"
        network(given.features).save(Path(made) / "features.keras")
        subprocess.run([sys.executable, "-m", "hvdgan.train", *TRAINING.split(), "--run-dir", str(run)], check=True)
        ratios = [in_turn(run, given.num, seed) for seed in range(given.rounds)]
        names = ("one rank / two ranks", "two copies / two ranks")
        for name, values in zip(names, zip(*ratios, strict=True), strict=bool(ratios)):
            goal = GOAL if name.startswith("one") else 1
            print(f"{name}: median {statistics.median(values):.2f} of {given.rounds} (goal {goal})")
        few, many = (evaluate(ONE, run, num, given.rounds).memory for num in (given.few, given.many))
        print(f"peak memory of a rank: {few} MiB with {given.few:,} samples, {many} MiB with {given.many:,}")


def network(features: int) -> keras.Model:
    """A small network with random weights, which computes this number of features of 64 x 64 pixels."""
    keras.utils.set_random_seed(0)
    convolutions = [layers.Conv2D(width, 3, strides=2, activation="relu") for width in (16, 32, features)]
    return keras.Sequential([keras.Input((64, 64, 3)), *convolutions, layers.GlobalAveragePooling2D()])


def in_turn(run: Path, num: int, seed: int) -> tuple[float, float]:
    """Evaluate in the three ways; returns the seconds of one rank and of two copies by those of two ranks."""
    one, two = evaluate(ONE, run, num, seed), evaluate(TWO, run, num, seed + 1_000_000)
    with ThreadPoolExecutor(2) as pool:
        starts = [(["taskset", "-c", str(core)], seed + (2 + core) * 1_000_000) for core in (0, 1)]
        futures = [
            pool.submit(evaluate, launcher, copy_of(run, core), num // 2, own)
            for core, (launcher, own) in enumerate(starts)
        ]
        copies = max(future.result().seconds for future in futures)
    cpu = f"CPU of all processes, with their start, {one.cpu:.1f} s and {two.cpu:.1f} s"
    print(
        f"round {seed + 1}: one rank {one.seconds:.1f} s, two ranks {two.seconds:.1f} s, two copies with half of the "
        f"samples each {copies:.1f} s; {cpu}",
        flush=True,
    )
    return one.seconds / two.seconds, copies / two.seconds


def copy_of(run: Path, number: int) -> Path:
    """A copy of the run folder, so that two evaluations at the same time do not share its record."""
    copy = run.parent / f"copy-{number}"
    if not copy.exists():
        shutil.copytree(run, copy)
    return copy


def evaluate(launcher: Sequence[str], run: Path, num: int, seed: int) -> Cost:
    """Evaluate once.

    A seed of its own for each evaluation, because one that is in the run folder already is not repeated.
    """
    flags = f"--samples {num} --seed {seed} --eval-features {run.parent / 'features.keras'}"
    command = [*launcher, sys.executable, "-m", "hvdgan.evaluate", str(run), *flags.split()]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        log.seek(0)
        said = log.read()
    found = re.search(r"samples compared with .* in ([\d.]+) s", said)
    if process.returncode or not found:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}:\n{said}")
    return Cost(float(found[1]), usage.ru_utime + usage.ru_stime, usage.ru_maxrss // 1024)


if __name__ == "__main__":
    main()
