"""Counts the modes that GANs reach on the ring of 8 and the grid of 25 Gaussians, beside Table 1 of PacGAN.

    python benchmarks/modes.py --protocol ring --out results.json --page results.md --picture ring.png
    python benchmarks/modes.py --protocol grid --methods gan,pack2 --seeds 0-2 --steps 20000

The protocol is that of Lin et al. 2018 (arXiv:1712.04086) and their program: 100,000 points, batches of 100 packs, both
networks updated at once by Adam (1e-4, beta1 0.8) in 400,000 steps, and 2,500 samples. A sample is good within three
standard deviations of the nearest mean; one good sample makes a mode; KL is that of the modes' shares among the good
samples from equal ones, in nats. Networks and losses are in gaussian_gan.py.

Nothing is published for R1 and R2 here. Their weight is gamma / 2, and gamma is the variance of a mode unless it is
given: then a logit that changes by 1 within one standard deviation costs 1 / 2.

Each run is a process. The same command with the same --runs resumes, and trains nothing twice. The row `real` has other
points of the same mixture in place of samples: nothing can be better, but by chance.
"""

import argparse
import json
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from gaussians import CENTRES, DEVIATIONS, Points
from processes import run

FOLDER = Path(__file__).resolve().parent
METHODS = {
    "gan": "GAN",
    "pack2": "GAN, packs of 2",
    "pack4": "GAN, packs of 4",
    "r1r2": "GAN + R1 + R2",
    "relativistic": "relativistic + R1 + R2",
}
PACKS = {"pack2": 2, "pack4": 4}
PENALISED = ("r1r2", "relativistic")
FIGURES = {"modes": 1, "mode_good": 100, "mode_kl": 1}
"""what is measured, and the factor with which the table has it"""
PUBLISHED = {
    "ring": {
        "GAN": "6.3 ± 0.5 | 98.2 ± 0.2 | 0.45 ± 0.09",
        "PacGAN2": "7.9 ± 0.1 | 95.6 ± 2.0 | 0.07 ± 0.03",
        "PacGAN4": "7.8 ± 0.1 | 95.9 ± 1.4 | 0.07 ± 0.02",
    },
    "grid": {
        "GAN": "17.3 ± 0.8 | 94.8 ± 0.7 | 0.70 ± 0.07",
        "PacGAN2": "23.8 ± 0.7 | 91.3 ± 0.8 | 0.13 ± 0.04",
        "PacGAN4": "24.8 ± 0.2 | 93.6 ± 0.6 | 0.04 ± 0.01",
    },
}
"""modes, good samples in %, KL: mean and standard error of 10 trials"""
PUBLISHED_STEPS, PUBLISHED_SEEDS = 400_000, 10
SAMPLES, BATCH = 2500, 100
_SECONDS = 48 * 3600


