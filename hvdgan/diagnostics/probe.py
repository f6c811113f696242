"""Runs the checks that may crash or hang, in a process of its own: TensorFlow, Horovod, and the other ranks.

It writes lines of JSON to a file descriptor: {"begin": part} before each part, then rows and facts, and at last
{"end": true} or an error. If it dies, hvdgan.doctor knows in which part.
"""

from hvdgan.cli import start

start.begin(__name__)

import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from hvdgan import __version__
from hvdgan.cli.app import leave
from hvdgan.diagnostics import folders, installation, placement
from hvdgan.diagnostics.table import Row
from hvdgan.errors import RunError
from hvdgan.launching.hosts import cores
from hvdgan.launching.launched import launched

if TYPE_CHECKING:
    from hvdgan.distributed.ranks import Ranks

IMPORT_TENSORFLOW = "importing TensorFlow"
IMPORT_HOROVOD = "importing Horovod"
JOIN = "joining the other ranks"
_SKEW_SECONDS = 1.0
_RATE_BYTES = 2**18
"""size from which the rate of an all-reduce is shown; smaller ones only measure its latency"""


class Report:
    """Writes messages to hvdgan.doctor, each as one line."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, **message: Any) -> None:
        """Write one message."""
        print(json.dumps(message), file=self._out, flush=True)

    def row(self, row: Row) -> None:
        """Write a row of the table."""
        self.write(row=row.as_json())


def main(file: int, run_dir: Path, max_bytes: int, seconds: float) -> None:
    """Run all checks, in this process and between the ranks."""
    with os.fdopen(file, "w", encoding="utf-8") as out:
        report = Report(out)
        try:
            seen = _installation(report)
            if seen or not _has_lost_gpus():
                _ranks(report, seen, run_dir, max_bytes, seconds)
        except RunError as error:
            report.write(error=str(error))
        except Exception as error:  # any failure belongs into the table
            report.write(error=f"{type(error).__name__}: {' '.join(str(error).split())}")
        else:
            report.write(end=True)


def _installation(report: Report) -> int:
    """Import TensorFlow and Horovod and check them; returns the number of GPUs that TensorFlow sees."""
    report.write(begin=IMPORT_TENSORFLOW)
    report.row(installation.tensorflow())
    report.row(installation.keras())
    import tensorflow as tf

    from hvdgan.distributed import joining

    joining.claim()  # before TensorFlow looks at the GPUs: a rank that is shown several MIG instances takes its own
    seen = len(tf.config.list_physical_devices("GPU"))
    if launched()[2] == 0:  # whose rows are printed
        for row in installation.gpus(seen):
            report.row(row)
    report.write(begin=IMPORT_HOROVOD)
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


def _has_lost_gpus() -> bool:
    """Whether a row says already that GPUs are lost; joining the other ranks would say it again."""
    from hvdgan.distributed import devices

    return bool(devices.lost_gpus())


def _ranks(report: Report, seen: int, run_dir: Path, max_bytes: int, seconds: float) -> None:
    """Join the other ranks and check what lies between them."""
    from hvdgan.distributed import backend, joining

    report.write(begin=JOIN)
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
        _measure(report, ranks, max_bytes, seconds)
    report.row(placement.cores(everyones))
    ranks.shutdown()


def _measure(report: Report, ranks: "Ranks", max_bytes: int, seconds: float) -> None:
    """Compare the ranks' clocks, and measure all-reduces up to a size."""
    from hvdgan.diagnostics import allreduce

    report.write(begin="clocks")
    report.row(_clocks(allreduce.clock_offsets(ranks)))
    for size in allreduce.sizes_up_to(max_bytes):
        report.write(begin=f"all-reduce {_size(size)}")
        measured = allreduce.measure(ranks, size, seconds)
        report.write(allreduce=measured)
        report.row(_allreduce(measured))


def _facts(seen: int) -> dict[str, Any]:
    """Describe this rank for the others."""
    return {
        "host": os.uname().nodename,
        "cores": cores(),
        "gpus": seen,
        "versions": {
            "Python": platform.python_version(),
            "hvdgan": __version__,
            **{name: installation.package_version(name) for name in ("tensorflow", "keras", "horovod", "numpy")},
        },
    }


def _clocks(offsets: Sequence[float]) -> Row:
    skew = max(offsets) - min(offsets)
    found = f"within {skew * 1000:,.0f} ms"
    if skew < _SKEW_SECONDS:
        return Row("clocks", found)
    rank = max(range(len(offsets)), key=lambda rank: abs(offsets[rank]))
    hint = f"rank {rank}'s clock differs by {offsets[rank]:+,.1f} s: run NTP; logs and munge depend on it"
    return Row("clocks", f"{skew:,.1f} s apart", "warn", hint)


def _allreduce(measured: dict[str, Any]) -> Row:
    size = measured["bytes"]
    found = f"{measured['seconds'] * 1000:,.3f} ms ({measured['low'] * 1000:,.3f} to {measured['high'] * 1000:,.3f})"
    rate = f", {measured['bytes_per_sec'] / 1e9:,.3g} GB/s" if size >= _RATE_BYTES else ""
    return Row(f"all-reduce {_size(size)}", found + rate)


def _size(size: int) -> str:
    return next(
        f"{size / unit:,.4g} {name}" for unit, name in ((2**20, "MiB"), (2**10, "KiB"), (1, "B")) if size >= unit
    )


if __name__ == "__main__":
    start.imported()
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
    leave(0)
