"""Updates whose loss or gradients are not finite are skipped, counted and named; many in a row end the run."""

import json
import math
import threading

import pytest
import tensorflow as tf

from building import data_of, stage_step, tiny_run
from hvdgan.checkpoints import checkpoint
from hvdgan.training.observations import Observations, not_finite
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


def test_bad_steps_in_a_row_are_counted_over_a_resume(tmp_path, capsys):
    flags = ["--recipe", "test_bad_updates:Infinite", *TINY[2:], "--max-bad-steps", "3"]
    assert train(tmp_path, "--max-steps", "2", flags=flags) == 0
    record = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert {"judge/loss", "step_seconds"} <= record.keys() and not [name for name in record if "fool" in name]
    assert train(tmp_path, "--max-steps", "8", flags=flags) == 1
    error = capsys.readouterr().err
    assert "step 2, stage adversarial, update fool" in error and "3 step(s) in a row" in error
    assert "step 3, " not in error


def test_a_checkpoint_holds_the_counts_of_its_own_step(tmp_path, monkeypatch):
    """It is written while the steps go on: here not before two more were bad."""
    later = threading.Event()
    write, add = checkpoint.write, Observations.add

    def write_late(folder, snapshot):
        assert snapshot.step > 2 or later.wait(60)
        return write(folder, snapshot)

    def counted(observations, step, *more):
        add(observations, step, *more)
        if step == 3:
            later.set()

    monkeypatch.setattr(checkpoint, "write", write_late)
    monkeypatch.setattr(Observations, "add", counted)
    flags = ["--recipe", "test_bad_updates:Infinite", *TINY[2:]]
    assert train(tmp_path, "--max-steps", "5", "--checkpoint-every", "2", "--keep", "0", flags=flags) == 0
    assert [manifest(tmp_path, step)["progress"]["bad_updates"] for step in (2, 5)] == [
        {"adversarial/fool": 2},
        {"adversarial/fool": 5},
    ]


def has_white(batch):
    return tf.reduce_any(tf.reduce_all(batch.images == 1.0, axis=(1, 2, 3)))


class SickLoss(Tiny):
    """The loss of a batch with a white image is infinite."""

    def judge(self, nets, batch):
        loss, metrics = super().judge(nets, batch)
        return loss + tf.where(has_white(batch), math.inf, 0.0), metrics


class SickGradient(Tiny):
    """The loss of a batch with a white image is finite; its gradient is that of the square root at 0."""

    def judge(self, nets, batch):
        loss, metrics = super().judge(nets, batch)
        return loss + tf.sqrt(tf.where(has_white(batch), 0.0, 1.0) + 0.0 * metrics["real"]), metrics


@pytest.mark.parametrize(("accumulate", "white"), [(1, 5), (4, 15)])
@pytest.mark.parametrize(("recipe", "named"), [(SickLoss, ["loss"]), (SickGradient, [])])
def test_every_micro_batch_is_looked_at(recipe, named, accumulate, white):
    run = tiny_run(recipe, accumulate=accumulate)
    step, data = stage_step(run), data_of(run)
    assert not_finite(step, "judge", 0, data) == []
    images = data["images"].numpy()
    images[white] = 255
    sick = {**data, "images": tf.constant(images)}
    paths = [variable.path for variable in run.state.networks["discriminator"].trainable_variables]
    assert not_finite(step, "judge", 0, sick) == [*named, *paths]
    assert not_finite(step, "fool", 0, sick) == []
