"""Checks that N ranks compute what one rank computes: the same global batch, losses and weights within rounding.

The promise is that of the tests on the CPU: after 20 steps the weights of each network and of its average differ from
those of one rank by at most 1e-4 of their norm, and the mean loss by as much. NVIDIA_TF32_OVERRIDE=0 makes convolutions
compute in float32, which TF32 would round to 10 bits of mantissa.
"""

import json
import math
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
_TESTS = ("reduction", "sync_batch_norm", "recipes")
_TINIEST = 1e-30


def checks(setting: Setting) -> Iterator[Check]:
    """Train with each number of ranks, and compare with one; then run the tests that two ranks run together."""
    if setting.most == 1:
        yield Check(name="ranks", verdict="not run", found=f"there is one {setting.device}")
        return
    single = _train(setting, 1)
    for ranks in setting.ranks[1:]:
        together = _train(setting, ranks)
        yield _compared(setting, ranks, single, together)
    yield _tests_of_ranks(setting)


def _train(setting: Setting, ranks: int) -> Done:
    batch = setting.batch_of_all(16)
    words = ["--recipe", "dcgan", "--nf", "4", "--norm", "none", "--global-batch-size", str(batch)]
    words += ["--max-steps", str(STEPS), "--log-every", str(STEPS), "--report", "never"]
    run_dir = _run_dir(setting, ranks)
    return setting.launch(
        f"equality/{run_dir.name}", "hvdgan.train", [*words, "--run-dir", str(run_dir)], ranks, **FLOAT32
    )


def _run_dir(setting: Setting, ranks: int) -> Path:
    return setting.out / "runs" / f"equal-{ranks}"


def _compared(setting: Setting, ranks: int, single: Done, together: Done) -> Check:
    name = f"{ranks} ranks compute what one computes"
    failed = next((done for done in (single, together) if done.code != 0), None)
    if failed:
        return Check(name=name, verdict="failed", errors=failed.errors, command=failed.words, seconds=failed.seconds)
    figures = distances(_run_dir(setting, 1), _run_dir(setting, ranks))
    is_equal = all(value <= BOUND for value in figures.values())
    words = f"weights differ by {figures['weights']:.2g} of their norm, losses by {figures['losses']:.2g}"
    return Check(
        name=name,
        verdict="passed" if is_equal else "failed",
        found=words,
        figures={name: value if math.isfinite(value) else None for name, value in figures.items()},
        errors=() if is_equal else (f"{words}; allowed are {BOUND:.0e}",),
        command=together.words,
        seconds=together.seconds,
    )


def distances(one: Path, other: Path) -> dict[str, float]:
    """Compare the results of two runs.

    Args:
        one: run folder.
        other: run folder of a run that should have computed the same.

    Returns:
        "weights", the largest distance of a tensor of networks and averages, relative to its norm in the first run;
        and "losses", the largest relative difference of a mean loss.
    """
    wanted = ("networks/", "ema/")
    theirs = dict(read_tensors(find(other), wanted))
    mine = dict(read_tensors(find(one), wanted))
    if mine.keys() != theirs.keys():
        return {"weights": math.inf, "losses": math.inf}
    apart = [
        float(np.linalg.norm(theirs[name] - value) / max(np.linalg.norm(value), _TINIEST))
        for name, value in mine.items()
    ]
    first, second = _losses(one), _losses(other)
    losses = [abs(second.get(name, math.inf) - value) / max(abs(value), _TINIEST) for name, value in first.items()]
    return {"weights": max(apart), "losses": max(losses, default=math.inf)}


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
