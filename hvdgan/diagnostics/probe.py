"""The checks that may crash or hang, in a process of their own: TensorFlow, Horovod, and the other ranks.

run_probe() starts this module as a program, which writes lines of JSON to a file descriptor: {"begin": part} before
each part, then rows and facts, and at last {"end": true} or an error. If it dies, the part is known.
"""

from hvdgan.cli import start

start.begin(__name__)

import dataclasses
import json
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO

from hvdgan.cli.app import leave
from hvdgan.diagnostics import folders, installation, placement
from hvdgan.diagnostics.table import Row
from hvdgan.errors import RunError
from hvdgan.launching.hosts import cores
from hvdgan.launching.launched import launched

if TYPE_CHECKING:
    from hvdgan.distributed.ranks import Ranks

_TENSORFLOW, _HOROVOD, _JOIN = "importing TensorFlow", "importing Horovod", "joining the other ranks"
_CHECKS = {_TENSORFLOW: "TensorFlow", _HOROVOD: "Horovod", _JOIN: "ranks"}
_HINTS = {
    _TENSORFLOW: "launch/setup.sh installs it",
    _HOROVOD: installation.SETUP,
    _JOIN: "are all ranks up, with the same Horovod, and does the launcher use the MPI it was built with?",
    folders.SHARED_FOLDER: "--run-dir names a folder that rank 0 can write",
}
_SKEW_SECONDS = 1.0
_RATE_BYTES = 2**18
"""size from which the rate of an all-reduce is shown; smaller ones only measure its latency"""


@dataclasses.dataclass
class Findings:
    """What the probe has written so far."""

    rows: list[Row] = dataclasses.field(default_factory=list)
    build: dict[str, Any] | None = None  # what Horovod was built with; None: it cannot be imported
    ranks: dict[str, Any] = dataclasses.field(default_factory=dict)  # size, controller, facts of each; empty: none
    allreduce: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    part: str = ""  # the part that began last
    complete: bool = False

    def add(self, message: dict[str, Any]) -> None:
        """Add one message of the probe."""
        if "row" in message:
            self.rows.append(Row(**message["row"]))
        elif "allreduce" in message:
            self.allreduce.append(message["allreduce"])
        elif "error" in message:
            self.add_failure(message["error"])
            self.complete = True
        else:
            self.part = message.get("begin", self.part)
            self.build = message.get("build", self.build)
            self.ranks = message.get("ranks", self.ranks)
            self.complete = message.get("end", False)

    def add_failure(self, reason: str) -> None:
        """Add the row of a part that failed, with its most likely remedy."""
        hint = "" if "launch/setup.sh" in reason else _HINTS.get(self.part, "see the output of the other ranks")
        self.rows.append(Row(_CHECKS.get(self.part, self.part or "probe"), reason[:240], "fail", hint))


def run_probe(run_dir: Path, timeout: float) -> Findings:
    """Run the probe to its end; it counts as hanging after `timeout` seconds without a message."""
    findings = Findings()
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as lines, tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(writer), str(run_dir)],
            pass_fds=[writer],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ},
        )
        os.close(writer)
        try:
            ended = _read(lines, findings, timeout)
            process.wait(timeout=10 if ended else 0)
        except subprocess.TimeoutExpired:
            pass
        finally:
            process.kill()
            code = process.wait()
        if not findings.complete:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            reason = f"it ended with {how}{_last_line(output)}" if ended else f"no answer in {timeout:g} s"
            findings.add_failure(reason)
    return findings


def _read(lines: IO[bytes], findings: Findings, timeout: float) -> bool:
    """Read messages until the probe ends; False if none came for `timeout` seconds."""
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
                findings.add(json.loads(line))
    return True


def _last_line(output: IO[bytes]) -> str:
    output.seek(0)
    lines = [line.strip() for line in output.read().decode(errors="replace").splitlines() if line.strip()]
    return f": {lines[-1][:160]}" if lines else ""


