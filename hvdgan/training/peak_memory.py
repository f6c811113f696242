"""The most memory that this process has taken, on the host and on its GPU, and that of a stage in words."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import tensorflow as tf

from hvdgan.distributed.ranks import Ranks
from hvdgan.recipe.stages import Stage


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


def used_by(stage: Stage, ranks: Ranks) -> str:
    """Describe the most memory that a rank has taken; every rank calls this at the end of a stage."""
    mine = peak_memory()
    gpu = mine["peak_gpu_bytes"]
    peaks = ranks.gather(mine["peak_rss_bytes"] if gpu is None else gpu, "peak memory")
    whose = "process" if gpu is None else "GPU"
    return f"stage {stage.name}: peak memory of a {whose} {max(peaks) / 1e9:,.3g} GB, on rank {peaks.index(max(peaks))}"


def _has_gpu() -> bool:
    return bool(tf.config.list_logical_devices("GPU"))
