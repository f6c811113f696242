"""The place from which a run resumes."""

import dataclasses
from typing import Any

import numpy as np

from hvdgan.cli.files.lock import Lock


@dataclasses.dataclass
class ResumePoint:
    """The place from which a run resumes; step 0 in a new run.

    Args:
        step: number of steps done.
        position: number of samples seen, which is the place of the next one in the order of all samples.
        run_id: id of the run that the folder belongs to.
        statistics: (size, n) statistics of each rank; None if the checkpoint has none.
        progress: state of the loop, as it was given to saving.snapshot().
        remarks: lines to log.
        lock: lock of the run folder; None on the ranks that do not write.
        recovered: True if the run resumes from a commit of an elastic run, False from a checkpoint.
    """

    step: int = 0
    position: int = 0
    run_id: str = ""
    statistics: np.ndarray | None = None
    progress: dict[str, Any] = dataclasses.field(default_factory=dict)
    remarks: list[str] = dataclasses.field(default_factory=list)
    lock: Lock | None = None
    recovered: bool = False

    def samples_seen(self, done: int, global_batch_size: int) -> int:
        """Number of samples seen after `done` steps of the run."""
        return self.position + (done - self.step) * global_batch_size
