"""Trains every unconditional recipe on MNIST with equally many images, beside a plain Keras loop, and compares samples.

    python benchmarks/datasets.py mnist --download packages --out mnist
    python benchmarks/digits_features.py --data mnist/train.npz --epochs 3 --out mnist.keras
    python benchmarks/evaluation/recipes.py --data mnist/train.npz --features mnist.keras --runs runs --picture out.png

The recipes are evaluated while they train, with averaged weights. The Keras loop, of the recipe dcgan's networks, takes
turns with dcgan without averaged weights, since it has none either. Seconds are those of the training steps, without
evaluations and start. Runs that are in the folder already are not repeated.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from comparing import COLUMNS, Comparing, table

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

DCGAN = "--nf 16 --learning-rate 5e-4"
RECIPES = {
    "dcgan": DCGAN,
    "wgan_gp": "--nf 16 --n-critic 3 --learning-rate 5e-4",
    "sngan": "--nf 8 --conditional none --d-updates 1 --learning-rate 5e-4",
    "stylegan2": "--nf 8 --latent-size 64",
    "vae_gan": "--nf 16 --latent-size 32 --holdout 0",
}
BATCH = 64
BATCHES = {"stylegan2": 32}
"""batches of the recipes that have another one, that of their docstrings"""
POINTS = 3
"""evaluations of a run"""
SECONDS = 1800
Curve = list[dict[str, float]]
"""the figures of a run's evaluations, with `step`, `images` (seen) and `seconds`"""


