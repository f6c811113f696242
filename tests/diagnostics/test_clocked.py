"""The bench waits for steps as the training loop does: on a GPU some steps behind, and for all where measuring ends."""

import contextlib
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from hvdgan.diagnostics.speed.blocks import Clock, plan
from hvdgan.diagnostics.speed.clocked import ClockedStep, Ends, Session, largest
from hvdgan.distributed.ranks import Ranks
from hvdgan.networks import device
from hvdgan.training.memory import forget_peak


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


class WithoutCommunication(contextlib.nullcontext):
    """A context without communication."""

    ranks = Ranks()


@pytest.mark.parametrize("several", [False, True])
def test_the_peak_of_a_gpu_is_taken_in_each_stage(monkeypatch, several):
    """Without a GPU: TensorFlow's answers are pretended. Steps without all-reduce take more, and do not count."""
    most = {"peak": 0}
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [kind])
    monkeypatch.setattr(tf.config.experimental, "get_memory_info", lambda name: dict(most))
    monkeypatch.setattr(tf.config.experimental, "reset_memory_stats", lambda name: most.update(peak=0))

    def step_that_takes(size):
        def step(*_):
            most["peak"] = max(most["peak"], size)
            return {}, tf.constant([True])

        return step

    class Step(SimpleNamespace):
        def __call__(self, *arguments):
            return step_that_takes(self.size)(*arguments)

        def with_ranks(self, ranks):
            return step_that_takes(2 * self.size)

    session, stages = Session(Ranks(), None, 0.0), []
    for size in (300, 500, 100):
        forget_peak()  # a stage begins
        clocked = ClockedStep(
            Step(stage=None, size=size), WithoutCommunication(), Clock(plan(4, 1, 3, several=several)), session
        )
        for step in range(clocked.clock.steps):
            clocked(step, step, {})
        stages.append(clocked.peak)
    assert [peak["peak_gpu_bytes"] for peak in stages] == [300, 500, 100]
    assert largest(stages)["peak_gpu_bytes"] == 500
