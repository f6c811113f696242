"""A run that fails still names the updates that were skipped before.

Modules: training.pending, training.bad_updates.
"""

import dataclasses
import threading

import numpy as np

import saved
from building import tiny_run
from hvdgan.cli.errors import RunError
from hvdgan.data.batches import Batches
from hvdgan.distributed.ranks import Ranks
from hvdgan.networks.devices import device
from hvdgan.training.observations import Observations
from hvdgan.training.pending import PendingStep, PendingSteps
from hvdgan.training.resume_point import ResumePoint


def test_updates_that_were_skipped_before_the_data_failed_are_named(tmp_path, capsys, monkeypatch):
    """The other ranks are elsewhere then, so nothing is gathered, however many updates were bad."""
    happened, taken, next_batch, gather = [], [], Batches.__next__, Ranks.gather

    def failing(batches):
        if len(taken) == 3:
            happened.append("failed")
            raise RunError("the data are gone")
        taken.append(next_batch(batches))
        return taken[-1]

    def gathered(ranks, value, name):
        happened.append(name)
        return gather(ranks, value, name)

    monkeypatch.setattr(Batches, "__next__", failing)
    monkeypatch.setattr(Ranks, "gather", gathered)
    flags = ["--recipe", "test_bad_updates:Infinite", *saved.TINY[2:], "--max-bad-steps", "3"]
    flags[flags.index("--log-every") + 1] = "50"
    with device.computing_as(dataclasses.replace(device.CPU, steps_behind=4)):
        assert saved.train(tmp_path, flags=flags) == 1
    error, log = capsys.readouterr().err, (tmp_path / "log.txt").read_text()
    for step in range(3):
        line = f"step {step}, stage adversarial, update fool: loss or gradients are not finite; every rank skips"
        assert error.count(line) == log.count(line) == 1, error
        assert f"({step + 1} in a row)" in log
    assert "stopped: the data are gone" in log and happened[happened.index("failed") :] == ["failed"]


class Verdict:
    """Verdicts of which one is not finite, and known when an event has happened."""

    def __init__(self, known):
        self.known = known

    def numpy(self):
        assert self.known.wait(60)
        return np.array([True, False])  # of the discriminator and the generator


def test_a_verdict_that_never_comes_is_not_awaited():
    """As if another rank were lost."""
    run, never, said = tiny_run(), threading.Event(), []

    class Said:
        def say(self, line):
            pass

        def tell(self, event):
            pass

        def tell_alone(self, event, rank):
            said.append(event.line)

    now = threading.Event()
    now.set()
    outstanding = PendingSteps(Observations(run, ResumePoint(), Said()), 4)
    for step, known in enumerate((now, never, now)):
        outstanding.add(PendingStep(step, run.schedule.at(step), {}, {}, Verdict(known), 0.0, 0.0, 0.0))
    outstanding.settle_after_failure(seconds=0.2)
    never.set()
    assert [line.partition(",")[0] for line in said] == ["warning: step 0"]
