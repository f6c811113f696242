"""Measures runs of several numbers of ranks: launches each, reads its metrics.jsonl, and compares the figures.

Independent copies of one rank, which run at the same time, show the most that the machine can do.
"""

import contextlib
import dataclasses
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from hvdgan.diagnostics.children import complaint, started
from hvdgan.diagnostics.table import Table
from hvdgan.errors import RunError, UserError
from hvdgan.launching import hosts
from hvdgan.launching.starters import count_gpus
from hvdgan.runs import events, metrics
from hvdgan.runs.folder import Folder

PARTS = {"step_seconds": "step", "compute_seconds": "compute", "reduce_seconds": "reduce", "wait_seconds": "data"}
"""parts of a step, by their names in metrics.jsonl, with the heads of their columns"""
_RECORDS = 3
"""records of a stage that count; the one before them is of tracing and of the first steps"""
Figures = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Variant:
    """Processes of a launch."""

    kind: Literal["ranks", "copies"]  # ranks of one run, or independent copies of a run of one rank
    count: int
    local_batch_size: int  # images per step and process

    def __str__(self) -> str:
        what = "rank" if self.kind == "ranks" else "independent copy"
        plural = what if self.count == 1 else f"{what}s" if self.kind == "ranks" else "independent copies"
        return f"{self.count} {plural} of {self.local_batch_size} images"

    @property
    def global_batch_size(self) -> int:
        """Images per step, of all ranks together or of each copy."""
        return self.local_batch_size * (self.count if self.kind == "ranks" else 1)


@dataclasses.dataclass(frozen=True)
class Bench:
    """Settings that all launches share."""

    words: Sequence[str]  # arguments of hvdgan.train
    how: Sequence[str]  # flags of hvdgan launch, such as --gloo or -H, by which processes run on other hosts
    steps: int  # number of steps to measure
    most: int  # number of ranks of the largest launch
    timeout: float  # seconds that a launch may take

    @property
    def elsewhere(self) -> bool:
        """True if processes may run on another host: salloc leaves its shell on the login node."""
        return "-H" in self.how or "SLURM_JOB_NODELIST" in os.environ

    def launch(self, variant: Variant) -> list[list[Figures]]:
        """Run a variant to its end, and return the records of the run, or of each copy."""
        # Hosts have their own /tmp, but must share the working folder, or no run works.
        parent = Path.cwd() if self.elsewhere else None
        with tempfile.TemporaryDirectory(prefix=".hvdgan-bench-", dir=parent, ignore_cleanup_errors=True) as folder:
            runs = [Path(folder) / str(number) for number in range(variant.count if variant.kind == "copies" else 1)]
            with contextlib.ExitStack() as stack:
                processes = [stack.enter_context(self._process(variant, *each)) for each in enumerate(runs)]
                end = time.monotonic() + self.timeout
                for process, run in zip(processes, runs, strict=True):
                    try:
                        code = process.wait(max(0.0, end - time.monotonic()))
                    except subprocess.TimeoutExpired:
                        raise RunError(f"{variant}: not done after {self.timeout:g} s; --timeout gives more") from None
                    if code:
                        kind = UserError if code == UserError.exit_code else RunError
                        raise kind(f"{variant}: {complaint(run.with_suffix('.txt'), code)}")
            return [_records(run) for run in runs]

    @contextlib.contextmanager
    def _process(self, variant: Variant, number: int, run_dir: Path) -> Iterator[subprocess.Popen[bytes]]:
        """Start a run, or a copy of one, on its share of this machine; it is ended with the block."""
        mine, gpus = hosts.cores(), count_gpus()
        share = max(1, len(mine) // self.most)
        every = math.ceil(self.steps / _RECORDS)
        # The last steps of a copy keep the machine busy while the others are still measured.
        more = every if variant.kind == "copies" else 0
        words = [*self.words, "--global-batch-size", str(variant.global_batch_size), "--run-dir", str(run_dir)]
        words += ["--log-every", str(every), *"--sample-every 0 --checkpoint-every 0 --eval-every 0".split()]
        words += [*"--eval-samples 0 --check-ranks-every 0 --report never".split(), "--pipeline.threads", str(share)]
        if not any(word.startswith("--stages") for word in words):
            words += ["--max-steps", str((_RECORDS + 1) * every + more)]
        variables = {}
        if variant.count < self.most or self.elsewhere:
            variables["TF_NUM_INTRAOP_THREADS"] = os.environ.get("TF_NUM_INTRAOP_THREADS", str(share))
        command = [sys.executable, "-m", "hvdgan.train", *words]
        if self.elsewhere or (variant.count > 1 and variant.kind == "ranks"):
            command[2:3] = ["hvdgan.launch", *self.how, "-np", str(variant.count), "train"]
        elif gpus:
            names = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus)))).split(",")
            variables["CUDA_VISIBLE_DEVICES"] = names[number % len(names)]
        own = mine if command[2] == "hvdgan.launch" else (mine * self.most)[number * share : (number + 1) * share]
        with contextlib.ExitStack() as stack:
            os.sched_setaffinity(0, own)  # the process inherits it
            try:
                process = stack.enter_context(
                    started(command, run_dir.with_suffix(".txt"), {**os.environ, **variables})
                )
            finally:
                os.sched_setaffinity(0, mine)
            yield process


