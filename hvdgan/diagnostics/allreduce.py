"""Measures the all-reduce by message size, with the same call and transport as a run, and the ranks' clocks."""

import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import RunError

SIZES = tuple(4 * 16**power for power in range(7))
"""sizes in bytes: 4 B, 64 B, 1 KiB and so on by factors of 16, up to 64 MiB"""
_WARM_UP = 2
_MOST = 50
_SECONDS = 0.5


def measure(ranks: Ranks, size: int) -> dict[str, Any]:
    """Measure the mean over the ranks of a float32 tensor; every rank calls this."""
    reduce = _reduction(ranks, size)
    values = tf.fill([size // 4], float(ranks.rank + 1))
    for _ in range(_WARM_UP):
        begin = time.perf_counter()
        right, _ = reduce(values)
        right = bool(right.numpy())
        once = time.perf_counter() - begin
    everyones = ranks.gather([right, once], f"all-reduce of {size} bytes")
    if wrong := [rank for rank, (right, _) in enumerate(everyones) if not right]:
        raise RunError(f"an all-reduce of {size:,} bytes gave a wrong mean on rank {wrong[0]}")
    repeats = int(min(max(_SECONDS / max(once for _, once in everyones), 3), _MOST))
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        reduce(values)[1].numpy()
        times.append(time.perf_counter() - begin)
    slowest = ranks.stack(np.array(times, np.float32)).max(axis=0)
    low, median, high = (float(np.quantile(slowest, part)) for part in (0.25, 0.5, 0.75))
    rate = size / median
    bus = rate * 2 * (ranks.size - 1) / ranks.size
    return {
        "bytes": size,
        "seconds": median,
        "low": low,
        "high": high,
        "bytes_per_sec": rate,
        "bus_bytes_per_sec": bus,
        "repeats": repeats,
    }


def _reduction(ranks: Ranks, size: int) -> Any:
    expected = statistics.mean(range(1, ranks.size + 1))

    @tf.autograph.experimental.do_not_convert
    def reduce(values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        # Horovod matches tensors by name.
        with tf.name_scope(f"allreduce/{size}"):
            mean = ranks.mean(values)
        return tf.reduce_all(tf.abs(mean - expected) <= 1e-5 * expected), mean[0]

    return tf.function(reduce, autograph=False)


def clock_offsets(ranks: Ranks, rounds: int = 5) -> Sequence[float]:
    """Measure by how many seconds each rank's clock is ahead of rank 0's, to about the duration of a collective."""
    offsets = []
    for _ in range(rounds):
        ranks.gather(None, "clocks: together")  # all ranks leave this call at nearly the same moment
        times = ranks.gather(time.time(), "clocks")
        offsets.append([each - times[0] for each in times])
    return [statistics.median(each) for each in zip(*offsets, strict=True)]
