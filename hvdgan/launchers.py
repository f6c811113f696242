"""What the environment says of the launcher that started this process, before any library is loaded."""

import os

# What each launcher tells its processes: how many there are, and which one this is.
_VARIABLES = (
    ("horovodrun", "HOROVOD_SIZE", "HOROVOD_RANK"),
    ("mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("mpiexec", "PMI_SIZE", "PMI_RANK"),
    ("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
)


def launched() -> tuple[str, int, int]:
    """The launcher's name, how many processes it speaks of, and this process's rank: ("none", 1, 0) without one."""
    for name, size, rank in _VARIABLES:
        if os.environ.get(size, "").isdigit() and os.environ.get(rank, "").isdigit():
            return name, int(os.environ[size]), int(os.environ[rank])
    return "none", 1, 0


def local_rank() -> int:
    """This process's number on its host, as the launcher has given it; 0 without one."""
    variables = ("HOROVOD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
    found = [os.environ[name] for name in variables if os.environ.get(name, "").isdigit()]
    return int(found[0]) if found and launched()[1] > 1 else 0
