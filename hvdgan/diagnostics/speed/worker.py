"""Runs one process of a launch of hvdgan.bench: a rank, or an independent copy.

python -m hvdgan.diagnostics.speed.worker SPEC.json
"""

from hvdgan.cli import start

start.begin(__name__)

import json
import os
import sys
from pathlib import Path

from hvdgan.cli import hosts
from hvdgan.cli.app import exit_code, leave
from hvdgan.cli.files.outputs import write_json
from hvdgan.cli.launcher import launched, local_rank
from hvdgan.diagnostics.speed.meeting import Meeting
from hvdgan.diagnostics.speed.spec import Spec


def bind(cores: int, processes: int, index: int) -> None:
    """Bind this process to its share of the host's cores, before any library makes threads."""
    mine = hosts.cores()
    cores = cores or max(1, len(mine) // processes)
    # If a launcher has bound this process already, `mine` are its own cores, and it stays within them.
    os.sched_setaffinity(0, {mine[(index * cores + place) % len(mine)] for place in range(cores)})
    # Otherwise the ranks of a host would divide by their number the cores that each has for itself.
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(len(hosts.cores())))


def prepare(spec: Spec) -> None:
    """Set what the libraries read when they are loaded."""
    bind(spec.cores, spec.processes_per_host, local_rank())
    if spec.timeline:
        os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"  # Horovod can start a timeline later only if this was set


def main(spec: Spec) -> None:
    """Measure, and write the result to the launch's folder: rank 0 for all ranks, each copy for itself."""
    from hvdgan.diagnostics.speed.measured import measure
    from hvdgan.distributed import devices, joining
    from hvdgan.training.command import parse

    joining.claim()
    command = parse(spec.arguments)
    share_gpu = command is not None and command.config.share_gpu
    if command is not None:
        devices.limit_memory(command.config.gpu_memory_limit, shared=share_gpu)
    folder, number = Path(spec.folder), launched()[2]
    meeting = Meeting(folder, number, spec.copies) if spec.copies else None
    ranks = joining.alone(local_rank()) if spec.copies else joining.start(share_gpu=share_gpu)
    result = measure(spec, ranks, folder / f"run-{number}", meeting)
    if ranks.is_root:
        write_json(folder / f"result-{number}.json", result)
    ranks.shutdown()


if __name__ == "__main__":
    asked = Spec(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    prepare(asked)
    # After prepare(), because it makes threads; before exit_code(), which enables the garbage collector again.
    import hvdgan.diagnostics.speed.measured  # noqa: F401

    leave(exit_code(lambda: main(asked)))
