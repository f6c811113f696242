"""What hvdgan.doctor looks at in a process of its own, since it may crash or hang: TensorFlow, Horovod, other ranks.

It writes lines of JSON to a file descriptor: {"begin": part} before each part, then rows, facts, or what went wrong.
Whoever reads them knows which part was the last.
"""

import importlib.metadata
import json
import os
import platform
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from hvdgan import __version__
from hvdgan.cli import start as lean
from hvdgan.cli.errors import RunError
from hvdgan.cli.launcher import launched
from hvdgan.cli.lock import take
from hvdgan.diagnostics.checks import SETUP, can_lock, gpus, horovod_built_for, remove
from hvdgan.diagnostics.table import Row

if TYPE_CHECKING:
    from hvdgan.distributed.ranks import Ranks

IMPORT_TENSORFLOW = "importing TensorFlow"
IMPORT_HOROVOD = "importing Horovod"
JOIN = "joining the other ranks"
SHARED_FOLDER = "shared folder"
_VISIBLE_SECONDS = 10.0
_SKEW_SECONDS = 1.0
_TELLING_BYTES = 2**18


class Report:
    """The lines, written as they come."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, **message: Any) -> None:
        """One line."""
        print(json.dumps(message), file=self._out, flush=True)

    def row(self, row: Row) -> None:
        """A row of the table."""
        self.write(row=row.as_json())


def main(file: int, run_dir: Path, max_bytes: int, seconds: float) -> None:
    """Look at everything, in this process and between the ranks.

    Args:
        file: descriptor to write to.
        run_dir: the run folder that all ranks should see.
        max_bytes: the largest all-reduce.
        seconds: how long to measure each.
    """
    with os.fdopen(file, "w", encoding="utf-8") as out:
        report = Report(out)
        try:
            _look(report, run_dir, max_bytes, seconds)
        except RunError as error:
            report.write(error=str(error))
        except Exception as error:  # whatever it is belongs into the table
            report.write(error=f"{type(error).__name__}: {' '.join(str(error).split())}")
        else:
            report.write(end=True)


def _look(report: Report, run_dir: Path, max_bytes: int, seconds: float) -> None:
    report.write(begin=IMPORT_TENSORFLOW)
    devices = _tensorflow(report)
    _, started, _ = launched()
    report.write(begin=IMPORT_HOROVOD)
    from hvdgan.distributed import ranks as distributed

    if horovod_built_for() is None and started == 1 and _version("horovod") is None:
        report.row(Row("Horovod", "not installed", "warn", f"one process works without; {SETUP}"))
    else:
        build = distributed.horovod_build()
        report.write(build=build)
        report.row(_horovod(build))
        report.row(_nccl(build, devices))
    report.write(begin=JOIN)
    ranks = distributed.start()
    everyones = ranks.gather(_facts(devices), "doctor: facts")
    over = distributed.controller() if ranks.size > 1 else ""
    report.write(ranks={"size": ranks.size, "controller": over, "facts": everyones})
    if ranks.size > 1:
        _between(report, ranks, everyones, run_dir, over, max_bytes, seconds)
    report.row(_cores(everyones))
    ranks.shutdown()


def _tensorflow(report: Report) -> int:
    """Its version, Keras', and the GPUs it sees; returns how many."""
    import keras
    import tensorflow as tf

    fits = tf.__version__.startswith("2.18.")
    hint = "" if fits else "Horovod 0.28.1 compiles against 2.18 at most, and this project is tested with it"
    report.row(Row("TensorFlow", tf.__version__, "ok" if fits else "warn", hint))
    fits = keras.__version__.startswith("3.")
    hint = "" if fits else "Keras 3.12 or later: launch/setup.sh; TF_USE_LEGACY_KERAS must not be set"
    report.row(Row("Keras", keras.__version__, "ok" if fits else "fail", hint))
    seen, there = len(tf.config.list_physical_devices("GPU")), gpus()
    found = f"{seen} seen by TensorFlow" + (f", {len(there)} by nvidia-smi ({there[0]})" if there else "")
    hint = "this TensorFlow has no CUDA, or not its libraries: HVDGAN_GPU=1 launch/setup.sh"
    lost = bool(there) and not seen
    report.row(Row("GPUs", found, "warn" if lost else "ok", hint if lost else ""))
    return seen


def _horovod(build: dict[str, Any]) -> Row:
    names = {"mpi": "MPI", "gloo": "Gloo", "nccl": "NCCL", "cuda": "CUDA", "rocm": "ROCm"}
    kinds = [name for key, name in names.items() if build[key]]
    found = f"{build['version']} with {', '.join(kinds)}; built for TensorFlow {horovod_built_for() or 'unknown'}"
    if not (build["mpi"] or build["gloo"]):
        return Row("Horovod", found, "fail", f"it has neither MPI nor Gloo: {SETUP}")
    return Row("Horovod", found)


def _nccl(build: dict[str, Any], devices: int) -> Row:
    code = build["nccl"]
    # 2.9 and later: major * 10000 + minor * 100 + patch.
    found = f"{code // 10000}.{code // 100 % 100}.{code % 100}" if code >= 20900 else "yes" if code else "none"
    if devices and not code:
        return Row("NCCL", found, "warn", "gradients go through main memory: CUDA_HOME=/… launch/setup.sh builds it in")
    return Row("NCCL", found if code else "none, and no GPU to need it" if not devices else found)


def _facts(devices: int) -> dict[str, Any]:
    """What a rank tells the others of itself."""
    return {
        "host": os.uname().nodename,
        "cores": sorted(os.sched_getaffinity(0)),
        "gpus": devices,
        "versions": {
            "Python": platform.python_version(),
            "hvdgan": __version__,
            **{name: _version(name) for name in ("tensorflow", "keras", "horovod", "numpy")},
        },
    }


