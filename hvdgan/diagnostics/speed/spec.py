"""Defines what one launch measures; hvdgan.bench writes it as JSON for the processes it starts."""

import dataclasses

TIMELINE = "timeline.json"
"""name of Horovod's timeline in the folder of a launch"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
    """Settings of a launch; the same for all its processes.

    Args:
        arguments: arguments of hvdgan.train.
        global_batch_size: images per step, of all ranks together or of each copy.
        steps: number of steps to measure, of each kind and stage.
        cores: cores to which each process is bound; 0: an equal share of its host's.
        processes_per_host: largest number of processes on any host.
        copies: number of independent processes; 0: the processes are ranks.
        timeline: True to write Horovod's timeline of some steps.
        began: start of the launch, in seconds since 1970.
        folder: path that all processes share, for results and for the copies' signals.
    """

    arguments: list[str]
    global_batch_size: int
    steps: int
    cores: int
    processes_per_host: int
    copies: int
    timeline: bool
    began: float
    folder: str
