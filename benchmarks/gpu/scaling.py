"""Measures DCGAN-64 by hvdgan.bench: 1, 2, 4 and more ranks against as many independent copies.

On several hosts the ranks of one host are measured first, because hvdgan.bench spreads its ranks over all hosts: two of
them would meet over the network, and never over the links between the GPUs of a host.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from gpu.check import Check, Goal
from gpu.setting import Setting, in_slurm

LOCAL_BATCH_SIZE = 128
GOAL = 0.95
"""part of the rate of independent copies that the ranks of one host should reach"""


class Bench(NamedTuple):
    """A call of hvdgan.bench.

    Args:
        ranks: numbers of ranks.
        nodes: number of hosts over which they are spread.
    """

    ranks: tuple[int, ...]
    nodes: int


def benches(setting: Setting) -> list[Bench]:
    """List the calls: the ranks of one host, and then those of all hosts."""
    of_one = Bench(tuple(count for count in setting.ranks if count <= setting.here), 1)
    if setting.nodes == 1:
        return [of_one]
    return [*([of_one] if setting.here > 1 else []), Bench(setting.ranks, setting.nodes)]


def checks(setting: Setting) -> Iterator[Check]:
    """Measure in each precision; the figures hold the contents of the bench's --json."""
    for precision in setting.precisions:
        for bench in benches(setting):
            yield from _measured(setting, precision, bench)


def _measured(setting: Setting, precision: str, bench: Bench) -> Iterator[Check]:
    hosts = f"{bench.nodes} host{'s' * (bench.nodes > 1)}"
    name = precision if setting.nodes == 1 else f"{precision}, {hosts}"
    file = name.replace(", ", "-").replace(" ", "-")
    out = setting.out / f"bench-{file}.json"
    words = [*_words(setting, bench), "--precision", precision, "--json", str(out)]
    # The bench, and the srun that it calls, spread the ranks over as many hosts as this variable says.
    given = {"SLURM_JOB_NUM_NODES": str(bench.nodes)} if in_slurm() else {}
    done = setting.run(f"scaling/{file}", [sys.executable, "-m", "hvdgan.bench", *words], **given)
    if done.code != 0 or not out.exists():
        yield Check(name=name, verdict="failed", errors=done.errors, command=done.words, seconds=done.seconds)
        return
    facts: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    yield Check(
        name=name,
        verdict="passed",
        found="; ".join(_in_words(row) for row in facts["efficiency"]),
        figures={"bench": facts},
        command=done.words,
        seconds=done.seconds,
    )
    yield from _against_copies(setting, name, bench, facts)


def _words(setting: Setting, bench: Bench) -> list[str]:
    words = ["--recipe", "dcgan", "--data", "synthetic", "--scaling", "weak"]
    words += ["--ranks", ",".join(map(str, bench.ranks))]
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


def _against_copies(setting: Setting, name: str, bench: Bench, facts: dict[str, Any]) -> Iterator[Check]:
    for row in facts["efficiency"]:
        if row["ranks"] == 1 or not row["of_copies"]:
            continue
        ratio, low, high = (row["of_copies"][figure] for figure in ("median", "low", "high"))
        # The goal holds for the ranks of one host, and for networks that compute for a while.
        is_meant = not setting.small and bench.nodes == 1
        yield Check(
            name=f"{row['ranks']} ranks of {row['ranks']} copies, {name}",
            verdict="passed",
            found=f"{ratio:.3f} ({low:.3f} to {high:.3f}) of the images/s of independent copies",
            figures={"ratio": ratio, "low": low, "high": high},
            goal=Goal(ratio, GOAL) if is_meant else None,
        )