def _version(name: str) -> str | None:
    for each in (name, f"{name}-cpu"):
        try:
            return importlib.metadata.version(each)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _cores(everyones: Sequence[dict[str, Any]]) -> Row:
    """Whether the ranks of each host have cores for themselves; ranks that are not bound share what the host has."""
    found = []
    short = ""
    for host in dict.fromkeys(each["host"] for each in everyones):
        cores = [each["cores"] for each in everyones if each["host"] == host]
        union = {core for some in cores for core in some}
        if len(union) < len(cores):
            short = short or f"{len(cores)} ranks on {len(union)} core(s) of {host}: start fewer, or bind them apart"
        found.append(f"{len(cores)} rank(s) on {len(union)} core(s)")
    counts = {text: found.count(text) for text in found}
    text = ", ".join(text if times == 1 else f"{times} hosts with {text}" for text, times in counts.items())
    return Row("cores", text, "warn" if short else "ok", short)


def _between(
    report: Report, ranks: "Ranks", everyones: list[dict[str, Any]], run_dir: Path, over: str, most: int, seconds: float
) -> None:
    hosts = len({each["host"] for each in everyones})
    report.row(Row("ranks", f"{ranks.size} on {hosts} host(s), controller {'MPI' if over == 'mpi' else 'Gloo'}"))
    report.row(_alike(everyones))
    report.write(begin=SHARED_FOLDER)
    report.row(_shared_folder(ranks, run_dir))
    from hvdgan.diagnostics import allreduce

    report.write(begin="clocks")
    report.row(_clocks(allreduce.clock_offsets(ranks)))
    for size in allreduce.sizes_up_to(most):
        report.write(begin=f"all-reduce {_size(size)}")
        measured = allreduce.measure(ranks, size, seconds)
        report.write(allreduce=measured)
        report.row(_allreduce(measured))


def _alike(everyones: Sequence[dict[str, Any]]) -> Row:
    first = everyones[0]["versions"]
    for rank, each in enumerate(everyones):
        for name, version in each["versions"].items():
            if version != first[name]:
                found = f"rank 0 has {name} {first[name]}, rank {rank} on {each['host']} has {version}"
                return Row("versions", found, "fail", "install the same on every host; training refuses to start")
    return Row("versions", "the same on every rank")


def _shared_folder(ranks: "Ranks", run_dir: Path) -> Row:
    """Whether all see what rank 0 writes, and respect its lock."""
    probe = run_dir / f".doctor-{secrets.token_hex(8)}"
    made: list[Path] = []
    file: TextIO | None = None

    def write() -> list[str]:
        nonlocal file
        try:
            made.extend(path for path in (run_dir, *run_dir.parents) if not path.exists())
            run_dir.mkdir(parents=True, exist_ok=True)
            file = probe.open("w+", encoding="utf-8")
            file.write(probe.name)
            file.flush()
            os.fsync(file.fileno())
            take(file.fileno())
        except OSError as error:
            raise RunError(f"{run_dir}: {error.strerror}") from error
        return [str(run_dir.absolute()), probe.name]

    try:
        folder, name = ranks.from_root(write, "doctor: run folder")
        # A rank may stand in another working folder: its own --run-dir is what its training would use.
        mine = run_dir.absolute() / name
        seen = file is not None or _appears(mine)
        respected = file is not None or not seen or _is_locked(mine)
        everyones = ranks.gather([seen, respected, os.uname().nodename], "doctor: run folder seen")
    except RunError as error:
        return Row(SHARED_FOLDER, str(error)[:160], "fail", "--run-dir names a folder that rank 0 can write")
    finally:
        if file is not None:
            file.close()
            remove(probe, made)
    if blind := [f"rank {rank} on {host}" for rank, (seen, _, host) in enumerate(everyones) if not seen]:
        hint = "name a folder on a file system that all hosts share"
        return Row(SHARED_FOLDER, f"{folder} is not seen by {', '.join(blind[:4])}", "warn", hint)
    if deaf := [f"rank {rank} on {host}" for rank, (_, kept, host) in enumerate(everyones) if not kept]:
        hint = "two trainings could write into one folder: mount it with locks"
        return Row(SHARED_FOLDER, f"rank 0's lock means nothing to {', '.join(deaf[:4])}", "warn", hint)
    return Row(SHARED_FOLDER, f"{folder} seen and its lock respected by every rank")


def _appears(path: Path) -> bool:
    """Network file systems may show a new file late."""
    end = time.monotonic() + _VISIBLE_SECONDS
    while True:
        try:
            if path.read_text(encoding="utf-8") == path.name:
                return True
        except OSError:
            pass
        if time.monotonic() >= end:
            return False
        time.sleep(0.1)


def _is_locked(path: Path) -> bool:
    try:
        with path.open("r+", encoding="utf-8") as file:
            return not can_lock(file.fileno())
    except OSError:
        return False


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
    # Of a small one the latency is all there is to know.
    rate = f", {measured['bytes_per_sec'] / 1e9:,.3g} GB/s" if size >= _TELLING_BYTES else ""
    return Row(f"all-reduce {_size(size)}", found + rate)


def _size(size: int) -> str:
    return next(
        f"{size / unit:,.4g} {name}" for unit, name in ((2**20, "MiB"), (2**10, "KiB"), (1, "B")) if size >= unit
    )


if __name__ == "__main__":
    lean.imported()
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
    sys.stdout.flush()
    # An orderly exit could wait in MPI_Finalize for ranks that have failed.
    os._exit(0)
