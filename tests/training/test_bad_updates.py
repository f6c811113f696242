"""Updates whose loss or gradients are not finite are skipped and counted; many in a row end the run."""

import json
import threading

import tensorflow as tf

from hvdgan.checkpoints import checkpoint
from hvdgan.recipe.stages import Stage, Update
from hvdgan.training.bad_updates import BadUpdates
from saved import TINY, manifest, train
from tiny import Tiny


def test_steps_that_are_not_finite_are_skipped_and_counted(tmp_path, capsys):
    """The third step alone is not finite; the judge keeps its weights in it, and the run continues."""
    flags = ["--recipe", "tiny:Exploding", *TINY[2:], "--checkpoint-every", "1", "--keep", "0"]
    assert train(tmp_path, flags=flags) == 0
    skipped = "update judge: loss or gradients are not finite; every rank skips the update (1 in a row)"
    assert f"step 2, stage adversarial, {skipped}" in capsys.readouterr().err
    assert train(tmp_path / "strict", "--max-bad-steps", "1", flags=flags) == 1
    error = capsys.readouterr().err
    assert "update judge: loss or gradients are not finite (rank 0: loss, discriminator/" in error
    assert (tmp_path / "strict" / "checkpoints" / "latest").read_text().strip() == "step-00000002"


class Infinite(Tiny):
    """A loss that is infinite while its gradients are finite."""

    def fool(self, nets, batch):
        loss, metrics = super().fool(nets, batch)
        return loss + tf.constant(float("inf")), metrics


def test_a_loss_that_is_not_finite_counts_too_and_max_bad_steps_in_a_row_end_the_run(tmp_path, capsys):
    flags = ["--recipe", "test_bad_updates:Infinite", *TINY[2:]]
    assert train(tmp_path, "--max-bad-steps", "3", flags=flags) == 1
    error = capsys.readouterr().err
    assert (
        "(2 in a row)" in error and "step 2, stage adversarial, update fool" in error and "3 step(s) in a row" in error
    )


def test_bad_steps_in_a_row_are_counted_over_a_resume(tmp_path, capsys):
    flags = ["--recipe", "test_bad_updates:Infinite", *TINY[2:], "--max-bad-steps", "3"]
    assert train(tmp_path, "--max-steps", "2", flags=flags) == 0
    assert train(tmp_path, "--max-steps", "8", flags=flags) == 1
    assert "step 2, stage adversarial" in capsys.readouterr().err


def test_a_checkpoint_holds_the_counts_of_its_own_step(tmp_path, monkeypatch):
    """It is written while the steps go on: here not before two more were bad."""
    later = threading.Event()
    write, count = checkpoint.write, BadUpdates.count

    def write_late(folder, snapshot):
        assert snapshot.step > 2 or later.wait(60)
        return write(folder, snapshot)

    def counted(counter, stage, step, *more):
        count(counter, stage, step, *more)
        if step == 3:
            later.set()

    monkeypatch.setattr(checkpoint, "write", write_late)
    monkeypatch.setattr(BadUpdates, "count", counted)
    flags = ["--recipe", "test_bad_updates:Infinite", *TINY[2:]]
    assert train(tmp_path, "--max-steps", "5", "--checkpoint-every", "2", "--keep", "0", flags=flags) == 0
    assert [manifest(tmp_path, step)["progress"]["bad_updates"] for step in (2, 5)] == [
        {"adversarial/fool": 2},
        {"adversarial/fool": 5},
    ]


def test_the_other_updates_of_a_step_are_recorded(tmp_path):
    flags = ["--recipe", "test_bad_updates:Infinite", *TINY[2:]]
    assert train(tmp_path, "--max-steps", "2", flags=flags) == 0
    record = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert {"judge/loss", "step_seconds"} <= record.keys() and not [name for name in record if "fool" in name]


class SometimesInfinite(Infinite):
    """Its generator's update is due at every other step."""

    def stages(self):
        judge = Update("judge", owns=["discriminator"], loss=self.judge)
        fool = Update("fool", owns=["generator"], loss=self.fool, every=2)
        return [Stage("adversarial", self.options.steps, [judge, fool])]


def test_updates_that_are_not_always_due_are_counted_on_their_own(tmp_path, capsys):
    flags = ["--recipe", "test_bad_updates:SometimesInfinite", *TINY[2:], "--max-bad-steps", "3"]
    assert train(tmp_path, flags=flags) == 1
    assert "step 5, stage adversarial, update fool: loss or gradients are not finite" in capsys.readouterr().err