def _records(run_dir: Path) -> list[Figures]:
    """The records of each stage that count, with the bytes that a step of the stage reduces."""
    folder = Folder(run_dir)
    if (start := events.read(folder).start) is None:
        raise RunError(f"no result in {run_dir}; do all hosts see that folder?")
    reduced = {stage.name: sum(update.bytes / update.every for update in stage.updates) for stage in start.stages}
    found: dict[str, list[Figures]] = {}
    for record in folder.records(metrics.FILE):
        if "images_per_sec" in record:
            found.setdefault(record["stage"], []).append(record)
    kept = [record for records in found.values() for record in records[1 : 1 + _RECORDS] or records]
    for record in kept:
        rest = record["step_seconds"] - record["wait_seconds"] - record.get("reduce_seconds", 0.0)
        record |= {"compute_seconds": rest, "bytes_reduced": reduced[record["stage"]], "hosts": start.hosts}
    return kept


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median, the smallest and the largest value."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def rate(copies: Sequence[Sequence[Figures]], stage: str) -> float:
    """Images per second of a launch in a stage; of copies, the sum of their rates."""
    return sum(statistics.median(each["images_per_sec"] for each in one if each["stage"] == stage) for one in copies)


def summary(variant: Variant, launches: Sequence[Sequence[Sequence[Figures]]]) -> Figures:
    """Medians of all launches of a variant for each stage, with the smallest and the largest value."""
    stages = {}
    for stage in dict.fromkeys(record["stage"] for record in launches[0][0]):
        records = [each for launch in launches for one in launch for each in one if each["stage"] == stage]
        parts = {part: spread([each[part] for each in records]) for part in PARTS if part in records[0]}
        rates = spread([rate(launch, stage) for launch in launches])
        stages[stage] = {"images_per_sec": rates, **parts, "bytes_reduced": records[0]["bytes_reduced"]}
    facts = {"kind": variant.kind, "ranks": variant.count, "local_batch_size": variant.local_batch_size}
    return {**facts, "hosts": launches[0][0][0]["hosts"], "launches": len(launches), "stages": stages}


def efficiencies(
    results: Mapping[Variant, Sequence[Sequence[Sequence[Figures]]]], variants: Sequence[Variant], scaling: str
) -> list[Figures]:
    """Compute the efficiencies of each repeat, then their medians, so that a machine's slow spells cancel out.

    For each number n of ranks and each stage these are images_per_sec; of_one_rank, its ratio to n times the rate of
    one rank; of_copies, its ratio to the rate of n independent copies at the same time, None if not measured.
    """
    one = next(results[variant] for variant in variants if variant.count == 1)
    table = []
    for variant in variants:
        copies = one if variant.count == 1 else results.get(Variant("copies", variant.count, variant.local_batch_size))
        for stage in dict.fromkeys(record["stage"] for record in results[variant][0][0]):
            rates, alone, most = (
                [rate(each, stage) for each in launches or ()] for launches in (results[variant], one, copies)
            )
            facts = {"scaling": scaling, "ranks": variant.count, "local_batch_size": variant.local_batch_size}
            ratios = {
                "of_one_rank": spread([mine / (variant.count * each) for mine, each in zip(rates, alone, strict=True)]),
                "of_copies": spread([mine / each for mine, each in zip(rates, most, strict=True)]) if most else None,
            }
            table.append({**facts, "stage": stage, "images_per_sec": spread(rates), **ratios})
    return table


def tables(facts: Mapping[str, Any]) -> list[Table]:
    """What the contents of --json show in a terminal."""
    heads = ["scaling", "ranks", "images each", "stage", "images/s", "of independent copies", "of ranks x one rank"]
    lines = [
        [
            *(row["scaling"], str(row["ranks"]), str(row["local_batch_size"]), row["stage"]),
            *(_cell(row["images_per_sec"], 1), _cell(row["of_copies"], 3), _cell(row["of_one_rank"], 3)),
        ]
        for row in facts["efficiency"]
    ]
    note = "Images/s of all ranks; weak: the same batch on each rank, strong: the same global batch"
    efficiency = Table("Efficiency", note, heads, lines, range(4, len(heads)))
    heads = ["launch", "images each", "stage", *(f"{name} ms" for name in PARTS.values()), "MB reduced"]
    lines = [
        [
            *(f"{run['ranks']} {run['kind'] if run['ranks'] > 1 else 'rank'}", str(run["local_batch_size"]), name),
            *(_cell(stage.get(part), 2, 1e3) for part in PARTS),
            f"{stage['bytes_reduced'] / 1e6:,.3f}",
        ]
        for run in facts["runs"]
        for name, stage in run["stages"].items()
    ]
    note = "Of rank 0, or of the copies; compute is what neither waits for other ranks nor for data"
    return [efficiency, Table("Steps", note, heads, lines, range(3, len(heads)))]


def _cell(figure: Mapping[str, float] | None, digits: int, factor: float = 1.0) -> str:
    """A median, with the smallest and the largest value unless they are equal."""
    if figure is None:
        return ""
    middle, low, high = (f"{figure[name] * factor:,.{digits}f}" for name in ("median", "low", "high"))
    return middle if low == high else f"{middle} ({low} to {high})"
