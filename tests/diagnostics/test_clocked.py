"""The bench waits for steps as the training loop does: on a GPU some steps behind, and for all where measuring ends."""

import threading

import numpy as np
import pytest

from hvdgan.diagnostics.speed.blocks import Clock, plan
from hvdgan.diagnostics.speed.clocked import Ends
from hvdgan.networks.devices import device


class Verdict:
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
    verdicts = [Verdict() for _ in range(12)]
    for step, verdict in enumerate(verdicts):
        settle = step == len(verdicts) - 1
        ended = step + 1 - (0 if settle else behind)
        for each in verdicts[: max(ended, 0)]:
            each.ended.set()
        ends.wait(verdict, settle=settle)
        assert verdict.requested.wait(5), "a later request would wait for the next step, too"
        assert all(each.was_read for each in verdicts[: max(ended, 0)])


def test_all_steps_end_where_the_measured_ones_begin_and_end():
    clock = Clock(plan(4, 1, 3, several=False))  # warm-up 0 and 1, then lead 2 to 4 and measured 5 and 6, and so on
    settled = []
    for step in range(clock.steps):
        clock.enter(step)
        settled += [step] if clock.settles else []
        clock.add(1.0, 0.0, 1.0)
    assert settled == [1, *(begin + place for begin in (2, 7, 12) for place in (2, 4))]
