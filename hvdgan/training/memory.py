"""The most memory that this process has taken, and what to do where there is too little."""

import re
import textwrap
from pathlib import Path

import tensorflow as tf

from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import RunError, in_one_line
from hvdgan.recipe.stages import Stage
from hvdgan.training.build import Run

OUT_OF_MEMORY = (MemoryError, tf.errors.ResourceExhaustedError)


def forget_peak() -> None:
    """Let the peak of the GPU begin again; the system counts that of a process from its start."""
    if _has_gpu():
        tf.config.experimental.reset_memory_stats("GPU:0")


def used_by(stage: Stage, ranks: Ranks) -> str:
    """Describe the most memory that a rank has taken; every rank calls this at the end of a stage."""
    if _has_gpu():
        whose, peak = "GPU", tf.config.experimental.get_memory_info("GPU:0")["peak"]
    else:
        # Not ru_maxrss, which includes the memory of the launcher that this process was forked from.
        lines = Path("/proc/self/status").read_text().splitlines()
        whose = "process"
        peak = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    peaks = ranks.gather(peak, "peak memory")
    return f"stage {stage.name}: peak memory of a {whose} {max(peaks) / 1e9:,.3g} GB, on rank {peaks.index(max(peaks))}"


def _has_gpu() -> bool:
    return bool(tf.config.list_logical_devices("GPU"))


class MemoryGuard:
    """Describes a lack of memory in one line."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.where = ""
        """the step that has begun last, in words"""

    def failure(self, error: Exception) -> RunError:
        """Describe a lack of memory; a batch or an evaluation finds no room beside what the steps take."""
        batch, ranks, now = self._run.config.global_batch_size, self._run.ranks, self._run.config.accumulate
        divided = batch if ranks.slice_unit else batch // ranks.size
        # The next value that at least halves a rank's micro-batches, if there is one.
        values = [value for value in range(2 * now, batch // ranks.size + 1) if divided % value == 0]
        more = f"--accumulate {values[0]}, " if values else ""
        return RunError(
            f"rank {ranks.rank} is out of memory{self.where}: {_refused(error)}; try {more}a smaller "
            "--global-batch-size or smaller networks"
        )


def _refused(error: Exception) -> str:
    """What could not be allocated, and for which operation."""
    text = in_one_line(error)
    found = re.search(r"OOM when allocating (tensor with shape\S* and type \w+).*\{\{node ([^}]+)\}\}", text)
    return f"no room for a {found[1]}, for {found[2]}" if found else textwrap.shorten(text, 200, placeholder="...")
