"""Trains every unconditional recipe on MNIST, each next to a plain Keras loop of its networks, and compares samples.

    python benchmarks/datasets.py mnist --download packages --out mnist
    python benchmarks/digits_features.py --data mnist/train.npz --epochs 3 --out mnist.keras
    python benchmarks/evaluation/recipes.py --data mnist/train.npz --features mnist.keras --runs runs --picture out.png

All runs see equally many images and are evaluated while they train, with averaged weights. A recipe and the loop take
turns. Seconds are those of the training steps, without evaluations and start. Runs that are in the folder already are
not repeated.
"""

import argparse
import json
import os
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

RECIPES = {
    "dcgan": "--nf 16 --learning-rate 5e-4",
    "wgan_gp": "--nf 16 --n-critic 3 --learning-rate 5e-4",
    "sngan": "--nf 8 --conditional none --d-updates 1 --learning-rate 5e-4",
    "stylegan2": "--nf 8 --latent-size 64",
    "vae_gan": "--nf 16 --latent-size 32",
}
"""recipes, with options that the loops have, too"""
OF_HVDGAN = {"vae_gan": "--holdout 0"}
"""flags so that a recipe trains on all images, as the loops do"""
BATCH = 64
BATCHES = {"stylegan2": 32}
"""batches of the recipes that have another one, that of their docstrings"""
POINTS = 3
"""evaluations of a run"""
SECONDS = 1800
Curve = list[dict[str, float]]
"""the figures of a run's evaluations, with `step`, `images` (seen) and `seconds`"""
Curves = dict[str, dict[str, list[Curve]]]
"""for each recipe the curves of "hvdgan" and of "Keras", one per seed"""


