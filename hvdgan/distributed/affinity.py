"""The cores that each rank of a host computes on, and threads that run only while those cores are idle."""

import contextlib
import os
from collections.abc import Iterator

from hvdgan.distributed.ranks import Ranks
from hvdgan.launching import hosts


def cores_of_rank(ranks: Ranks) -> int:
    """The number of cores that this rank may use: those that it is bound to, or an equal share of the host's.

    horovodrun never binds its ranks. mpirun and srun do so by default, and a bound rank sees fewer cores than its
    container or job has. A quota of CPU time is shared by the ranks of a host in any case.
    """
    if ranks.cores:
        return ranks.cores
    cores, quota = len(hosts.cores()), hosts.core_quota()
    bound = ranks.launcher != "horovodrun" and cores < hosts.allotted_cores()
    own = cores if bound else cores // ranks.local_size
    return max(1, own if quota is None else min(own, quota // ranks.local_size))


def reading_threads(wanted: int, ranks: Ranks) -> int:
    """The number of threads that read images on this rank, of --pipeline.threads; 0: one per core of this rank."""
    return wanted or cores_of_rank(ranks)


def bind(local_rank: int, local_size: int, cores: int) -> None:
    """Bind all threads of this process to cores that no other rank of this host uses.

    Unbound, threads of two ranks meet on one core while another core is idle, and all ranks wait for the slower one.
    Nothing is changed if the host has too few cores, if the process is bound already, or if it has a quota of CPU time:
    the other containers of the host, which use the same cores, would be bound to the first ones too.
    """
    mine = hosts.cores()
    if cores < len(mine) and cores * local_size <= len(mine) and hosts.core_quota() is None:
        own = mine[local_rank * cores : (local_rank + 1) * cores]
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # the thread has ended since
                os.sched_setaffinity(int(thread), own)


@contextlib.contextmanager
def background_threads() -> Iterator[None]:
    """Start new threads with SCHED_BATCH and nice 19, so that they never preempt the compute thread.

    Horovod's thread wakes up many times in a step to look for tensors to reduce, and would interrupt the thread that
    computes the gradients each time. Nothing is changed if the process already has another scheduling policy, or may
    not choose one.
    """
    before = os.listdir("/proc/self/task")
    batch = os.sched_getscheduler(0) == os.SCHED_OTHER and _choose(os.SCHED_BATCH)
    try:
        yield
    finally:
        if batch:
            _choose(os.SCHED_OTHER)
    if batch:
        for thread in map(int, set(os.listdir("/proc/self/task")).difference(before)):
            with contextlib.suppress(ProcessLookupError):  # the thread has ended since
                # A thread without SCHED_BATCH was started by another thread at the same time.
                if os.sched_getscheduler(thread) == os.SCHED_BATCH:
                    os.setpriority(os.PRIO_PROCESS, thread, 19)


def _choose(policy: int) -> bool:
    """Set the scheduling policy of this thread, and return whether the system permits it."""
    try:
        os.sched_setscheduler(0, policy, os.sched_param(0))
    except PermissionError:  # some containers
        return False
    return True
