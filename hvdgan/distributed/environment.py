"""The environment variables that Horovod and MPI read when they start; values that the user has set stay."""

import os

_ALWAYS = {
    # Four ranks that start on two cores can be a minute apart; Gloo's own 30 s would end the run.
    "HOROVOD_GLOO_TIMEOUT_SECONDS": "300",
    # Without it a stalled collective warns for ever and never ends.
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "600",
}
# Without GPUs, Horovod's thread wakes up on the cores that compute, and over MPI it polls there. Because it never
# preempts the compute thread (affinity.background_threads), it may wake up often (docs/performance.md).
_CPU_MPI = {"OMPI_MCA_mpi_yield_when_idle": "1", "HOROVOD_CYCLE_TIME": "0.5"}
# Two ranks reduce tensor by tensor; only small tensors are worth a copy into a common buffer and back.
_CPU_PAIR = {"HOROVOD_FUSION_THRESHOLD": str(1024 * 1024)}
_CPU_PAIR_MPI = {"HOROVOD_CYCLE_TIME": "0.1"}
_CPU_PAIR_GLOO = {"HOROVOD_CYCLE_TIME": "0.2"}


def set_defaults(*, on_gpu: bool, over_mpi: bool, pair: bool) -> None:
    """Set the variables that are not set; call it before Horovod is initialised.

    Args:
        on_gpu: True if gradients are on GPUs, for which Horovod's own defaults are chosen.
        over_mpi: True if the ranks meet over MPI; if not, over Gloo.
        pair: True if the run has two ranks, and never more.
    """
    settings = dict(_ALWAYS)
    if not on_gpu and over_mpi:
        settings |= _CPU_MPI
    if not on_gpu and pair:
        settings |= _CPU_PAIR | (_CPU_PAIR_MPI if over_mpi else _CPU_PAIR_GLOO)
    for name, value in settings.items():
        os.environ.setdefault(name, value)
