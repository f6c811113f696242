"""Compares the time of the steps of each unconditional recipe with those of its plain Keras loop, in turn.

    python benchmarks/evaluation/in_turn.py --data mnist/train.npz

The speed of a shared machine changes by a third within minutes, so whole runs one after the other show no difference of
a few per cent. Here the training loop of hvdgan.train and the plain loop take turns of some steps in one process, and
each turn is compared with the mean of the two turns of the other side around it. Turns include all that a run does
between two steps; evaluations, samples and checkpoints are off. The first turn of each side, in which TensorFlow
optimizes the graphs, does not count.
"""

import os

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # as hvdgan.train has them

import argparse
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import keras
import numpy as np
from plain_keras import LOOPS, batches, parse
from recipes import BATCH, BATCHES, OF_HVDGAN, RECIPES

from hvdgan.distributed.liveness.heartbeat import Heartbeat
from hvdgan.distributed.ranks import Ranks
from hvdgan.recipe import DataSpec
from hvdgan.training import command, session
from hvdgan.training.loop import steps_from
from hvdgan.training.page import Page
from hvdgan.training.resume_point import Commits
from hvdgan.training.run import Run
from hvdgan.training.step import Steps
from hvdgan.training.stopping import Stopping

STEPS = 48
"""steps of a turn: each update of each recipe is due equally often in all of them"""
SECONDS = 1800


def main() -> None:
    """Measure each recipe in a process of its own, or one in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help=".npz of pictures")
    parser.add_argument("--recipes", nargs="*", choices=RECIPES, default=list(RECIPES), help="recipes; default: all")
    parser.add_argument("--turns", type=int, default=10, help="turns of hvdgan that count, at least 2")
    given = parser.parse_args()
    if len(given.recipes) == 1:
        with tempfile.TemporaryDirectory(prefix="hvdgan-in-turn-") as folder:
            hvdgan, plain = measured(given.recipes[0], given.data, given.turns, Path(folder) / "run")
        print(line(given.recipes[0], hvdgan, plain), flush=True)
        return
    for recipe in given.recipes:
        words = [sys.executable, __file__, "--data", str(given.data), "--turns", str(given.turns), "--recipes", recipe]
        subprocess.run(words, check=True, timeout=SECONDS)


def measured(recipe: str, data: Path, turns: int, folder: Path) -> tuple[list[float], list[float]]:
    """The seconds of the turns of hvdgan, and of those of the plain loop, which come before, between and after them."""
    batch, steps = BATCHES.get(recipe, BATCH), STEPS * (turns + 2)
    off = "--sample-every 0 --checkpoint-every 0 --log-every 100 --report never"
    words = f"--recipe {recipe} --data {data} {RECIPES[recipe]} {OF_HVDGAN.get(recipe, '')} {off} --run-dir {folder}"
    asked = command.parse([*words.split(), "--global-batch-size", str(batch), "--steps", str(steps)])
    assert asked is not None
    ranks, commits, plain = Ranks(), Commits(), PlainLoop(recipe, data, batch)
    with Stopping(ranks, folder / "stop", None) as stopping:
        run, resume_point = session.build_and_restore(asked, ranks, commits)
        alternating = Alternating(run, plain)
        session.train(run, resume_point, Heartbeat(), stopping, commits, Page("never"), steps=alternating.steps())
    # The first turns optimize the graphs, and no turn of the plain loop follows the last one of hvdgan.
    return alternating.seconds[1:-1], plain.seconds[1:]


class PlainLoop:
    """The plain loop of a recipe's networks, a turn at a time.

    Args:
        recipe: name of the recipe.
        data: .npz of pictures.
        batch: pictures of a step.
    """

    def __init__(self, recipe: str, data: Path, batch: int) -> None:
        given, options = parse([recipe, "--data", str(data), "--out", "none", *RECIPES[recipe].split()])
        keras.utils.set_random_seed(given.seed)
        with np.load(data) as file:
            images = file["images"]
        kind = LOOPS[recipe]
        networks = kind.recipe(options, DataSpec(images.shape[1:], len(images))).networks()
        self._loop, dataset = kind(networks, options, given.ema_decay), batches(images, batch, given.seed)
        self._traced = {
            due: self._loop.train_step.get_concrete_function(dataset.element_spec, *due)
            for due in {self._loop.due(step) for step in range(STEPS)}
        }
        self._batches = iter(dataset)
        self.seconds: list[float] = []

    def turn(self) -> None:
        """Train for a turn."""
        begin = time.perf_counter()
        for step in range(STEPS):
            losses = self._traced[self._loop.due(step)](next(self._batches))
        float(losses[0])
        self.seconds.append(time.perf_counter() - begin)


class Alternating:
    """The steps of a run of hvdgan, with a turn of a plain loop before and after each turn.

    Args:
        run: run, built and restored.
        plain: the loop.
    """

    def __init__(self, run: Run, plain: PlainLoop) -> None:
        self._run, self._plain = run, plain
        self.seconds: list[float] = []

    def steps(self) -> Steps:
        """Yield the steps of the run; the time from one to the next is that of the whole training loop."""
        begin = time.perf_counter()
        for number, each in enumerate(steps_from(self._run, 0)):
            if number % STEPS == 0:
                if number:
                    self.seconds.append(time.perf_counter() - begin)
                self._plain.turn()
                begin = time.perf_counter()
            yield each
        self.seconds.append(time.perf_counter() - begin)


def line(recipe: str, hvdgan: list[float], plain: list[float]) -> str:
    """A row of a table: milliseconds of a step of both sides, and the ratio of each turn to the turns around it."""
    around = [(before + after) / 2 for before, after in itertools.pairwise(plain)]
    ratios = sorted(one / other for one, other in zip(hvdgan, around, strict=True))
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    spread = f"{statistics.median(ratios):.3f} | {low:.3f} to {high:.3f} | {ratios[0]:.3f} to {ratios[-1]:.3f}"
    each = " | ".join(f"{1000 * statistics.median(side) / STEPS:.1f}" for side in (hvdgan, plain))
    return f"| {recipe} | {each} | {spread} |"


if __name__ == "__main__":
    main()
