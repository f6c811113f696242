"""Checks that a GPU computes what the CPU computes, and N ranks what one computes: losses and weights within rounding.

After 20 steps of the same global batches the weights of each network and of its average differ by at most 1e-4 of their
norm, and the mean losses by as much. NVIDIA_TF32_OVERRIDE=0 makes convolutions compute in float32, which TF32 would
round to 10 bits of mantissa.

Adam's first step has the sign of the gradient, so a weight whose gradient is nearly zero may go the other way after
another rounding. In the networks below this is rare, and costs 5e-5 at a learning rate of 1e-4. Two runs on the CPU
whose initial weights differed by 1e-6 of themselves differed by at most 1.1e-5 at the end (six pairs of each recipe),
and by 6e-4 and more if one was in bfloat16. DCGAN with BatchNorm, sngan, stylegan2, vae_gan and pix2pix differ by 1e-4
to 2e-2 if only the order of summation changes.
"""

import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gpu.check import Check
from gpu.processes import Done
from gpu.setting import GROWING, ROOT, Setting
from hvdgan.checkpoints.files import find, read_tensors

BOUND = 1e-4
STEPS = 20
FLOAT32 = {"NVIDIA_TF32_OVERRIDE": "0"}
RECIPES = {
    "dcgan": ["--norm", "none", "--learning-rate", "1e-4"],
    "wgan_gp": ["--sync-batch-norm"],
}
"""flags by recipe: convolutions and sigmoids alone; a gradient of a gradient, and BatchNorm over all ranks"""
_TESTS = ("reduction", "sync_batch_norm", "recipes")
_TINIEST = 1e-30


def checks(setting: Setting) -> Iterator[Check]:
    """Train on the CPU and on each number of ranks, and compare with one rank; then run the tests of two ranks.

    Where there is one GPU, two ranks share it.
    """
    for recipe in RECIPES:
        on_cpu, single = (_train(setting, recipe, ranks) for ranks in (0, 1))
        yield _compared(f"{recipe}: {setting.device} and CPU compute the same", on_cpu, single)
        for ranks in setting.ranks[1:] or (2,):
            shared = " on one GPU" if ranks > setting.most else ""
            together = _train(setting, recipe, ranks)
            yield _compared(f"{recipe}: {ranks} ranks{shared} compute what one computes", single, together)
    if setting.most > 1:
        yield _tests_of_ranks(setting)


def _train(setting: Setting, recipe: str, ranks: int) -> tuple[Done, Path]:
    """Train on a number of ranks, or with 0 on the CPU; return the command that has ended and its run folder."""
    name = f"{recipe}-{ranks or 'cpu'}"
    run_dir = setting.out / "runs" / f"equal-{name}"
    words = ["--recipe", recipe, *RECIPES[recipe], "--nf", "4", "--global-batch-size", str(setting.batch_of_all(16))]
    words += ["--max-steps", str(STEPS), "--log-every", str(STEPS), "--report", "never", "--run-dir", str(run_dir)]
    words += ["--share-gpu"] if ranks > setting.most else []
    if ranks:
        return setting.launch(f"equality/{name}", "hvdgan.train", words, ranks, **FLOAT32), run_dir
    # Without srun, which would set the variable for its tasks again.
    command = [sys.executable, "-m", "hvdgan.train", *words]
    return setting.run(f"equality/{name}", command, CUDA_VISIBLE_DEVICES=""), run_dir


def _compared(name: str, one: tuple[Done, Path], other: tuple[Done, Path]) -> Check:
    (first, mine), (second, theirs) = one, other
    failed = next((done for done in (first, second) if done.code != 0), None)
    if failed:
        return Check(name=name, verdict="failed", errors=failed.errors, command=failed.words, seconds=failed.seconds)
    figures = distances(mine, theirs)
    is_equal = all(value <= BOUND for value in figures.values())
    words = f"weights differ by {figures['weights']:.2g} of their norm, losses by {figures['losses']:.2g}"
    return Check(
        name=name,
        verdict="passed" if is_equal else "failed",
        found=words,
        figures={name: value if math.isfinite(value) else None for name, value in figures.items()},
        errors=() if is_equal else (f"{words}; allowed are {BOUND:.0e}",),
        command=second.words,
        seconds=second.seconds,
    )


def distances(one: Path, other: Path) -> dict[str, float]:
    """Compare the results of two runs.

    Args:
        one: run folder.
        other: run folder of a run that should have computed the same.

    Returns:
        "weights", the largest distance of a network's or an average's weights, relative to their norm in the first run;
        and "losses", the largest relative difference of a mean loss.
    """
    mine, theirs = _weights(one), _weights(other)
    if {name: value.shape for name, value in mine.items()} != {name: value.shape for name, value in theirs.items()}:
        return {"weights": math.inf, "losses": math.inf}
    apart = [
        float(np.linalg.norm(theirs[name] - value) / max(np.linalg.norm(value), _TINIEST))
        for name, value in mine.items()
    ]
    first, second = _losses(one), _losses(other)
    losses = [abs(second.get(name, math.inf) - value) / max(abs(value), _TINIEST) for name, value in first.items()]
    # NumPy's maximum is NaN if one of them is.
    return {"weights": float(np.max(apart)), "losses": float(np.max(losses or math.inf))}


def _weights(run_dir: Path) -> dict[str, np.ndarray]:
    """Return all weights of each network and of each average as one vector."""
    found = defaultdict(list)
    for name, value in sorted(read_tensors(find(run_dir), ("networks/", "ema/"))):
        found["/".join(name.split("/")[:2])].append(np.ravel(value))
    return {name: np.concatenate(values) for name, values in found.items()}


def _losses(run_dir: Path) -> dict[str, float]:
    last: dict[str, Any] = json.loads((run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    return {name: math.nan if value is None else value for name, value in last.items() if name.endswith("/loss")}


def _tests_of_ranks(setting: Setting) -> Check:
    """Run tests/parallel on two ranks: gradients, BatchNorm over the ranks, and each stage of each recipe."""
    names = _TESTS[:1] if setting.quick else _TESTS
    files = [str(ROOT / "tests" / "parallel" / f"test_{name}.py") for name in names]
    words = ["-q", "-x", "--color=no", "-p", "no:cacheprovider", "--timeout", "900", *files]
    done = setting.launch("equality/tests", "pytest", words, 2, **FLOAT32, **GROWING)
    passed = done.code == 0 and done.text.count(" passed") == 2
    return Check(
        name=f"tests/parallel on two ranks: {', '.join(names)}",
        verdict="passed" if passed else "failed",
        errors=done.errors or (() if passed else ("not both ranks ran the tests",)),
        command=done.words,
        seconds=done.seconds,
    )