def main() -> None:
    """Train, compare, print tables, draw curves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help=".npz of pictures")
    parser.add_argument("--features", required=True, help="features as for --eval-features")
    parser.add_argument("--runs", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--images", type=int, default=48_000, help="images that each run sees")
    parser.add_argument("--num", type=int, default=5000, help="samples of an evaluation")
    parser.add_argument("--seeds", type=int, default=3, help="runs of dcgan and of the Keras loop")
    parser.add_argument("--recipes", nargs="*", choices=RECIPES, default=list(RECIPES), help="recipes; default: all")
    parser.add_argument("--picture", type=Path, help="PNG of the curves")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    given = parser.parse_args()
    work = Work(given.data, given.features, given.runs, given.images, given.num)
    curves = {}
    for seed in range(given.seeds):  # in turn, so that both meet the same machine
        pair = [("keras", work.keras), ("plain dcgan", work.plain_dcgan)]
        for name, run in pair if seed % 2 else pair[::-1]:
            curves[f"{name} {seed}"] = run(seed)
    curves |= {recipe: work.recipe(recipe) for recipe in given.recipes}
    rows = {name: _row(curve) for name, curve in curves.items()}
    print(table(rows, [*COLUMNS, "sliced_wasserstein", "seconds"]))
    falling = {name: {f"{each['images']:,}": each["frechet"] for each in curve} for name, curve in curves.items()}
    print(table(falling, list(next(iter(falling.values())))))
    if given.seeds:
        print(f"seconds of dcgan / Keras: {ratios(curves, given.seeds)}")
    if given.out:
        given.out.write_text(json.dumps(curves, indent=1) + "\n")
    if given.picture:
        draw(curves, given.picture)


class Work:
    """The runs of one benchmark.

    Args:
        data: .npz of pictures.
        features: value of --eval-features.
        runs: folder for the runs.
        images: images that a run sees.
        num: samples of an evaluation.
    """

    def __init__(self, data: Path, features: str, runs: Path, images: int, num: int) -> None:
        self._data, self._features, self._runs, self._images, self._num = data, features, runs, images, num
        self._comparing: Comparing | None = None

    def recipe(self, recipe: str) -> Curve:
        """Train a recipe with averaged weights."""
        return self._hvdgan(recipe, recipe, RECIPES[recipe], BATCHES.get(recipe, BATCH))

    def plain_dcgan(self, seed: int) -> Curve:
        """Train dcgan without averaged weights."""
        return self._hvdgan(f"plain-dcgan-{seed}", "dcgan", f"{DCGAN} --ema-decay 0 --seed {seed}")

    def keras(self, seed: int) -> Curve:
        """Train the Keras loop, and compare its samples."""

        def run(folder: Path) -> Curve:
            steps = self._images // BATCH
            flags = f"--data {self._data} --out {folder} --steps {steps} --every {_every(steps)} --num {self._num}"
            script = str(Path(__file__).with_name("plain_keras.py"))
            _run([script, *f"{flags} {DCGAN} --batch-size {BATCH} --seed {seed}".split()])
            self._comparing = self._comparing or Comparing(self._data, self._features, self._num)
            times = [json.loads(line) for line in (folder / "times.jsonl").read_text().splitlines()]
            return [{**each, **self._comparing(folder / f"samples-{each['step']}.npy")} for each in times]

        return self._kept(f"keras-{seed}", run, BATCH)

    def _hvdgan(self, name: str, recipe: str, flags: str, batch: int = BATCH) -> Curve:
        def run(folder: Path) -> Curve:
            steps = self._images // batch
            compared = f"--eval-every {_every(steps)} --eval-samples {self._num} --eval-features {self._features}"
            quiet = f"--sample-every 0 --checkpoint-every 0 --log-every {_every(steps)} --run-dir {folder}"
            length = f"--global-batch-size {batch} --steps {steps}"
            command = f"--recipe {recipe} --data {self._data} {flags} {length} {compared} {quiet}"
            _run(["-m", "hvdgan.train", *command.split()])
            evaluations = [json.loads(line) for line in (folder / "evaluation.jsonl").read_text().splitlines()]
            seconds = training_seconds(folder / "metrics.jsonl")
            return [{**_figures(each), "seconds": seconds[each["step"]]} for each in evaluations]

        return self._kept(name, run, batch)

    def _kept(self, name: str, run: Callable[[Path], Curve], batch: int) -> Curve:
        """The curve of a run that was made before, or of a new one."""
        path = self._runs / name / "curve.json"
        if not path.is_file():
            curve = [{**each, "images": each["step"] * batch} for each in run(path.parent)]
            path.write_text(json.dumps(curve) + "\n")
        return json.loads(path.read_text())


def training_seconds(metrics: Path) -> dict[int, float]:
    """Seconds that the steps of a run took until some steps, from the mean time of a step in each line."""
    found, last, spent = {}, 0, 0.0
    for line in metrics.read_text().splitlines():
        record = json.loads(line)
        if "step_seconds" in record:
            spent += (record["step"] - last) * record["step_seconds"]
            last = record["step"]
            found[last] = spent
    return found


def ratios(curves: dict[str, Curve], seeds: int) -> str:
    """Seconds of dcgan over those of the Keras loop, in each pair: of whole runs, and after the first evaluation."""

    def spent(curve: Curve) -> np.ndarray:
        return np.array([curve[-1]["seconds"], curve[-1]["seconds"] - curve[0]["seconds"]])

    pairs = [spent(curves[f"plain dcgan {seed}"]) / spent(curves[f"keras {seed}"]) for seed in range(seeds)]
    return "; ".join(f"{whole:.2f} ({later:.2f} after the first evaluation)" for whole, later in pairs)


def draw(curves: dict[str, Curve], path: Path) -> None:
    """Draw the Fréchet distance against the seconds of training: of all recipes, and of dcgan and the Keras loop."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained", sharey=True)
    for name, curve in curves.items():
        points = [[each["seconds"] for each in curve], [each["frechet"] for each in curve]]
        if name in RECIPES:
            left.plot(*points, marker="o", markersize=3, label=name)
        else:
            kind, _, seed = name.rpartition(" ")
            colour, label = ("C0", "hvdgan dcgan") if kind == "plain dcgan" else ("C1", "plain Keras loop")
            right.plot(*points, color=colour, marker="o", markersize=3, label=label if seed == "0" else None)
    for axes, title in ((left, "Recipes, averaged weights"), (right, "The same networks, weights not averaged")):
        axes.set(title=title, xlabel="seconds of training", yscale="log")
        axes.legend()
        axes.grid(alpha=0.3)
    left.set_ylabel("Fréchet distance")
    left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    left.yaxis.set_major_formatter(ScalarFormatter())
    left.yaxis.set_minor_formatter(NullFormatter())
    figure.savefig(path, dpi=110)


def _every(steps: int) -> int:
    """Steps between two evaluations."""
    return max(1, steps // POINTS)


def _run(words: Sequence[str]) -> None:
    subprocess.run([sys.executable, *words], check=True, timeout=SECONDS)


def _figures(record: dict[str, object]) -> dict[str, float]:
    return {name.removeprefix("eval/"): value for name, value in record.items() if isinstance(value, int | float)}


def _row(curve: Curve) -> dict[str, float | str]:
    return {**curve[-1], "seconds": f"{curve[-1]['seconds']:.0f}"}


if __name__ == "__main__":
    main()
