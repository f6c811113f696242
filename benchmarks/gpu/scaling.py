"""Measures DCGAN-64 by hvdgan.bench: 1, 2, 4 and more ranks against as many independent copies."""

import json
import sys
from collections.abc import Iterator
from typing import Any

from gpu.check import Check, Goal
from gpu.setting import Setting, in_slurm

LOCAL_BATCH_SIZE = 128
GOAL = 0.95
"""part of the rate of independent copies that the ranks of one host should reach"""


def checks(setting: Setting) -> Iterator[Check]:
    """Measure in each precision; the figures hold the contents of the bench's --json."""
    for precision in setting.precisions:
        out = setting.out / f"bench-{precision}.json"
        words = [*_words(setting), "--precision", precision, "--json", str(out)]
        done = setting.run(f"scaling/{precision}", [sys.executable, "-m", "hvdgan.bench", *words])
        if done.code != 0 or not out.exists():
            yield Check(name=precision, verdict="failed", errors=done.errors, command=done.words, seconds=done.seconds)
            continue
        facts: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        yield Check(
            name=precision,
            verdict="passed",
            found="; ".join(_in_words(row) for row in facts["efficiency"]),
            figures={"bench": facts},
            command=done.words,
            seconds=done.seconds,
        )
        yield from _against_copies(setting, precision, facts)


def _words(setting: Setting) -> list[str]:
    words = ["--recipe", "dcgan", "--data", "synthetic", "--scaling", "weak"]
    words += ["--ranks", ",".join(map(str, setting.ranks))]
    if setting.gloo and not in_slurm():
        words += ["--controller", "gloo"]
    words += ["--steps", "2", "--repeats", "1"] if setting.quick else ["--steps", "100", "--repeats", "3"]
    small, whole = ["--image-size", "32", "--nf", "2"], ["--image-size", "64", "--nf", "64"]
    batch = 4 if setting.small else LOCAL_BATCH_SIZE
    words += [*(small if setting.small else whole), "--local-batch-size", str(batch)]
    return [*words, "--timeout", str(setting.timeout)]


def _in_words(row: dict[str, Any]) -> str:
    rate = f"{row['images_per_sec']['median']:,.0f} images/s"
    return f"{row['ranks']} rank{'s' * (row['ranks'] > 1)}: {rate}"


def _against_copies(setting: Setting, precision: str, facts: dict[str, Any]) -> Iterator[Check]:
    for row in facts["efficiency"]:
        if row["ranks"] == 1 or not row["of_copies"]:
            continue
        ratio, low, high = (row["of_copies"][name] for name in ("median", "low", "high"))
        # The goal holds for the ranks of one host, and for networks that compute for a while.
        is_meant = not setting.small and setting.nodes == 1
        yield Check(
            name=f"{row['ranks']} ranks of {row['ranks']} copies, {precision}",
            verdict="passed",
            found=f"{ratio:.3f} ({low:.3f} to {high:.3f}) of the images/s of independent copies",
            figures={"ratio": ratio, "low": low, "high": high},
            goal=Goal(ratio, GOAL) if is_meant else None,
        )
