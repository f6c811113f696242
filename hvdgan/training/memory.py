"""The most memory that this process has taken, and what to do where there is too little."""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import tensorflow as tf

from hvdgan.cli.errors import RunError, in_one_line
from hvdgan.distributed.ranks import Ranks
from hvdgan.recipe.schedule import Position
from hvdgan.recipe.stages import Stage
from hvdgan.training.run import Run
from hvdgan.training.step import Compute, Steps

OUT_OF_MEMORY = (MemoryError, tf.errors.ResourceExhaustedError)
_LONGEST = 200


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


class MemoryGuard:
    """Follows the steps of a run, and describes a lack of memory in them, before or after one, in one line."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._place: tuple[str, int, Position] | None = None
        """before, in or after a step: its number and its position; None: the first has not begun"""

    def guarded(self, steps: Steps) -> Iterator[tuple[int, Position, Compute]]:
        """Yield steps that end with a message of one line if there is not enough memory for them."""
        for step, at, compute in steps:
            self._place = "before", step, at
            yield step, at, functools.partial(self._computed, at, compute)

    def failure(self, error: Exception) -> RunError:
        """Describe a lack of memory."""
        run, place = self._run, self._place
        where = "" if place is None else f" {place[0]} step {place[1]}, stage {place[2].stage.name}"
        first = f"rank {run.ranks.rank} is out of memory{where}: {_refused(error)}"
        if place is None or place[0] == "after":
            return RunError(
                f"{first}; this was not in a step, so --accumulate would not help: free memory, or try smaller networks"
            )
        # A batch finds no room beside what the steps take.
        return RunError(
            f"{first}; try {', '.join([*_accumulated(run), 'a smaller --global-batch-size'])} or smaller networks"
        )

    def _computed(
        self, at: Position, compute: Compute, step: int, stage_step: int, data: dict[str, tf.Tensor]
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        self._place = "in", step, at
        try:
            results = compute(step, stage_step, data)
        except OUT_OF_MEMORY as error:
            raise self.failure(error) from error
        self._place = "after", step, at
        return results


def _accumulated(run: Run) -> list[str]:
    """The next value of --accumulate that at least halves a rank's micro-batches, if there is one."""
    batch, ranks, now = run.config.global_batch_size, run.ranks, run.config.accumulate
    divided = batch if ranks.slice_unit else batch // ranks.size
    values = (value for value in range(2 * now, batch // ranks.size + 1) if divided % value == 0)
    return [f"--accumulate {value}" for value in [next(values, None)] if value]


def _refused(error: Exception) -> str:
    """What could not be allocated, and for which operation."""
    text = in_one_line(error)
    tensor = re.search(r"OOM when allocating tensor with shape\[([\d,]*)\] and type (\w+)", text)
    if tensor is None:
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    node = re.search(r"\{\{node ([^}]+)\}\}", text)
    of = f" for {node[1]}" if node else ""
    return f"no room for a tensor of shape ({tensor[1].replace(',', ', ')}) and type {tensor[2]}{of}"
