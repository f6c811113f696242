"""The GPU or the cores that each rank computes on, and the check that the ranks' devices fit together."""

import dataclasses
import functools
import os
from collections.abc import Sequence

import tensorflow as tf

from hvdgan.distributed import backend, cuda
from hvdgan.distributed.affinity import cores_of_rank
from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import UserError
from hvdgan.launching.launched import local_size, warn_once
from hvdgan.launching.programs import by_nvidia_smi

CPU_MEANT = "CUDA_VISIBLE_DEVICES= says that the CPU is meant"
_ADVICE = f"hvdgan doctor has a row for each library; {CPU_MEANT}"


@dataclasses.dataclass(frozen=True)
class Device:
    """The device of a rank."""

    host: str
    gpu: int | None  # index of the rank's GPU among those that this process sees; None: it sees none
    seen: int  # number of GPUs that this process sees
    identity: str  # UUID of the GPU or MIG instance, by which ranks that share it are found
    name: str  # product name of the GPU
    cores: int  # cores that TensorFlow's operations may use
    lost: str = ""  # why the rank computes on the CPU although GPUs were asked for

    def __str__(self) -> str:
        if self.gpu is None:
            return f"CPU, {self.cores} core{'s' * (self.cores > 1)}"
        return f"GPU {self.gpu} ({self.name})"


def on_gpus() -> bool:
    """Whether ranks compute on GPUs: TensorFlow sees one."""
    return bool(tf.config.list_physical_devices("GPU"))


def claim(local_rank: int) -> None:
    """Make this rank's GPU the only visible one, and let its memory grow on demand; nothing without a GPU.

    It must run before the first operation, which fixes TensorFlow's devices. If two ranks claim one GPU, check() says
    so later, on every rank.
    """
    cuda.load_libraries()
    shown = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if len(shown) > 1 and all(name.startswith("MIG-") for name in shown):
        os.environ["CUDA_VISIBLE_DEVICES"] = shown[local_rank % len(shown)]  # CUDA shows a process the first alone
    if gpus := tf.config.list_physical_devices("GPU"):
        # A launcher shows each rank one GPU or all of its host, or several that no other rank sees (srun
        # --gpus-per-task=2). The remainder serves them all; too many ranks meet on one GPU.
        gpu = gpus[local_rank % len(gpus)]
        tf.config.set_visible_devices(gpu, "GPU")
        if tf.config.get_logical_device_configuration(gpu) is None:  # limit_memory() has not replaced growth
            tf.config.experimental.set_memory_growth(gpu, True)


def limit_memory(mebibytes: int | None, *, shared: bool = False) -> None:
    """Take this much memory of the claimed GPU at once and no more; None: memory grows, unless ranks share GPUs.

    Call it after claim(), and before the first operation; after one it raises a UserError.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if mebibytes is None and shared and gpus and (memory := cuda.smallest_memory()):
        mebibytes = int(0.9 * memory / -(-local_size() // len(gpus)))  # each process takes some for CUDA itself
    if mebibytes is None:
        return
    limit = tf.config.LogicalDeviceConfiguration(memory_limit=mebibytes)
    try:
        for gpu in tf.config.get_visible_devices("GPU"):
            tf.config.set_logical_device_configuration(gpu, [limit])
    except RuntimeError as error:
        raise UserError(
            f"--gpu-memory-limit {mebibytes}: this process has opened the GPU without this limit, in an earlier run, "
            "or because a recipe's file ran TensorFlow operations when it was imported; give the same limit to all "
            f"runs of a process, and make tensors and networks in networks() ({error})"
        ) from error


def claimed(local_rank: int, cores: int) -> Device:
    """The device that claim() has given this process."""
    gpus = tf.config.list_physical_devices("GPU")
    host = os.uname().nodename
    if not gpus:
        return Device(host, None, 0, "", "", cores, lost_gpus())
    index = local_rank % len(gpus)
    name = tf.config.experimental.get_device_details(gpus[index]).get("device_name", "")
    return Device(host, index, len(gpus), cuda.uuid(index) or str(index), name, cores)


def refuse_cpu_by_mistake() -> None:
    """Refuse, by a UserError, to compute on the CPU where GPUs were asked for; for a command of one process."""
    if not on_gpus() and (lost := lost_gpus()):
        raise UserError(f"{lost}; {_ADVICE}")


@functools.cache
def lost_gpus() -> str:
    """Why TensorFlow registers no GPU although GPUs were asked for; "" if none were.

    An empty CUDA_VISIBLE_DEVICES, or -1, says that the CPU is meant.
    """
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is not None and shown.strip() in ("", "-1"):
        return ""
    if shown and (shown[:1].isdigit() or shown.startswith(("GPU-", "MIG-"))):
        asked = f"CUDA_VISIBLE_DEVICES={shown} names some"
    elif names := by_nvidia_smi("name"):
        asked = f"nvidia-smi lists {len(names)} ({names[0]})" + (f" and CUDA_VISIBLE_DEVICES={shown}" if shown else "")
    elif tf.sysconfig.get_build_info()["is_cuda_build"] and backend.has_nccl():
        asked = "Horovod was built with NCCL"
    else:
        return ""
    return f"TensorFlow registers no GPU, and {asked}: {cuda.examine().reason}"


def everyones_devices(ranks: Ranks) -> list[Device]:
    """The devices of all ranks, in rank order; every rank calls it."""
    mine = dataclasses.asdict(claimed(ranks.local_rank, cores_of_rank(ranks)))
    return [Device(**each) for each in ranks.gather(mine, "devices")]


def check(devices: Sequence[Device], *, share_gpu: bool = False) -> None:
    """Refuse devices of all ranks that would make the run wrong or slow, on every rank by the same UserError."""
    claims = [(device.host, device.identity) for device in devices]
    for rank, device in enumerate(devices):
        if device.lost:
            where = f"rank {rank} on {device.host}: " if len(devices) > 1 else ""
            raise UserError(f"{where}{device.lost}; {_ADVICE}")
        first = claims.index(claims[rank])
        if first == rank or device.gpu is None:
            continue
        if not share_gpu:
            raise UserError(
                f"ranks {first} and {rank} would share one GPU of {device.host}, where rank {rank} sees {device.seen}; "
                "start at most one rank for each GPU (sbatch --ntasks-per-node=4 --gres=gpu:4), or MIG instance (list "
                "all in CUDA_VISIBLE_DEVICES=MIG-...,MIG-...); --share-gpu lets them, for debugging"
            )
        warn_once("ranks share a GPU and reduce over the host's memory (--share-gpu): for debugging, not for speed")
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
        cores = dict.fromkeys(device.cores for device in here.values() if device.gpu is None)
        words = [f"CPU, {count} core{'s' * (count > 1)}" for count in cores]
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
