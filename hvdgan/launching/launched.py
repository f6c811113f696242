"""The launcher that started this process, known from environment variables without loading any library."""

import functools
import os
import re
import signal
import sys
from pathlib import Path

from hvdgan.errors import UserError

# The variables in which each launcher gives the number of its processes and the number of this one.
_VARIABLES = (
    ("horovodrun", "HOROVOD_SIZE", "HOROVOD_RANK"),
    ("mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("mpiexec", "PMI_SIZE", "PMI_RANK"),
    ("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
)
VAIN_REQUEUES = 3
"""requeues of a job after which it ends, if it has not got further"""


def launched() -> tuple[str, int, int]:
    """The launcher's name, the number of its processes, and this process's rank: ("none", 1, 0) without a launcher."""
    for name, size, rank in _VARIABLES:
        if os.environ.get(size, "").isdigit() and os.environ.get(rank, "").isdigit():
            counted = int(os.environ[size]), int(os.environ[rank])
            # srun --mpi=pmi2 sets the variables of mpiexec too.
            own = name == "mpiexec" and counted == _counted("SLURM_STEP_NUM_TASKS", "SLURM_PROCID")
            return "srun" if own else name, *counted
    return "none", 1, 0


def local_rank() -> int:
    """This process's number on its host, as the launcher has set it; 0 without a launcher."""
    variables = ("HOROVOD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
    found = [os.environ[name] for name in variables if os.environ.get(name, "").isdigit()]
    return int(found[0]) if found and launched()[1] > 1 else 0


def local_size() -> int:
    """The number of processes that the launcher has started on this host; 1 if it sets no variable for it."""
    if launched()[1] == 1:
        return 1
    for name in ("HOROVOD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    node = os.environ.get("SLURM_NODEID", "")
    counts = tasks_of_nodes(os.environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    return counts[int(node)] if node.isdigit() and int(node) < len(counts) else 1


def tasks_of_nodes(text: str) -> list[int]:
    """The numbers of tasks of Slurm's nodes: 4(x2),3 means two of four tasks each and one of three."""
    parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(tasks) for tasks, nodes in parts for _ in range(int(nodes or 1))]


def stopped_early(number: int) -> str:
    """The line about a run that a signal has ended before there was anything to save."""
    return f"hvdgan: stopped before the first step ({signal.Signals(number).name}); nothing was written"


def unlaunched() -> dict[str, str]:
    """The environment of this process without what tells a child that a launcher has started it as one of several."""
    told = {name for _, *names in _VARIABLES for name in names}
    return {name: value for name, value in os.environ.items() if name not in told}


def allocated() -> int | None:
    """The number of tasks of the Slurm job that this process belongs to; None outside of a job.

    It is only a hint: a single process in an allocation of eight tasks may be a debugger's, and in a job step the
    variable counts the tasks of the step.
    """
    tasks = os.environ.get("SLURM_NTASKS", "")
    return int(tasks) if tasks.isdigit() and "SLURM_JOB_ID" in os.environ else None


def requeued() -> tuple[str, int] | None:
    """The Slurm job of this process, and how many times it was requeued; None if it was not, or outside of a job."""
    job, restarts = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_RESTART_COUNT", "")
    return (job, int(restarts)) if job and restarts.isdigit() and int(restarts) else None


def refuse_srun_without_pmi(*, over_mpi: bool) -> None:
    """Refuse tasks of srun that cannot find each other: MPI would abort, or make each of them rank 0 of 1."""
    name, size, _ = launched()
    if name != "srun" or size == 1:
        return
    if not over_mpi:
        raise UserError(
            f"srun started {size} processes, and Horovod here works without MPI: every process would train alone; "
            "start with hvdgan launch --gloo or LAUNCHER=gloo sbatch ..., or build Horovod with MPI"
        )
    if "PMIX_RANK" not in os.environ and _open_mpi_knows_pmix_alone():
        asked = os.environ.get("SLURM_MPI_TYPE", "none")
        raise UserError(
            f"srun started {size} processes that Open MPI cannot bring together (--mpi={asked}); start with srun "
            "--mpi=pmix (srun --mpi=list shows the choices), or with hvdgan launch"
        )


def _counted(size: str, rank: str) -> tuple[int, int] | None:
    words = os.environ.get(size, ""), os.environ.get(rank, "")
    return (int(words[0]), int(words[1])) if all(word.isdigit() for word in words) else None


def _open_mpi_knows_pmix_alone() -> bool:
    """Whether this process has loaded an Open MPI without plugins for PMI-1 and PMI-2; to call it would abort."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = Path(line.rpartition(" ")[2])
        if not path.name.startswith("libmpi.so.40."):  # Open MPI 4 and 5; MPICH and its derivatives are libmpi.so.12
            continue
        if path.name >= "libmpi.so.40.40":  # Open MPI 5 supports only PMIx
            return True
        folders = [*path.parent.glob("openmpi*"), *path.parent.glob("openmpi/lib/openmpi*")]
        plugins = {plugin.name for folder in folders for plugin in folder.glob("mca_pmix_*.so")}
        return bool(plugins) and not plugins & {"mca_pmix_s1.so", "mca_pmix_s2.so", "mca_pmix_cray.so"}
    return False


@functools.cache
def warn_once(message: str) -> None:
    """Write a warning, the same on every rank, to stderr: on rank 0 alone, and only the first time."""
    if launched()[2] == 0:
        print(f"hvdgan: {message}", file=sys.stderr, flush=True)
