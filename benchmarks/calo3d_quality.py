"""Measures the quality that calo3d reaches on synthetic showers of 16^3 cells, against fresh showers of known truth.

    python benchmarks/calo3d_quality.py --out results.json --picture showers.png

Showers for the same energies and angles are drawn twice: by hvdgan.sample, and by showers.py with another seed. In each
of five bins of energy from 10 to 500 GeV these figures must be within 5 % of the truth, the last one within 10 %:

- response: mean of the sum of deposits over the energy.
- longitudinal: mean energy of each layer that holds at least 1 % of the energy; the largest error of all layers counts.
- transverse: the same for the rows along H, and for the columns along W.
- inclined: the same for the columns, apart for showers that are inclined to the left and to the right.

Figures without a goal: the standard deviations of the response and of the mean depth, and the share of cells that are
hit.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "data"))
import showers

DATA = (
    "--axes DHW --conditions energy,theta --values power:0.85 --condition-values energy=log1p+standard;theta=standard"
)
COMMAND = "--nf 8 --learning-rate 1e-3 --global-batch-size 32 --ema-decay 0.998 --steps 7500"
BINS = np.geomspace(*showers.ENERGIES, 6)  # GeV
LEAST_SHARE = 0.01
GOALS = {"columns, left": 0.10, "columns, right": 0.10}
GOAL = 0.05
"""of all others"""
Profiles = dict[str, list[tuple[np.ndarray, np.ndarray]]]


def main() -> None:
    """Train, draw, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="folder for data, run and samples; default: a temporary one")
    parser.add_argument("--num", type=int, default=20_000, help="number of showers to train on")
    parser.add_argument("--samples", type=int, default=10_000, help="number of showers to compare")
    parser.add_argument("--seed", type=int, default=0, help="seed of the run")
    parser.add_argument("--ranks", type=int, default=1, help="number of ranks, started by horovodrun if more than one")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    parser.add_argument("--picture", type=Path, help="PNG for profiles and showers")
    given = parser.parse_args()
    folder = given.run or Path(tempfile.mkdtemp(prefix="hvdgan-calo3d-"))
    folder.mkdir(parents=True, exist_ok=True)
    seconds = train(folder, given.num, given.seed, given.ranks)
    energy, theta = showers.particles(given.samples, seed=1)
    true, made = showers.showers(energy, theta, 16, seed=1), draw(folder, energy, theta)
    profiles = profiles_of(true, made, energy, theta)
    figures = {"minutes": round(seconds / 60, 2), "command": COMMAND, **judge(true, made, energy, profiles)}
    print(json.dumps(figures, indent=1), flush=True)
    if given.out:
        given.out.write_text(json.dumps(figures, indent=1) + "\n")
    if given.picture:
        picture(given.picture, true, made, energy, profiles)
    if not figures["reached"]:
        sys.exit("not reached")


def train(folder: Path, num: int, seed: int, ranks: int) -> float:
    """Make the data, and run the training command; returns its wall-clock seconds."""
    energy, theta = showers.particles(num, seed=0)
    showers.write(folder / "showers.npz", showers.showers(energy, theta, 16, seed=0), energy, theta)
    launcher = [] if ranks == 1 else ["horovodrun", "-np", str(ranks)]
    command = [*launcher, sys.executable, "-m", "hvdgan.train", "--recipe", "calo3d", *DATA.split(), *COMMAND.split()]
    command += ["--data", f"{folder / 'showers.npz'}:ECAL", "--seed", str(seed), "--run-dir", str(folder / "run")]
    begin = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - begin


