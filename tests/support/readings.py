"""Records when a run reads a tensor's numbers, by every way that there is in Python, and which thread does."""

import dataclasses
import threading

import tensorflow as tf

from hvdgan.training.step import StageStep


@dataclasses.dataclass
class Readings:
    """What was read so far.

    by_loop: number of steps that had begun, at each reading of the thread that begins them.
    by_others: number of readings of the threads that wait for results.
    begun: number of steps that have begun.
    """

    by_loop: list[int] = dataclasses.field(default_factory=list)
    by_others: int = 0
    begun: int = 0


def recorded(monkeypatch) -> Readings:
    """Record from now on, until the patches are undone."""
    seen, kind, begin = Readings(), type(tf.constant(0.0)), StageStep.__call__
    find = kind._numpy_internal  # not public; without it the tests that record fail  # noqa: SLF001

    def found(tensor):
        thread = threading.current_thread()
        if thread is threading.main_thread():
            seen.by_loop.append(seen.begun)
        elif thread.name.startswith("hvdgan-results"):
            seen.by_others += 1
        return find(tensor)

    def counted(step, *arguments):
        seen.begun += 1
        return begin(step, *arguments)

    monkeypatch.setattr(kind, "_numpy_internal", found)
    monkeypatch.setattr(StageStep, "__call__", counted)
    return seen
