"""The bench waits for steps as the training loop does: on a GPU some steps behind, and for all where measuring ends."""

import threading

import numpy as np
import pytest

from hvdgan.diagnostics.speed.blocks import Clock, plan
from hvdgan.diagnostics.speed.clocked import Ends
from hvdgan.networks import device


class Result:
    """A result that is known when its step has ended."""

    def __init__(self) -> None:
        self.requested, self.ended = threading.Event(), threading.Event()
        self.was_read = False

    def numpy(self) -> np.ndarray:
        self.requested.set()
        assert self.ended.wait(20), "the bench waits for a step that has not ended"
        self.was_read = True
        return np.array([True])


@pytest.mark.parametrize(("choice", "behind"), [(device.CPU, 0), (device.GPU, device.GPU.steps_behind)])
def test_steps_wait_as_far_behind_as_in_training(choice, behind):
    """The newest steps have not ended when the next one begins, and all others are known to have."""
    with device.computing_as(choice):
        ends = Ends()
    results = [Result() for _ in range(12)]
    for step, result in enumerate(results):
        last = step == len(results) - 1
        ended = step + 1 - (0 if last else behind)
        for each in results[: max(ended, 0)]:
            each.ended.set()
        ends.wait(result, all_of_them=last)
        assert result.requested.wait(5), "a later request would wait for the next step, too"
        assert all(each.was_read for each in results[: max(ended, 0)])


def test_all_steps_end_where_the_measured_ones_begin_and_end():
    clock = Clock(plan(4, 1, 3, several=False))  # warm-up 0 and 1, then lead 2 to 4 and measured 5 and 6, and so on
    ended = []
    for step in range(clock.steps):
        clock.enter(step)
        ended += [step] if clock.ends_all else []
        clock.add(1.0, 0.0, 1.0)
    assert ended == [1, *(begin + place for begin in (2, 7, 12) for place in (2, 4))]
