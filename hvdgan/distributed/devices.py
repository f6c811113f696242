"""The GPU that each rank takes, and whether what they take goes together."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from hvdgan.cli.errors import UserError


@dataclasses.dataclass(frozen=True)
class Device:
    """What a rank computes on.

    Attributes:
        host: its name.
        gpu: index of its GPU among those it sees; None: it has none.
        seen: how many it sees.
        among: what tells which they are: CUDA_VISIBLE_DEVICES, and the devices that Slurm lets this process open, since
            two tasks that are each shut in with another GPU both call it 0.
        name: of the GPU, as its maker has it.
        cores: that TensorFlow's operations may use.
        local_rank: of the rank.
    """

    host: str
    gpu: int | None
    seen: int
    among: str
    name: str
    cores: int
    local_rank: int

    @property
    def words(self) -> str:
        """For people: GPU 0, or CPU with its cores."""
        return f"CPU, {self.cores} core{'s' * (self.cores > 1)}" if self.gpu is None else f"GPU {self.gpu}"


def claim(local_rank: int) -> None:
    """Give this process its GPU, and no other, with memory taken as it is needed; nothing where there is none.

    It comes before the first operation, which fixes TensorFlow's devices. That a rank has no GPU left is for check() to
    say, where the others hear it.
    """
    gpus = tf.config.list_physical_devices("GPU")
    index = visible_gpu(len(gpus), local_rank)
    if index is None:
        return
    tf.config.set_visible_devices(gpus[index], "GPU")
    tf.config.experimental.set_memory_growth(gpus[index], True)


def bind(local_rank: int, local_size: int, cores: int) -> None:
    """Keep this process, those of its threads that run already included, on cores that no other rank of this host uses.

    Unbound, the ranks' threads move about and meet on one core while another is idle, and all ranks wait for that one.
    Where there are not as many cores nothing is changed.

    Args:
        local_rank: of this rank.
        local_size: ranks on this host.
        cores: for each of them.
    """
    mine = sorted(os.sched_getaffinity(0))
    if cores < len(mine) and cores * local_size <= len(mine):
        own = mine[local_rank * cores : (local_rank + 1) * cores]
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.sched_setaffinity(int(thread), own)


@contextlib.contextmanager
def started_threads_do_not_interrupt() -> Iterator[None]:
    """Threads that are started within wait, when they wake up, until the one that computes on their core pauses.

    That is Linux's SCHED_BATCH, and the least share of the core that there is (nice 19), so that they run while the
    other threads of the rank wait. Horovod's thread wakes up many times in a step to ask whether there is something to
    reduce, and the thread that computes the gradients would be interrupted each time. A process that has a policy of
    its own, or may not choose one, is left as it is.
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
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                # Only those that were started by this one, and not what others start at the same time.
                if os.sched_getscheduler(thread) == os.SCHED_BATCH:
                    os.setpriority(os.PRIO_PROCESS, thread, 19)


def _choose(policy: int) -> bool:
    """Whether the system lets this thread have a policy."""
    try:
        os.sched_setscheduler(0, policy, os.sched_param(0))
    except PermissionError:  # some containers
        return False
    return True


def claimed(local_rank: int, cores: int) -> Device:
    """What claim() has given this process."""
    gpus = tf.config.list_physical_devices("GPU")
    index = visible_gpu(len(gpus), local_rank)
    among = f"{os.environ.get('CUDA_VISIBLE_DEVICES', 'all')} {_openable()}"
    name = "" if index is None else tf.config.experimental.get_device_details(gpus[index]).get("device_name", "")
    return Device(os.uname().nodename, index, len(gpus), among, name, cores, local_rank)


def visible_gpu(visible: int, local_rank: int) -> int | None:
    """The index of a rank's GPU: the only one where the launcher hides the others, else the local rank's.

    None where there is none, or none for this rank.
    """
    if visible == 1:
        return 0
    return local_rank if local_rank < visible else None


def check(devices: Sequence[Device]) -> None:
    """Refuse what would compute wrongly placed; every rank has the same list and raises alike.

    Args:
        devices: each rank's, in the order of the ranks.

    Raises:
        UserError: more ranks on a host than GPUs, two ranks on one GPU, or some with and some without.
    """
    for rank, device in enumerate(devices):
        if device.gpu is None and device.seen:
            raise UserError(
                f"rank {rank} has no GPU: it is local rank {device.local_rank} on {device.host}, which has "
                f"{device.seen}; start at most one rank for each GPU (sbatch --ntasks-per-node=4 --gres=gpu:4)"
            )
    claims = [(device.host, device.among, device.gpu) for device in devices]
    for rank, device in enumerate(devices):
        first = claims.index(claims[rank])
        if first != rank and device.gpu is not None:
            raise UserError(
                f"ranks {first} and {rank} would share one GPU of {device.host}; start at most one rank for each GPU"
            )
    without = [rank for rank, device in enumerate(devices) if device.gpu is None]
    if without and len(without) < len(devices):
        raise UserError(
            f"rank {without[0]} on {devices[without[0]].host} sees no GPU, and others have one; all would wait for it: "
            "leave that host out, or hide the GPUs from all (CUDA_VISIBLE_DEVICES=)"
        )


def by_host(devices: Sequence[Device]) -> list[str]:
    """A line for each host: its ranks and what they compute on."""
    lines = []
    for host in dict.fromkeys(device.host for device in devices):
        ranks = [f"rank {rank}: {device.words}" for rank, device in enumerate(devices) if device.host == host]
        names = dict.fromkeys(device.name for device in devices if device.host == host and device.name)
        lines.append(f"{host}: {'; '.join(ranks)}" + (f" ({', '.join(names)})" if names else ""))
    return lines


def facts(device: Device) -> dict[str, Any]:
    """A device in words of JSON; Device(**facts) is it again."""
    return dataclasses.asdict(device)


def _openable() -> str:
    """The numbers of the GPUs that this process has the right to open."""
    numbers = []
    for path in sorted(Path("/dev").glob("nvidia[0-9]*")):
        try:
            os.close(os.open(path, os.O_RDWR))
        except OSError:
            continue
        numbers.append(path.name.removeprefix("nvidia"))
    return ",".join(numbers)
