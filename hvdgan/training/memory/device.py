"""The memory of this process: the most that it has taken, and what its device has left."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import tensorflow as tf

from hvdgan.cli import hosts
from hvdgan.distributed.devices import claimed, openable_gpus
from hvdgan.distributed.ranks import Ranks
from hvdgan.training.memory.gpu_memory import free_gpu_memory


def peak_memory() -> dict[str, int | None]:
    """Read the peak memory of this process, on the host and on its GPU."""
    # Not ru_maxrss, which includes the memory of the launcher that this process was forked from.
    lines = Path("/proc/self/status").read_text().splitlines()
    host = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    return {
        "peak_rss_bytes": host,
        "peak_gpu_bytes": tf.config.experimental.get_memory_info("GPU:0")["peak"] if _has_gpu() else None,
    }


def largest(peaks: Iterable[Mapping[str, int | None]]) -> dict[str, int | None]:
    """The largest of each figure of peak_memory(), such as of several stages or ranks."""
    every = list(peaks)
    return {name: max((each[name] for each in every), key=lambda value: value or 0) for name in every[0]}


def forget_peak() -> None:
    """Let the peak of the GPU begin again; the system counts that of a process from its start."""
    if _has_gpu():
        tf.config.experimental.reset_memory_stats("GPU:0")


def room(ranks: Ranks, *, failed: bool = False) -> int | None:
    """Bytes that this rank can still take: its share of the host's, or what is left of its GPU or of a limit there.

    None where the system does not report them, or nvidia-smi (see free_gpu_memory()).

    Args:
        ranks: ranks of the run.
        failed: True if memory has just been refused: then a GPU has at least what had been taken of it.
    """
    if not _has_gpu():
        free = hosts.free_memory()
        return None if free is None else free // ranks.local_size
    gpu = tf.config.get_visible_devices("GPU")[0]
    limits = [each.memory_limit for each in tf.config.get_logical_device_configuration(gpu) or ()]
    taken = tf.config.experimental.get_memory_info("GPU:0")
    if limits and limits[0] is not None:
        return int(limits[0]) * 2**20 - int(taken["current"])
    # What TensorFlow has freed, it keeps for later, and the GPU counts it as taken.
    kept = int(taken["peak"]) - int(taken["current"])
    free = free_gpu_memory(claimed(ranks.local_rank, 0), openable_gpus())
    if free is None:
        return kept if failed else None
    return free + kept


def _has_gpu() -> bool:
    return bool(tf.config.list_logical_devices("GPU"))
