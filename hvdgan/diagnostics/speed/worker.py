"""A process of a launch of hvdgan.bench: a rank, or an independent copy.

python -m hvdgan.diagnostics.speed.worker SPEC.json
"""

import dataclasses
import json
import os
import sys
import time
from pathlib import Path

from hvdgan.cli.errors import RunError
from hvdgan.cli.exits import exit_code
from hvdgan.cli.launcher import launched, local_rank

TIMELINE = "timeline.json"
_WAIT_SECONDS = 600.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
    """What a launch measures; the same for all its processes.

    Args:
        arguments: of hvdgan.train.
        global_batch_size: of the ranks together, or of each copy.
        steps: to measure, of each kind and stage.
        cores: per process, to which it is bound; 0: its share of the host's.
        processes_per_host: where the most processes run.
        copies: independent processes; 0: the processes are ranks.
        allreduce: whether to measure the all-reduce too.
        timeline: whether to leave Horovod's timeline of some steps in the folder.
        began: seconds since 1970 when the launch began.
        folder: that all processes see, for results and signs.
    """

    arguments: list[str]
    global_batch_size: int
    steps: int
    cores: int
    processes_per_host: int
    copies: int
    allreduce: bool
    timeline: bool
    began: float
    folder: str


def bind(cores: int, processes: int, index: int) -> None:
    """Bind this process to its share of the host's cores, before any library makes threads.

    Args:
        cores: per process; 0: as many as each of `processes` has for itself.
        processes: on a host, where they are the most.
        index: of this process on its host.
    """
    mine = sorted(os.sched_getaffinity(0))
    cores = cores or max(1, len(mine) // processes)
    # Where a launcher has bound it already these are its own, and it stays within them.
    os.sched_setaffinity(0, {mine[(index * cores + place) % len(mine)] for place in range(cores)})
    # Else the ranks of a host would divide among them what each has for itself.
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(len(os.sched_getaffinity(0))))


class Meeting:
    """How copies, which know nothing of each other, measure at the same time: by files in a folder.

    Args:
        folder: that all see.
        number: of this one.
        count: of all.
    """

    def __init__(self, folder: Path, number: int, count: int) -> None:
        self._folder = folder
        self._number = number
        self._count = count

    def wait(self) -> None:
        """Until all are ready.

        Raises:
            RunError: they are not after ten minutes.
        """
        end = time.monotonic() + _WAIT_SECONDS
        while not self._all("ready"):
            if time.monotonic() > end:
                raise RunError(f"of {self._count} copies not all are ready after {_WAIT_SECONDS:g} s")
            time.sleep(0.01)

    def all_done(self) -> bool:
        """Whether no other still measures, and so counts on this one's load."""
        return self._all("done")

    def _all(self, what: str) -> bool:
        (self._folder / f"{what}-{self._number}").touch()
        return len(list(self._folder.glob(f"{what}-*"))) >= self._count


def prepare(spec: Spec) -> None:
    """What the libraries look at when they are loaded."""
    bind(spec.cores, spec.processes_per_host, local_rank())
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if spec.timeline:
        os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"  # else it cannot be begun later


def main(spec: Spec) -> None:
    """Train, take the time, and write it to the folder: rank 0 for all ranks, each copy for itself."""
    from hvdgan.diagnostics.speed.measured import measure
    from hvdgan.distributed import ranks as distributed

    folder, number = Path(spec.folder), launched()[2]
    meeting = Meeting(folder, number, spec.copies) if spec.copies else None
    ranks = distributed.alone(local_rank()) if spec.copies else distributed.start()
    result = measure(spec, ranks, folder / f"run-{number}", meeting)
    if ranks.is_root:
        partial = folder / f".result-{number}.partial"
        partial.write_text(json.dumps(result), encoding="utf-8")
        partial.rename(folder / f"result-{number}.json")
    ranks.shutdown()


if __name__ == "__main__":
    asked = Spec(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    prepare(asked)
    # Only now, since what this loads makes threads, and before exit_code, as all commands do: it starts quicker so.
    import hvdgan.diagnostics.speed.measured  # noqa: F401

    code = exit_code(lambda: main(asked))
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: a rank that fails must not wait in MPI_Finalize for those that go on.
    os._exit(code)
