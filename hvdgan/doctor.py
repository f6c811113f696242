"""The command hvdgan doctor: checks that a run would work here; alone, or under a launcher."""

from hvdgan.cli import start

start.begin(__name__)

import dataclasses
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from hvdgan import __version__
from hvdgan.cli.app import command
from hvdgan.diagnostics import folders, installation, placement
from hvdgan.diagnostics.probe import Findings, run_probe
from hvdgan.diagnostics.table import Row, table_of, worst
from hvdgan.files import outputs
from hvdgan.launching import starters
from hvdgan.launching.launched import launched
from hvdgan.settings.types import Positive, Words

_HELP = """Check that a run would work here: versions, MPI, GPUs, launcher, hosts, run folder.

Under a launcher (hvdgan launch -np 4 doctor) it also measures the all-reduce. The exit code is 1 if a run
would fail."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """Checks to run; the fields are the flags."""

    run_dir: Path = Path("runs")
    """run folder, which rank 0 must be able to write and all ranks should see"""
    hosts: Words = ()
    """hosts that horovodrun should reach by ssh, as HOST,HOST or HOST:SLOTS,...; default: those of the allocation"""
    timeout: Positive = 120.0
    """time after which a check without an answer has failed (seconds)"""
    json: Path | None = None
    """file for the results as JSON, also an existing one"""


@command(name="doctor", help_text=_HELP, one_process=False)
def main(*, request: Annotated[Request, Parameter(name="*")] = Request()) -> int:
    hosts = [name for name, _ in starters.read_hosts(",".join(request.hosts), "--hosts")] if request.hosts else []
    _, _, rank = launched()
    if request.json and not rank:
        outputs.check_new(request.json, overwrite=True, flag="--json")
    findings = run_probe(request.run_dir, request.timeout)
    if rank:
        _report_why_not_joined(findings, rank)
        return 0
    rows = [*_own_checks(request, hosts), *findings.rows]
    rows.insert(1 + _index_of(rows, "Horovod"), installation.mpi(findings.build))
    verdict = worst(rows)
    print(table_of(rows), flush=True)
    if request.json:
        outputs.write_json(request.json, _facts(rows, findings, verdict))
    return int(verdict == "fail")


def _report_why_not_joined(findings: Findings, rank: int) -> None:
    """Report a failure to join: rank 0 prints the table for all ranks, but cannot know why another did not join."""
    if not findings.ranks:
        for row in findings.rows:
            if row.verdict == "fail":
                print(f"hvdgan: rank {rank}: {row.check}: {row.found}; {row.hint}", file=sys.stderr, flush=True)


def _own_checks(request: Request, hosts: Sequence[str]) -> Iterator[Row]:
    """Run the checks that need no other process."""
    yield installation.python()
    yield placement.launcher()
    yield placement.host_name()
    if row := placement.slurm():
        yield row
    if hosts:
        yield placement.ssh(hosts, needed=True)
    elif len(allocated := starters.allocated_names()) > 1:
        yield placement.ssh(allocated, needed=False)
    yield folders.check_run_folder(request.run_dir)


def _index_of(rows: Sequence[Row], check: str) -> int:
    return next((index for index, row in enumerate(rows) if row.check == check), len(rows) - 1)


def _facts(rows: Sequence[Row], findings: Findings, verdict: str) -> dict[str, Any]:
    return {
        "verdict": verdict,
        "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": platform.node(),
        "hvdgan": __version__,
        "horovod": findings.build,
        "size": findings.ranks.get("size"),
        "controller": findings.ranks.get("controller") or None,
        "ranks": findings.ranks.get("facts", []),
        "rows": [dataclasses.asdict(row) for row in rows],
        "allreduce": findings.allreduce,
    }


if __name__ == "__main__":
    sys.exit(main())
