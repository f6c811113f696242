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
# Read in Horovod's source, not measured: no GPU was at hand. Otherwise Horovod's thread waits on the host until a
# reduction has ended, and only then may TensorFlow enqueue what uses its result. With it TensorFlow's stream waits for
# the reduction on the GPU, and the host is free to enqueue the next kernels. Horovod itself then no longer sees NCCL's
# errors; the heartbeat still sees a rank that dies or stands still.
#
# These stay as Horovod has them:
# HOROVOD_FUSION_THRESHOLD (128 MiB): a buffer takes that memory once, and holds all gradients of most GANs' updates; a
#   copy within a GPU's memory costs little, unlike one in a host's.
# HOROVOD_CYCLE_TIME (1 ms): the host enqueues a reduction before its gradients are computed, so that the wait is hidden
#   unless launching kernels is the limit. A shorter cycle would also fuse fewer gradients.
# HOROVOD_NUM_NCCL_STREAMS (1): the reductions of one rank compete for the same links, and several streams for the
#   multiprocessors of the backward pass; each has a buffer of its own.
# HOROVOD_BATCH_D2D_MEMCOPIES (1): one kernel copies all gradients into the buffer.
# HOROVOD_HIERARCHICAL_ALLREDUCE (0): NCCL's own rings and trees know the links within a host; docs/clusters.md says
#   when to try it.
_GPU = {"HOROVOD_ENABLE_ASYNC_COMPLETION": "1"}


def set_defaults(*, on_gpu: bool, over_mpi: bool, pair: bool, elastic: bool = False) -> None:
    """Set the variables that are not set; call it before Horovod is initialised."""
    settings = dict(_ALWAYS)
    if on_gpu and not elastic:
        settings |= _GPU
    if not on_gpu and over_mpi:
        settings |= _CPU_MPI
    if not on_gpu and pair:
        settings |= _CPU_PAIR | (_CPU_PAIR_MPI if over_mpi else _CPU_PAIR_GLOO)
    for name, value in settings.items():
        os.environ.setdefault(name, value)
