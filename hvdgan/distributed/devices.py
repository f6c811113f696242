"""The GPU or the cores that each rank computes on, and the check that the ranks' devices fit together."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from hvdgan.cli.errors import UserError
from hvdgan.distributed.affinity import cores_of_rank
from hvdgan.distributed.ranks import Ranks


@dataclasses.dataclass(frozen=True)
class Device:
    """The device of a rank.

    Attributes:
        host: name of the host.
        gpu: index of the rank's GPU among the visible ones; None: the rank has no GPU.
        seen: number of visible GPUs.
        among: identity of the visible GPUs: CUDA_VISIBLE_DEVICES, and the device files that this process may open,
            because two Slurm tasks that may each open another GPU both call it 0.
        name: product name of the GPU.
        cores: cores that TensorFlow's operations may use.
        local_rank: the rank's number on its host.
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


def on_gpus() -> bool:
    """Whether ranks compute on GPUs: TensorFlow sees one."""
    return bool(tf.config.list_physical_devices("GPU"))


def claim(local_rank: int) -> None:
    """Make this rank's GPU the only visible one, and let its memory grow on demand; nothing without a GPU.

    It must run before the first operation, which fixes TensorFlow's devices. check() reports a rank without a GPU
    later, on every rank.
    """
    gpus = tf.config.list_physical_devices("GPU")
    index = visible_gpu(len(gpus), local_rank)
    if index is None:
        return
    tf.config.set_visible_devices(gpus[index], "GPU")
    tf.config.experimental.set_memory_growth(gpus[index], True)


def claimed(local_rank: int, cores: int) -> Device:
    """The device that claim() has given this process."""
    gpus = tf.config.list_physical_devices("GPU")
    index = visible_gpu(len(gpus), local_rank)
    among = f"{os.environ.get('CUDA_VISIBLE_DEVICES', 'all')} {_openable()}"
    name = "" if index is None else tf.config.experimental.get_device_details(gpus[index]).get("device_name", "")
    return Device(os.uname().nodename, index, len(gpus), among, name, cores, local_rank)


def visible_gpu(visible: int, local_rank: int) -> int | None:
    """The index of a rank's GPU: 0 if the launcher shows each rank one GPU, else the local rank.

    Returns:
        The index among the visible GPUs; None if there are too few.
    """
    if visible == 1:
        return 0
    return local_rank if local_rank < visible else None


def everyones_devices(ranks: Ranks) -> list[Device]:
    """The devices of all ranks, in rank order; every rank calls it."""
    mine = claimed(ranks.local_rank, cores_of_rank(ranks))
    return [Device(**each) for each in ranks.gather(facts(mine), "devices")]


def check_devices(ranks: Ranks) -> None:
    """Refuse ranks whose devices do not fit together; every rank calls it.

    Raises:
        UserError: on every rank, as check() raises it.
    """
    check(everyones_devices(ranks))


def check(devices: Sequence[Device]) -> None:
    """Refuse devices that would make the run wrong or slow.

    Args:
        devices: the ranks' devices, in rank order.

    Raises:
        UserError: a host has more ranks than GPUs, two ranks share a GPU, or only some ranks have one.
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
    """A line for each host: its ranks and their devices."""
    lines = []
    for host in dict.fromkeys(device.host for device in devices):
        here = {rank: device for rank, device in enumerate(devices) if device.host == host}
        gpus = [device.gpu for device in here.values() if device.gpu is not None]
        words = list(dict.fromkeys(device.words for device in here.values() if device.gpu is None))
        each = " each" if len(words) == 1 and len(here) > 1 and not gpus else ""
        words = [*([_numbered("GPU", gpus)] if gpus else []), *words]
        names = dict.fromkeys(device.name for device in here.values() if device.name)
        lines.append(
            f"{host}: {_numbered('rank', list(here))}: {'; '.join(words)}{each}"
            + (f" ({', '.join(names)})" if names else "")
        )
    return lines


def _numbered(noun: str, numbers: Sequence[int]) -> str:
    """Numbers with a noun in front: rank 2; ranks 0-3; ranks 0, 2."""
    if len(numbers) == 1:
        return f"{noun} {numbers[0]}"
    is_range = list(numbers) == list(range(numbers[0], numbers[0] + len(numbers)))
    return f"{noun}s {f'{numbers[0]}-{numbers[-1]}' if is_range else ', '.join(map(str, numbers))}"


def facts(device: Device) -> dict[str, Any]:
    """The fields of a device, serialisable to JSON; Device(**facts(device)) == device."""
    return dataclasses.asdict(device)


def _openable() -> str:
    """The numbers of the GPUs that this process may open."""
    numbers = []
    for path in sorted(Path("/dev").glob("nvidia[0-9]*")):
        try:
            os.close(os.open(path, os.O_RDWR))
        except OSError:
            continue
        numbers.append(path.name.removeprefix("nvidia"))
    return ",".join(numbers)