def main() -> None:
    """Train, compare, print tables, draw curves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help=".npz of pictures")
    parser.add_argument("--features", required=True, help="features as for --eval-features")
    parser.add_argument("--runs", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--images", type=int, default=48_000, help="images that each run sees")
    parser.add_argument("--num", type=int, default=5000, help="samples of an evaluation")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each recipe, and of each loop")
    parser.add_argument("--recipes", nargs="*", choices=RECIPES, default=list(RECIPES), help="recipes; default: all")
    parser.add_argument("--picture", type=Path, help="PNG of the curves")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    given = parser.parse_args()
    work = Work(given.data, given.features, given.runs, given.images, given.num)
    curves: Curves = {recipe: {"hvdgan": [], "Keras": []} for recipe in given.recipes}
    for recipe, pair in curves.items():
        for seed in range(given.seeds):
            sides = [("hvdgan", work.hvdgan), ("Keras", work.keras)]
            for side, run in sides[:: -1 if seed % 2 else 1]:  # in turn, so that both meet the same machine
                pair[side].append(run(recipe, seed))
    report(curves)
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

    def hvdgan(self, recipe: str, seed: int) -> Curve:
        """Train a recipe."""

        def run(folder: Path, batch: int, steps: int) -> Curve:
            compared = f"--eval-every {_every(steps)} --eval-samples {self._num} --eval-features {self._features}"
            quiet = f"--sample-every 0 --checkpoint-every 0 --log-every {_every(steps)} --run-dir {folder}"
            length = f"--global-batch-size {batch} --steps {steps} --seed {seed} {OF_HVDGAN.get(recipe, '')}"
            command = f"--recipe {recipe} --data {self._data} {RECIPES[recipe]} {length} {compared} {quiet}"
            _run(["-m", "hvdgan.train", *command.split()])
            evaluations = [json.loads(line) for line in (folder / "evaluation.jsonl").read_text().splitlines()]
            seconds = training_seconds(folder / "metrics.jsonl")
            return [{**_figures(each), "seconds": seconds[each["step"]]} for each in evaluations]

        return self._kept(f"{recipe}-{seed}", recipe, run)

    def keras(self, recipe: str, seed: int) -> Curve:
        """Train the plain Keras loop of a recipe's networks, and compare its samples."""

        def run(folder: Path, batch: int, steps: int) -> Curve:
            flags = f"{recipe} --data {self._data} --out {folder} --steps {steps} --every {_every(steps)}"
            length = f"--samples {self._num} --batch-size {batch} --seed {seed}"
            script = str(Path(__file__).with_name("plain_keras.py"))
            _run([script, *f"{flags} {length} {RECIPES[recipe]}".split()])
            self._comparing = self._comparing or Comparing(self._data, self._features, self._num)
            times = [json.loads(line) for line in (folder / "times.jsonl").read_text().splitlines()]
            return [{**each, **self._comparing(folder / f"samples-{each['step']}.npy")} for each in times]

        return self._kept(f"keras-{recipe}-{seed}", recipe, run)

    def _kept(self, name: str, recipe: str, run: Callable[[Path, int, int], Curve]) -> Curve:
        """The curve of a run that was made before, or of a new one."""
        path, batch = self._runs / name / "curve.json", BATCHES.get(recipe, BATCH)
        if not path.is_file():
            found = run(path.parent, batch, self._images // batch)
            path.write_text(json.dumps([{**each, "images": each["step"] * batch} for each in found]) + "\n")
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


def report(curves: Curves) -> None:
    """Print a table of the runs' last figures, one of their distances, and one of the recipes."""
    runs = {
        f"{recipe}, {side}, seed {seed}": curve
        for recipe, pair in curves.items()
        for side, some in pair.items()
        for seed, curve in enumerate(some)
    }
    print(table({name: _row(curve) for name, curve in runs.items()}, [*COLUMNS, "sliced_wasserstein", "seconds"]))
    falling = {name: {f"{each['images']:,}": each["frechet"] for each in curve} for name, curve in runs.items()}
    print(table(falling, list(dict.fromkeys(column for row in falling.values() for column in row))))
    rows = {recipe: summary(pair["hvdgan"], pair["Keras"]) for recipe, pair in curves.items()}
    print(table(rows, list(next(iter(rows.values())))))


def summary(hvdgan: Sequence[Curve], keras: Sequence[Curve]) -> dict[str, str]:
    """The mean and deviation of both sides' last Fréchet distances, and the seconds of hvdgan over those of Keras."""
    pairs = list(zip(hvdgan, keras, strict=True))
    whole = [one[-1]["seconds"] / other[-1]["seconds"] for one, other in pairs]
    # The first steps of a run optimize its graphs.
    later = [_later_seconds(one) / _later_seconds(other) for one, other in pairs]
    return {
        "Fréchet, hvdgan": _spread([curve[-1]["frechet"] for curve in hvdgan]),
        "Fréchet, Keras": _spread([curve[-1]["frechet"] for curve in keras]),
        "seconds, hvdgan / Keras": _range(whole),
        "after the first evaluation": _range(later),
    }


def draw(curves: Curves, path: Path) -> None:
    """Draw the Fréchet distance against the seconds of training, one picture per recipe."""
    figure, all_axes = plt.subplots(1, len(curves), figsize=(3.2 * len(curves), 3.6), layout="constrained", sharey=True)
    for axes, (recipe, pair) in zip(np.atleast_1d(all_axes), curves.items(), strict=True):
        for colour, (side, some) in zip(("C0", "C1"), pair.items(), strict=True):
            for seed, curve in enumerate(some):
                points = [[each["seconds"] for each in curve], [each["frechet"] for each in curve]]
                label = {"Keras": "plain Keras loop"}.get(side, side) if seed == 0 else None
                axes.plot(*points, color=colour, marker="o", markersize=3, label=label)
        axes.set(title=recipe, xlabel="seconds of training", yscale="log", xlim=(0, None))
        axes.grid(alpha=0.3)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.yaxis.set_minor_formatter(NullFormatter())
    first = np.atleast_1d(all_axes)[0]
    first.set_ylabel("Fréchet distance")
    first.legend()
    figure.savefig(path, dpi=110)


def _later_seconds(curve: Curve) -> float:
    """Seconds after the first evaluation."""
    return curve[-1]["seconds"] - curve[0]["seconds"]


def _spread(values: Sequence[float]) -> str:
    deviation = f" ± {np.std(values, ddof=1):.3g}" if len(values) > 1 else ""
    return f"{np.mean(values):.3g}{deviation}"


def _range(values: Sequence[float]) -> str:
    return f"{np.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _every(steps: int) -> int:
    """Steps between two evaluations."""
    return max(1, steps // POINTS)


def _run(words: Sequence[str]) -> None:
    kernels = {"TF_ENABLE_ONEDNN_OPTS": "1"}  # as hvdgan has them, for the plain loops too
    subprocess.run([sys.executable, *words], check=True, timeout=SECONDS, env={**os.environ, **kernels})


def _figures(record: dict[str, object]) -> dict[str, float]:
    return {name.removeprefix("eval/"): value for name, value in record.items() if isinstance(value, int | float)}


def _row(curve: Curve) -> dict[str, float | str]:
    return {**curve[-1], "seconds": f"{curve[-1]['seconds']:.0f}"}


if __name__ == "__main__":
    main()
