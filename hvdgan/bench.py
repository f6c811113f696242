"""The command hvdgan bench: measures a run with several numbers of ranks.

It launches, in turn and `--repeats` times over: one rank; for each N of --ranks, N ranks, for strong scaling also with
the same global batch; and N independent copies of one rank at the same time, which is the most that the machine can do.
Each process has its own cores or GPU. docs/performance.md says how to read the tables.
"""

from hvdgan.cli import start

start.begin(__name__)

import dataclasses
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter, Token

from hvdgan.cli.app import command
from hvdgan.diagnostics.installation import cpu_name
from hvdgan.diagnostics.speed import Bench, Variant, efficiencies, summary, tables
from hvdgan.errors import UserError
from hvdgan.files import outputs
from hvdgan.launching.programs import by_nvidia_smi
from hvdgan.launching.starters import read_hosts
from hvdgan.settings.types import Count, Positive, Words
from hvdgan.training.command import parse

_HELP = """Measure a run: images/s, the parts of a step's time, and how it scales over ranks.

All other flags are those of hvdgan train, such as --recipe dcgan --image-size 64 --data synthetic. If a recipe has
several stages, the first is measured, or those of --stages A=40,B=40. Their first steps do not count."""
# The benchmark sets these itself, or they would write files.
_NOT_HERE = {"--global-batch-size", "--run-dir", "--resume", "--init-from", "--max-steps", "--dry-run", "--expect-size"}
_NOT_HERE |= {"--time-budget", "--best-metric", "--log-every", "--sample-every", "--checkpoint-every", "--eval-every"}
_NOT_HERE |= {"--check-ranks-every", "--report", "--pipeline.threads"}


def _counts(_: type, tokens: Sequence[Token]) -> tuple[int, ...]:
    text = ",".join(token.value for token in tokens)
    words = text.split(",")
    if not all(word.strip().isdecimal() and int(word) > 0 for word in words):
        raise ValueError(f'"{text}" is not a list of numbers of ranks, such as 1,2,4.')
    return tuple(sorted({int(word) for word in words}))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """Launches to measure; the fields are the flags."""

    ranks: Annotated[tuple[int, ...], Parameter(converter=_counts, n_tokens=1)] = (1, 2)
    """numbers of ranks to measure, comma-separated; one rank is always measured too"""
    local_batch_size: Count = 16
    """images per step and rank; for --scaling strong, those of the largest number of ranks"""
    steps: Count = 30
    """steps to measure in each launch; a third as many run before them and do not count"""
    repeats: Count = 3
    """number of times that all launches are repeated, in turn"""
    scaling: Literal["weak", "strong", "both"] = "both"
    """weak: constant batch per rank; strong: constant global batch"""
    controller: Literal["gloo", "mpi"] | None = None
    """how the ranks meet: gloo by horovodrun, mpi by mpirun; default: mpi, if it is there"""
    hosts: Words = ()
    """HOST:SLOTS,... as in hvdgan launch -H; all must see the working folder; no independent copies are measured"""
    timeout: Positive = 1800.0
    """time limit of one launch (seconds)"""
    json: Path | None = None
    """file for all figures, as JSON"""
    overwrite: bool = False
    """let --json write over an existing file"""


@command(name="bench", help_text=_HELP)
def main(
    *training: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    request: Annotated[Request, Parameter(name="*")] = Request(),
) -> None:
    weak, strong = _variants(request)
    most = weak[-1].count
    _check(request, training, weak[-1].global_batch_size)
    how = [f"--{request.controller}"] * (request.controller is not None)
    how += ["-H", ",".join(request.hosts)] if request.hosts else []
    bench = Bench(training, how, request.steps, most, request.timeout)
    # One rank first, which shows mistakes soonest.
    ranks = sorted(dict.fromkeys([*weak, *strong]), key=lambda variant: variant.count)
    copies = [Variant("copies", each.count, each.local_batch_size) for each in ranks if each.count > 1]
    copies = [] if bench.elsewhere else copies
    variants = [*ranks, *copies]
    results: dict[Variant, list[Any]] = {variant: [] for variant in variants}
    for repeat in range(request.repeats):
        for variant in variants:
            print(f"{repeat + 1} of {request.repeats}: {variant}", file=sys.stderr, flush=True)
            results[variant].append(bench.launch(variant))
    facts = _facts(request, training, results, weak, strong)
    print("\n\n".join(map(str, tables(facts))), flush=True)
    if request.json:
        outputs.write_json(request.json, facts)


def _variants(request: Request) -> tuple[list[Variant], list[Variant]]:
    """Choose the launches of ranks for weak scaling, and those for strong scaling."""
    counts = sorted({1, *request.ranks})
    together = request.local_batch_size * counts[-1]
    weak = [Variant("ranks", count, request.local_batch_size) for count in counts]
    if request.scaling == "weak":
        return weak, []
    if uneven := [count for count in counts if together % count]:
        raise UserError(
            f"--ranks: a global batch of {together} cannot be split over {uneven[0]} ranks for strong scaling; "
            "choose other numbers, or --scaling weak"
        )
    strong = [Variant("ranks", count, together // count) for count in counts]
    return (weak[-1:] if request.scaling == "strong" else weak), strong


def _check(request: Request, training: Sequence[str], global_batch_size: int) -> None:
    for word in training:
        if word.partition("=")[0] in _NOT_HERE:
            raise UserError(
                f"{word.partition('=')[0]}: hvdgan.bench sets it itself; leave it out (--local-batch-size and --steps "
                "choose batch and steps)"
            )
    if request.json:
        outputs.check_new(request.json, overwrite=request.overwrite, flag="--json")
    if request.hosts and sum(slots for _, slots in read_hosts(",".join(request.hosts), "--hosts")) < max(request.ranks):
        raise UserError(f"--hosts: too few slots for {max(request.ranks)} ranks; give more, or fewer --ranks")
    parse([*training, "--global-batch-size", str(global_batch_size)])


def _facts(
    request: Request,
    training: Sequence[str],
    results: dict[Variant, list[Any]],
    weak: Sequence[Variant],
    strong: Sequence[Variant],
) -> dict[str, Any]:
    """Collect the contents of --json."""
    from hvdgan.distributed.backend import versions  # imports TensorFlow, which help does not need

    runs = [summary(variant, launches) for variant, launches in results.items()]
    rows = efficiencies(results, weak, "weak") if request.scaling != "strong" else []
    rows += efficiencies(results, strong, "strong") if strong else []
    return {
        "title": f"{' '.join(training) or 'dcgan'}; {request.local_batch_size} images a rank, {request.steps} steps",
        "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": {"host": platform.node(), "cpu": cpu_name(), "cores": os.cpu_count(), "gpus": by_nvidia_smi("name")},
        "versions": versions(),
        "settings": {**dataclasses.asdict(request), "json": None, "training": list(training)},
        "runs": runs,
        "efficiency": rows,
    }


if __name__ == "__main__":
    sys.exit(main())
