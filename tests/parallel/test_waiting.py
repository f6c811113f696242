"""Two ranks: between two logs neither reads anything of its device, but for one verdict per step, by other threads.

Modules: training.pending, training.loop.
"""

import contextlib
import dataclasses
from pathlib import Path

from building import data_of, tiny_run
from hvdgan.networks.devices import device
from hvdgan.training.loop import Loop, steps_from
from hvdgan.training.observations import Observations
from hvdgan.training.pending import PendingSteps
from hvdgan.training.periodic import PeriodicTasks
from hvdgan.training.record import Record
from hvdgan.training.resume_point import Commits, ResumePoint
from hvdgan.training.stopping import Stopping
from readings import recorded
from tiny import Tiny, TinyOptions


class Batches(contextlib.nullcontext):
    """The same batch for ever."""

    loaded, bad_files = 0, ()

    def __init__(self, data):
        super().__init__()
        self.data = data

    def __next__(self):
        return self.data


def test_two_ranks_read_nothing_between_two_logs(ranks, tmp_path, monkeypatch):
    """Once a second the ranks ask each other whether to stop; here only before the first step."""
    monkeypatch.setattr("hvdgan.training.stopping.CHECK_SECONDS", 1e9)
    folder = Path(ranks.gather(str(tmp_path), "folder")[0])
    with device.computing_as(dataclasses.replace(device.CPU, branches=False, steps_behind=4)):
        periods = {"log_every": 8, "sample_every": 0, "checkpoint_every": 0, "check_ranks_every": 0}
        run = tiny_run(Tiny, TinyOptions(steps=16), ranks, run_dir=folder, **periods)
        point, record = ResumePoint(), Record(run.run_dir, is_root=False, start_step=0, total_steps=16)
        observations = Observations(run, point, record)
        between = PeriodicTasks(run, point, record, Commits(), observations)
        loop = Loop(run, point, Stopping(ranks, folder / "stop", None), PendingSteps(observations, 4), between)
        batches, seen = Batches(data_of(run)), recorded(monkeypatch)
        assert loop.train(batches, steps_from(run, 0))
    assert set(seen.by_loop) == {0, 8, 16} and seen.by_others == seen.begun == 16
