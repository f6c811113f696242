"""The command: python -m hvdgan.doctor, alone or under a launcher, which tells whether a training would work here."""

import dataclasses
import json
import os
import platform
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Annotated, Any

from cyclopts import Parameter, Token

from hvdgan import __version__
from hvdgan.cli import outputs
from hvdgan.cli.app import run_app
from hvdgan.cli.errors import UserError
from hvdgan.cli.exits import exit_code
from hvdgan.cli.launcher import launched
from hvdgan.cli.types import Positive, Words
from hvdgan.diagnostics import checks, probe
from hvdgan.diagnostics.table import Row, table_of, worst

_HELP = """Check this installation and this place: versions, MPI, GPUs, launcher, hosts, run folder.

Started as a training is (horovodrun -np 4 python -m hvdgan.doctor) it also measures the all-reduce. Exit code 1 if a
training would fail."""
_UNITS = {"": 1, "B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30}


def _bytes(_: type, tokens: Sequence[Token]) -> int:
    text = tokens[0].value.upper().replace("IB", "B")
    number = text.rstrip("BKMG")
    if (
        not number.isdecimal()
        or text[len(number) :] not in _UNITS
        or not int(number) * _UNITS[text[len(number) :]] >= 4
    ):
        raise ValueError(f'"{tokens[0].value}" is not a size of at least 4 B, such as 4KB or 256MB.')
    return int(number) * _UNITS[text[len(number) :]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What to check; the fields are the flags."""

    run_dir: Path = Path("runs")
    """the run folder, which rank 0 must be able to write and all ranks should see"""
    hosts: Words = ()
    """hosts that horovodrun should reach by ssh, as HOST,HOST or HOST:SLOTS,...; default: those of the allocation"""
    max_bytes: Annotated[int, Parameter(converter=_bytes)] = 256 * 2**20
    """the largest all-reduce that is measured, such as 4MB"""
    seconds: Positive = 0.5
    """how long to measure each size"""
    timeout: Positive = 120.0
    """seconds after which a part that gives no answer has failed"""
    json: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None
    """file for the same as JSON; - prints it instead of the table"""
    overwrite: bool = False
    """let --json write over a file"""


@dataclasses.dataclass
class Findings:
    """What the parts have told so far."""

    rows: list[Row] = dataclasses.field(default_factory=list)
    build: dict[str, Any] | None = None
    ranks: dict[str, Any] = dataclasses.field(default_factory=dict)
    allreduce: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    part: str = ""
    complete: bool = False

    def take(self, message: dict[str, Any]) -> None:
        """One line of the probe's."""
        if "row" in message:
            self.rows.append(Row(**message["row"]))
        elif "allreduce" in message:
            self.allreduce.append(message["allreduce"])
        elif "error" in message:
            self.rows.append(_failed(self.part, message["error"]))
            self.complete = True
        else:
            self.part = message.get("begin", self.part)
            self.build = message.get("build", self.build)
            self.ranks = message.get("ranks", self.ranks)
            self.complete = message.get("end", False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check and tell.

    Args:
        arguments: of the command line; None: the process's own.

    Returns:
        The exit code: 0 a training would work, 1 it would fail, 2 a mistake of the user's, 130 interrupted.
    """
    return exit_code(lambda: _main(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: Sequence[str]) -> int | None:
    return run_app(_command, arguments, name="doctor", help_text=_HELP)


def _command(*, request: Annotated[Request, Parameter(name="*")] = Request()) -> int:
    hosts = _hosts(request)
    _, _, rank = launched()
    file = None if request.json in (None, "-") else Path(str(request.json))
    if file and not rank:
        outputs.check_new(file, overwrite=request.overwrite, flag="--json")
    findings = _ask_probe(request)
    if rank:
        _say_why_not_joined(findings, rank)
        return 0
    rows = [*_before(request, hosts), *findings.rows]
    rows.insert(1 + _place_of(rows, "Horovod"), checks.mpi(findings.build))
    verdict = worst(rows)
    facts = _facts(rows, findings, verdict)
    if request.json == "-":
        print(json.dumps(facts, indent=1))
    else:
        print(table_of(rows), flush=True)
    if file:
        outputs.write_json(file, facts)
    return int(verdict == "fail")


def _say_why_not_joined(findings: Findings, rank: int) -> None:
    """Rank 0 speaks for all, but cannot know what kept another from joining."""
    if not findings.ranks:
        for row in findings.rows:
            if row.verdict == "fail":
                print(f"hvdgan: rank {rank}: {row.check}: {row.found}; {row.hint}", file=sys.stderr, flush=True)


def _hosts(request: Request) -> list[str]:
    names = [host.partition(":")[0] for host in request.hosts]
    for name in names:
        if not name or name.startswith("-") or any(letter.isspace() for letter in name):
            raise UserError(f"--hosts {','.join(request.hosts)}: expected names of hosts with commas between")
    return names


def _before(request: Request, hosts: Sequence[str]) -> Iterator[Row]:
    """What needs no other process."""
    yield checks.python()
    yield checks.launcher()
    if row := checks.slurm():
        yield row
    if hosts:
        yield checks.ssh(hosts, needed=True)
    elif len(allocated := checks.allocated_hosts()) > 1:
        yield checks.ssh(allocated, needed=False)
    yield checks.run_folder(request.run_dir)


def _ask_probe(request: Request) -> Findings:
    """Start the probe and read what it says, until it has ended or says nothing for too long."""
    findings = Findings()
    reader, writer = os.pipe()
    arguments = [str(writer), str(request.run_dir), str(request.max_bytes), str(request.seconds)]
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ}
    with os.fdopen(reader, "rb") as lines, tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "hvdgan.diagnostics.probe", *arguments],
            pass_fds=[writer],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env=environment,
        )
        os.close(writer)
        try:
            ended = _read(lines, findings, request.timeout)
            process.wait(timeout=10 if ended else 0)
        except subprocess.TimeoutExpired:
            pass
        finally:
            process.kill()
            code = process.wait()
        if not findings.complete:
            reason = f"no answer in {request.timeout:g} s" if not ended else f"it ended with {_how(code)}{_last(said)}"
            findings.rows.append(_failed(findings.part, reason))
    return findings


def _read(lines: IO[bytes], findings: Findings, timeout: float) -> bool:
    """Take lines until they end; False if none came for so long."""
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(lines, selectors.EVENT_READ)
        while not findings.complete:
            if not selector.select(timeout):
                return False
            some = os.read(lines.fileno(), 65536)
            if not some:
                return True
            *whole, rest = (rest + some).split(b"\n")
            for line in whole:
                findings.take(json.loads(line))
    return True


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _last(said: IO[bytes]) -> str:
    said.seek(0)
    lines = [line.strip() for line in said.read().decode(errors="replace").splitlines() if line.strip()]
    return f": {lines[-1][:160]}" if lines else ""


def _failed(part: str, reason: str) -> Row:
    """The row of a part that has not worked, with what usually helps."""
    names = {probe.IMPORT_TENSORFLOW: "TensorFlow", probe.IMPORT_HOROVOD: "Horovod", probe.JOIN: "ranks"}
    hints = {
        probe.IMPORT_TENSORFLOW: "launch/setup.sh installs it",
        probe.IMPORT_HOROVOD: checks.SETUP,
        probe.SHARED_FOLDER: "--run-dir names a folder that rank 0 can write",
        probe.JOIN: "are all ranks up, with the same Horovod, and does the launcher use the MPI it was built with?",
    }
    hint = "" if "launch/setup.sh" in reason else hints.get(part, "see what the other ranks say")
    return Row(names.get(part, part or "probe"), reason[:240], "fail", hint)


def _place_of(rows: Sequence[Row], check: str) -> int:
    return next((place for place, row in enumerate(rows) if row.check == check), len(rows) - 1)


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
        "rows": [row.as_json() for row in rows],
        "allreduce": findings.allreduce,
    }


if __name__ == "__main__":
    sys.exit(main())
