"""Trains every recipe in every precision for some steps: finite losses, images/s and peak memory of each stage."""

import json
import math
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpu.check import Check
from gpu.processes import Done
from gpu.setting import ROOT, Setting, known_recipes

STEPS, QUICK_STEPS = 200, 6
_STAGES = {
    "completion": ("completion-steps", "discriminator-steps", "joint-steps"),
    "srgan": ("pixel-steps", "steps"),
}
"""flags for the steps of recipes of several stages, which share the steps"""
_EXTRA = {"stylegan2": ["--path-length-weight", "2"]}
"""flags for parts of a recipe that are off by default"""
_SMALL = {
    "calo3d": ["--nf", "2", "--latent-size", "4", "--r1-every", "2"],
    "completion": ["--nf", "8"],
    "downscale": ["--nf", "2", "--blocks", "1", "--noise-channels", "2"],
    "sngan": ["--nf", "2", "--d-updates", "1"],
    "stylegan2": ["--nf", "2", "--latent-size", "8", "--r1-every", "2", "--path-length-every", "2"],
    "wgan_gp": ["--nf", "2", "--n-critic", "1"],
}
"""flags for networks that train in a moment; --nf 2 for the others"""
_PEAK = re.compile(r"stage (\S+): peak memory of a (GPU|process) ([\d,.e+]+) GB, on rank ")
"""the line of hvdgan.training.memory at the end of a stage"""


def checks(setting: Setting) -> Iterator[Check]:
    """Train each recipe in each precision on one rank, all of them in one precision before the next."""
    known = known_recipes()
    for recipe in setting.recipes:
        if recipe not in known:
            named = ", ".join(known)
            yield Check(name=recipe, verdict="failed", errors=(f"there is no such recipe; hvdgan has {named}",))
    for precision in setting.precisions:
        for recipe in setting.recipes:
            if recipe in known:
                yield _trained(setting, recipe, precision)


def _trained(setting: Setting, recipe: str, precision: str) -> Check:
    batch, steps = 8 if setting.small else 64, QUICK_STEPS if setting.quick else STEPS
    words = ["--recipe", recipe, "--precision", precision, "--global-batch-size", str(batch), *_data(setting, recipe)]
    return trained(setting, "recipes", f"{recipe}-{precision}", [*words, *flags_of(recipe, steps, small=setting.small)])


def trained(setting: Setting, part: str, name: str, words: Sequence[str], ranks: int = 1) -> Check:
    """Train without samples and checkpoints, and check that losses are finite; the figures hold images/s and memory.

    Args:
        setting: settings of the script.
        part: name of the part.
        name: name of the check.
        words: command line of hvdgan.train.
        ranks: number of ranks.
    """
    run_dir = setting.out / "runs" / f"{part}-{name}"
    words = [*words, "--run-dir", str(run_dir), "--report", "never", "--sample-every", "0", "--checkpoint-every", "0"]
    done = setting.launch(f"{part}/{name}", "hvdgan.train", words, ranks)
    if done.code != 0:
        return Check(name=name, verdict="failed", errors=done.errors, command=done.words, seconds=done.seconds)
    check = _judged(name, done, records(run_dir), peaks_in((run_dir / "log.txt").read_text(encoding="utf-8")))
    if check.verdict == "passed":
        shutil.rmtree(run_dir)  # its checkpoints take hundreds of megabytes
    return check


def _judged(name: str, done: Done, found: Sequence[dict[str, Any]], peaks: dict[str, dict[str, float]]) -> Check:
    complaints = complaints_of(found)
    rates = {record["stage"]: record["images_per_sec"] for record in found}  # the last record of each stage
    words = ", ".join(f"{rate:,.0f} images/s ({stage})" for stage, rate in rates.items())
    memory = "; ".join(
        f"a {whose} took up to {max(each.values()):.3g} GB, in stage {max(each, key=each.__getitem__)}"
        for whose, each in peaks.items()
    )
    return Check(
        name=name,
        verdict="failed" if complaints else "passed",
        found="; ".join(filter(None, [words, memory])),
        figures={"images_per_sec": rates, "peak_gb": peaks, "losses": losses_of(found[-1]) if found else {}},
        errors=tuple(complaints),
        command=done.words,
        seconds=done.seconds,
    )


def flags_of(recipe: str, steps: int, *, small: bool) -> list[str]:
    """Return the flags for the number of steps, which the stages of a recipe share, for the log, and for its size.

    Args:
        recipe: name of a recipe.
        steps: number of steps of all stages together, rounded up to four for each stage.
        small: True for networks that train in a moment.
    """
    names = _STAGES.get(recipe, ("steps",))
    # Four records for each stage, none of which reaches into the next stage.
    log_every = -(-steps // (4 * len(names)))
    words = [word for name in names for word in (f"--{name}", str(4 * log_every))]
    return [
        *words,
        "--log-every",
        str(log_every),
        *_EXTRA.get(recipe, []),
        *(_SMALL.get(recipe, ["--nf", "2"]) if small else []),
    ]


def _data(setting: Setting, recipe: str) -> list[str]:
    """Return the flags for data that the recipe takes, and make what is not there yet."""
    if recipe != "calo3d":
        return ["--data", "digits", "--image-size", "32" if setting.small else "64"]
    path = setting.out / "runs" / "showers.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        size = ["--samples", "64", "--size", "8"] if setting.small else ["--samples", "2000", "--size", "32"]
        made = [sys.executable, str(ROOT / "benchmarks" / "showers.py"), "--out", str(path), *size]
        done = setting.run("recipes/showers", made)
        if done.code != 0:
            raise RuntimeError(" ".join(done.errors))
    return f"--data {path}:ECAL --axes DHW --conditions energy,theta --values power:0.85".split()


def records(run_dir: Path) -> list[dict[str, Any]]:
    """Read the records of a run."""
    lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for line in lines if "images_per_sec" in (record := json.loads(line))]


def peaks_in(log: str) -> dict[str, dict[str, float]]:
    """Return the peak memory in GB of each stage of a run, under what has taken it: "GPU" or "process".

    A GPU's begins again with each stage, and that of a process does not.

    Args:
        log: text of its log.txt.
    """
    peaks: dict[str, dict[str, float]] = {}
    for stage, whose, size in _PEAK.findall(log):
        peaks.setdefault(whose, {})[stage] = float(size.replace(",", ""))
    return peaks


def losses_of(record: dict[str, Any]) -> dict[str, float | None]:
    """Return the losses of a record; one that is not finite is None."""
    losses = {name: value for name, value in record.items() if name.endswith("/loss")}
    return {name: value if value is not None and math.isfinite(value) else None for name, value in losses.items()}


def complaints_of(found: Sequence[dict[str, Any]]) -> list[str]:
    """List what is wrong with the losses: those that are not finite, and stages without any.

    Args:
        found: records of a run.
    """
    complaints = [
        f"step {record['step']}: {name} is not finite"
        for record in found
        for name, value in losses_of(record).items()
        if value is None
    ]
    last = {record["stage"]: record for record in found}
    complaints += [
        f"stage {stage}: every update was skipped" for stage, record in last.items() if not losses_of(record)
    ]
    return complaints or ([] if found else ["the run has logged no metrics"])