def draw(folder: Path, energy: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Draw a shower for each energy and angle with hvdgan.sample, (N, D, H, W) GeV."""
    table, out = folder / "conditions.csv", folder / "samples.npz"
    np.savetxt(table, np.stack([energy, theta], axis=1), delimiter=",", header="energy,theta", comments="")
    command = [sys.executable, "-m", "hvdgan.sample", str(folder / "run"), "--samples", str(len(energy))]
    command += ["--conditions", str(table), "--out", str(out), "--batch-size", "100", "--overwrite"]
    subprocess.run(command, check=True)
    with np.load(out) as arrays:
        return arrays["samples"][..., 0]


def profiles_of(true: np.ndarray, made: np.ndarray, energy: np.ndarray, theta: np.ndarray) -> Profiles:
    """Mean energies of layers, rows and columns [GeV], true and generated, for each bin of energy."""
    left = theta < np.pi / 2
    kinds = {
        "longitudinal": (1, None),
        "rows": (2, None),
        "columns": (3, None),
        "columns, left": (3, left),
        "columns, right": (3, ~left),
    }
    found: Profiles = {}
    for kind, (axis, chosen) in kinds.items():
        others = tuple(each for each in (1, 2, 3) if each != axis)
        sums = [each.sum(axis=others, dtype=np.float64) for each in (true, made)]
        masks = [mask if chosen is None else mask & chosen for mask in bins_of(energy)]
        found[kind] = [(sums[0][mask].mean(axis=0), sums[1][mask].mean(axis=0)) for mask in masks]
    return found


def bins_of(energy: np.ndarray) -> list[np.ndarray]:
    """Masks of the showers in each bin of energy, (N,) bool each."""
    places = np.clip(np.searchsorted(BINS, energy, side="right") - 1, 0, len(BINS) - 2)
    return [places == place for place in range(len(BINS) - 1)]


def judge(true: np.ndarray, made: np.ndarray, energy: np.ndarray, profiles: Profiles) -> dict[str, Any]:
    """Compare generated with true showers; all errors are relative, one for each bin of energy."""
    masks = bins_of(energy)
    responses = [each.sum(axis=(1, 2, 3), dtype=np.float64) / energy for each in (true, made)]
    depths = [depth_of(each) for each in (true, made)]
    errors: dict[str, list[float]] = {
        "response": [float(abs(responses[1][mask].mean() / responses[0][mask].mean() - 1)) for mask in masks]
    }
    weighted = {}
    for kind, pairs in profiles.items():
        relative = [np.abs(made_one / np.maximum(true_one, 1e-9) - 1) for true_one, made_one in pairs]
        shares = [true_one / true_one.sum() for true_one, _ in pairs]
        errors[kind] = [float(each[share >= LEAST_SHARE].max()) for each, share in zip(relative, shares, strict=True)]
        weighted[kind] = [float((each * share).sum()) for each, share in zip(relative, shares, strict=True)]
    spreads = {
        "response_deviation": [[float(each[mask].std()) for mask in masks] for each in responses],
        "depth_deviation": [[float(each[mask].std()) for mask in masks] for each in depths],
        "cells_hit": [[float((each[mask] > showers.THRESHOLD).mean()) for mask in masks] for each in (true, made)],
    }
    return {
        "bins_gev": [round(float(edge), 1) for edge in BINS],
        "largest_errors": rounded(errors),
        "weighted_errors": rounded(weighted),
        "true_and_generated": rounded(spreads),
        "worst": round(max(max(each) for each in errors.values()), 4),
        "missed": (missed := [kind for kind, each in errors.items() if max(each) > GOALS.get(kind, GOAL)]),
        "reached": not missed,
    }


def depth_of(deposits: np.ndarray) -> np.ndarray:
    """Mean depth of each shower in layers, (N,)."""
    layers = deposits.sum(axis=(2, 3), dtype=np.float64)
    return layers @ np.arange(layers.shape[1]) / np.maximum(layers.sum(axis=1), 1e-9)


def rounded(numbers: Any) -> Any:
    """Round all numbers of a nested structure to 4 digits."""
    if isinstance(numbers, dict):
        return {name: rounded(each) for name, each in numbers.items()}
    return [rounded(each) for each in numbers] if isinstance(numbers, list) else round(numbers, 4)


def picture(path: Path, true: np.ndarray, made: np.ndarray, energy: np.ndarray, profiles: Profiles) -> None:
    """Draw the profiles of each bin of energy, the response, and some showers seen from the side."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    masks = bins_of(energy)
    figure, axes = plt.subplots(9, len(masks), figsize=(3.2 * len(masks), 22), layout="constrained")
    for row, (kind, pairs) in enumerate(profiles.items()):
        for place, (true_one, made_one) in enumerate(pairs):
            plot = axes[row, place]
            plot.step(range(len(true_one)), true_one, where="mid", color="black", label="true")
            plot.step(range(len(made_one)), made_one, where="mid", color="tab:red", label="generated")
            plot.set(yscale="log", ylim=(true_one.max() / 3e3, true_one.max() * 2), ylabel="mean energy [GeV]")
            plot.set_title(f"{kind}, {BINS[place]:.0f}-{BINS[place + 1]:.0f} GeV", fontsize=9)
    axes[0, 0].legend()
    for place, mask in enumerate(masks):
        histograms(axes[5, place], [each[mask].sum(axis=(1, 2, 3)) / energy[mask] for each in (true, made)], "response")
        histograms(axes[6, place], [depth_of(each[mask]) for each in (true, made)], "mean depth [layers]")
        one = int(np.flatnonzero(mask)[0])
        for row, (each, name) in enumerate(((true, "true"), (made, "generated")), 7):
            axes[row, place].imshow(np.log10(each[one].sum(axis=1) + 1e-3), vmin=-3, vmax=1.5)
            axes[row, place].set_title(f"{name}, {energy[one]:.0f} GeV, seen along H", fontsize=9)
    figure.savefig(path, dpi=70)
    plt.close(figure)


def histograms(plot: Any, both: list[np.ndarray], label: str) -> None:
    """Draw the histograms of one number of true and of generated showers."""
    edges = np.linspace(*np.percentile(both[0], [0.1, 99.9]), 40)
    for values, color in zip(both, ("black", "tab:red"), strict=True):
        plot.hist(values, edges, histtype="step", color=color)
    plot.set_xlabel(label)


if __name__ == "__main__":
    main()
