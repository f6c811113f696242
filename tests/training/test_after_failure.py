"""A run that fails still names the updates that were skipped before.

Modules: training.pending, training.bad_updates.
"""

import dataclasses

import saved
from hvdgan.cli.errors import RunError
from hvdgan.data.batches import Batches
from hvdgan.distributed.ranks import Ranks
from hvdgan.networks import device


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