class _Report:
    """Writes messages to hvdgan doctor, each as one line."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, **message: Any) -> None:
        """Write one message."""
        print(json.dumps(message), file=self._out, flush=True)

    def row(self, row: Row) -> None:
        """Write a row of the table."""
        self.write(row=dataclasses.asdict(row))


def main(file: int, run_dir: Path) -> None:
    """Run all checks, in this process and between the ranks."""
    with os.fdopen(file, "w", encoding="utf-8") as out:
        report = _Report(out)
        try:
            seen = _installation(report)
            if seen or not _has_lost_gpus():
                _ranks(report, seen, run_dir)
        except RunError as error:
            report.write(error=str(error))
        except Exception as error:  # any failure belongs into the table
            report.write(error=f"{type(error).__name__}: {' '.join(str(error).split())}")
        else:
            report.write(end=True)


def _installation(report: _Report) -> int:
    """Import TensorFlow and Horovod and check them; returns the number of GPUs that TensorFlow sees."""
    report.write(begin=_TENSORFLOW)
    report.row(installation.tensorflow())
    report.row(installation.keras())
    import tensorflow as tf

    from hvdgan.distributed import joining

    joining.claim()  # before TensorFlow looks at the GPUs: a rank that is shown several MIG instances takes its own
    seen = len(tf.config.list_physical_devices("GPU"))
    if launched()[2] == 0:  # whose rows are printed
        for row in installation.gpus(seen):
            report.row(row)
    report.write(begin=_HOROVOD)
    from hvdgan.distributed import backend

    installed = installation.horovod_built_for() or installation.package_version("horovod")
    if installed is None and launched()[1] == 1:
        report.row(Row("Horovod", "not installed", "warn", f"one process works without; {installation.SETUP}"))
    else:
        build = backend.build()
        report.write(build=build)
        report.row(installation.horovod(build))
        report.row(installation.nccl(build, seen))
    return seen


def _ranks(report: _Report, seen: int, run_dir: Path) -> None:
    """Join the other ranks and check what lies between them."""
    from hvdgan.distributed import backend, joining

    report.write(begin=_JOIN)
    ranks = joining.start()
    everyones = ranks.gather(_facts(seen), "doctor: facts")
    controller = backend.controller() if ranks.size > 1 else ""
    report.write(ranks={"size": ranks.size, "controller": controller, "facts": everyones})
    if ranks.size > 1:
        hosts = len({each["host"] for each in everyones})
        name = "MPI" if controller == "mpi" else "Gloo"
        report.row(Row("ranks", f"{ranks.size} on {hosts} host(s), controller {name}"))
        report.row(installation.same_versions(everyones))
        report.write(begin=folders.SHARED_FOLDER)
        report.row(folders.shared_folder(ranks, run_dir))
        _measure(report, ranks)
    report.row(placement.cores(everyones))
    ranks.shutdown()


def _measure(report: _Report, ranks: "Ranks") -> None:
    """Compare the ranks' clocks, and measure all-reduces."""
    from hvdgan.diagnostics import allreduce

    report.write(begin="clocks")
    report.row(_clocks(allreduce.clock_offsets(ranks)))
    for size in allreduce.SIZES:
        report.write(begin=f"all-reduce {_size(size)}")
        measured = allreduce.measure(ranks, size)
        report.write(allreduce=measured)
        mean, low, high = (f"{1000 * measured[name]:,.3f}" for name in ("seconds", "low", "high"))
        rate = f", {measured['bytes_per_sec'] / 1e9:,.3g} GB/s" if size >= _RATE_BYTES else ""
        report.row(Row(f"all-reduce {_size(size)}", f"{mean} ms ({low} to {high}){rate}"))


def _has_lost_gpus() -> bool:
    """Whether a row says already that GPUs are lost; joining the other ranks would say it again."""
    from hvdgan.distributed import devices

    return bool(devices.lost_gpus())


def _facts(seen: int) -> dict[str, Any]:
    """Describe this rank for the others."""
    from hvdgan.distributed.backend import versions

    return {
        "host": os.uname().nodename,
        "cores": cores(),
        "gpus": seen,
        "versions": {**versions(), "horovod": installation.package_version("horovod")},
    }


def _clocks(offsets: Sequence[float]) -> Row:
    skew = max(offsets) - min(offsets)
    found = f"within {skew * 1000:,.0f} ms"
    if skew < _SKEW_SECONDS:
        return Row("clocks", found)
    rank = max(range(len(offsets)), key=lambda rank: abs(offsets[rank]))
    hint = f"rank {rank}'s clock differs by {offsets[rank]:+,.1f} s: run NTP; logs and munge depend on it"
    return Row("clocks", f"{skew:,.1f} s apart", "warn", hint)


def _size(size: int) -> str:
    return next(
        f"{size / unit:,.4g} {name}" for unit, name in ((2**20, "MiB"), (2**10, "KiB"), (1, "B")) if size >= unit
    )


if __name__ == "__main__":
    start.imported()
    main(int(sys.argv[1]), Path(sys.argv[2]))
    leave(0)