def main() -> None:
    """Train, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--protocol", choices=list(CENTRES), required=True, help="where the modes are")
    parser.add_argument("--methods", default=",".join(METHODS), help="some of %(default)s; default: all")
    parser.add_argument("--seeds", default="0-4", help="first and last seed, or one [default: %(default)s]")
    parser.add_argument("--steps", type=int, default=50_000, help="steps of a run [default: %(default)s]")
    parser.add_argument("--gamma", type=float, help="twice the weight of R1 and R2; default: a mode's variance")
    parser.add_argument("--runs", type=Path, help="folder for the runs; default: a temporary one")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    parser.add_argument("--page", type=Path, help="Markdown file for the table")
    parser.add_argument("--picture", type=Path, help="picture of the samples of each method, of the first seed")
    given = parser.parse_args()
    methods, seeds = given.methods.split(","), seeds_of(parser, given.seeds)
    if unknown := set(methods) - METHODS.keys():
        parser.error(f"--methods: no {', '.join(sorted(unknown))}; expected some of {', '.join(METHODS)}")
    if given.steps < 1:
        parser.error(f"--steps {given.steps}: expected at least 1")
    gamma = DEVIATIONS[given.protocol] ** 2 if given.gamma is None else given.gamma
    if not gamma > 0:
        parser.error(f"--gamma {gamma:g}: expected a number above 0")
    folder = (given.runs or Path(tempfile.mkdtemp(prefix="hvdgan-modes-"))).resolve()
    folder = folder / f"{given.protocol}-{given.steps}"
    found: dict[str, Any] = {"protocol": given.protocol, "steps": given.steps, "seeds": seeds, "gamma": gamma}
    found |= {"real": None, "runs": []}
    found["published"] = {"steps": PUBLISHED_STEPS, "seeds": PUBLISHED_SEEDS, "rows": PUBLISHED[given.protocol]}
    for seed in seeds:  # so that an interrupted benchmark has some seeds of all methods
        for method in methods:
            run_dir = folder / name_of(method, seed, gamma)
            pack = PACKS.get(method, 1)
            words = ["--protocol", given.protocol, "--data-options", f"protocol={given.protocol}", "--seed", seed]
            words += ["--steps", given.steps, "--pack", pack, "--global-batch-size", BATCH * pack]
            words += ["--loss", method, "--gamma", gamma] if method in PENALISED else []
            figures = train(run_dir, *words)
            found["runs"].append({"method": method, "seed": seed, **figures})
            found["real"] = found["real"] or real(run_dir, given.protocol)
            print(method, seed, json.dumps(figures), flush=True)
            if given.out:
                given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            if given.page:
                given.page.write_text(page(found), encoding="utf-8")
    print(page(found), end="", flush=True)
    if given.picture:
        samples = {method: drawn(folder / name_of(method, seeds[0], gamma)) for method in methods}
        draw(samples, given.protocol, given.picture)


def seeds_of(parser: argparse.ArgumentParser, text: str) -> list[int]:
    """The seeds of a text like 0-4 or 3."""
    first, _, last = text.partition("-")
    try:
        seeds = list(range(int(first), int(last or first) + 1))
    except ValueError:
        seeds = []
    if not seeds:
        parser.error(f"--seeds {text}: expected two numbers such as 0-4, or one")
    return seeds


def name_of(method: str, seed: int, gamma: float) -> str:
    """Name of the folder of a run."""
    return f"{method}-{gamma:g}-{seed}" if method in PENALISED else f"{method}-{seed}"


def hvdgan(name: str, *words: object, folder: Path) -> float:
    """Run a command of hvdgan, which logs to a file of this folder; returns its seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    number = len(list(folder.glob(f"{name}-*.log")))
    path = os.pathsep.join(filter(None, [str(FOLDER), str(FOLDER.parent), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", f"hvdgan.{name}", *map(str, words)]
    done = run(command, folder / f"{name}-{number}.log", _SECONDS, folder, {"PYTHONPATH": path})
    if done.code != 0:
        sys.exit("\n".join([done.words, *done.errors]))
    return done.seconds


def train(run_dir: Path, *given: object) -> dict[str, float]:
    """Train a run, unless it has ended before; returns its figures, and the minutes of its last command."""
    kept = run_dir / "figures.json"
    if not kept.is_file():
        words = ["--recipe", "gaussian_gan:GaussianGAN", "--data", "gaussians:Points", "--values", "none", *given]
        words += ["--log-every", 1000, "--eval-features", "recipe", "--eval-samples", SAMPLES, "--eval-every", 0]
        words += [
            "--sample-every",
            0,
            "--checkpoint-every",
            5000,
            "--keep",
            1,
            "--report",
            "never",
            "--run-dir",
            run_dir / "run",
        ]
        seconds = hvdgan("train", *words, folder=run_dir)
        records = [json.loads(line) for line in (run_dir / "run" / "metrics.jsonl").read_text().splitlines()]
        figures = figures_of(next(each for each in reversed(records) if "eval/modes" in each))
        kept.write_text(json.dumps({**figures, "minutes": round(seconds / 60, 2)}))
    return json.loads(kept.read_text())


def real(run_dir: Path, protocol: str) -> dict[str, float]:
    """The figures of other points of the mixture, as the program measures samples."""
    np.save(run_dir / "other.npy", Points(protocol, seed=1, num=SAMPLES).points)
    words = ["--images", run_dir / "other.npy", "--eval-features", "recipe", "--samples", SAMPLES]
    hvdgan("evaluate", run_dir / "run", *words, folder=run_dir)
    return figures_of(json.loads((run_dir / "run" / "evaluation.jsonl").read_text().splitlines()[-1]))


def figures_of(record: dict[str, Any]) -> dict[str, float]:
    """The figures of modes in a record of metrics.jsonl or evaluation.jsonl."""
    return {name: record[f"eval/{name}"] for name in FIGURES}


def drawn(run_dir: Path) -> np.ndarray:
    """Samples of a run, (N, 2)."""
    out = run_dir / "samples.npz"
    hvdgan("sample", run_dir / "run", "--samples", SAMPLES, "--out", out, "--overwrite", folder=run_dir)
    with np.load(out) as arrays:
        return arrays["samples"]


def page(found: dict[str, Any]) -> str:
    """The table as Markdown, with the published rows, and what was reduced."""
    modes = len(CENTRES[found["protocol"]])
    lines = [
        f"{found['protocol']}: {found['steps']:,} steps, seeds {', '.join(map(str, found['seeds']))}. The published "
        f"figures are of {PUBLISHED_STEPS:,} steps and {PUBLISHED_SEEDS} trials. Mean ± standard error over the "
        f"seeds. R1 and R2 have gamma {found['gamma']:g}.",
        "",
        f"| method | runs | modes of {modes} | good % | KL | minutes |",
        "|---|---|---|---|---|---|",
    ]
    for method, name in METHODS.items():
        runs = [each for each in found["runs"] if each["method"] == method]
        if runs:
            cells = [spread([each[name] for each in runs], scale) for name, scale in FIGURES.items()]
            minutes = np.mean([each["minutes"] for each in runs])
            lines.append(f"| {name} | {len(runs)} | {' | '.join(cells)} | {minutes:.1f} |")
    for name, cells in PUBLISHED[found["protocol"]].items():
        lines.append(f"| {name}, published | {PUBLISHED_SEEDS} | {cells} | |")
    if found["real"]:
        real_modes, good, divergence = (found["real"][name] for name in FIGURES)
        lines.append(f"| real | | {real_modes:.0f} | {100 * good:.1f} | {divergence:.4f} | |")
    return "\n".join(lines) + "\n"


def spread(values: list[float | None], scale: int) -> str:
    """Mean and standard error of the values that are defined: without good samples there is no KL."""
    known = scale * np.array([each for each in values if each is not None])
    if not len(known):
        return "undefined"
    error = f" ± {known.std(ddof=1) / math.sqrt(len(known)):.2f}" if len(known) > 1 else ""
    return f"{known.mean():.2f}{error}" + ("" if len(known) == len(values) else f" ({len(known)} runs)")


def draw(samples: dict[str, np.ndarray], protocol: str, file: Path) -> None:
    """Draw the samples of each method, with circles around the modes."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    centres = CENTRES[protocol]
    edge = 1.4 * float(np.abs(centres).max())
    figure, axes = plt.subplots(1, len(samples), figsize=(3 * len(samples), 3.3), squeeze=False)
    for axis, (method, points) in zip(axes[0], samples.items(), strict=True):
        axis.scatter(*centres.T, s=90, facecolors="none", edgecolors="tab:orange", linewidths=0.8)
        axis.scatter(*points.T, s=2, alpha=0.4, linewidths=0, color="tab:blue")
        axis.set(xlim=(-edge, edge), ylim=(-edge, edge), aspect="equal", xticks=[], yticks=[], title=METHODS[method])
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
