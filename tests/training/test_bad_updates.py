"""Updates whose loss or gradients are not finite are skipped, counted and named; many in a row end the run."""

import json
import math

import tensorflow as tf

from building import data_of, stage_step, tiny_run
from hvdgan.training.observations import not_finite
from saved import TINY, train
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


class SickLoss(Tiny):
    """The loss of a batch with a white image is infinite."""

    def judge(self, nets, batch):
        loss, metrics = super().judge(nets, batch)
        has_white = tf.reduce_any(tf.reduce_all(batch.images == 1.0, axis=(1, 2, 3)))
        return loss + tf.where(has_white, math.inf, 0.0), metrics


def test_every_micro_batch_is_looked_at():
    run = tiny_run(SickLoss, accumulate=4)
    step, data = stage_step(run), data_of(run)
    assert not_finite(step, "judge", 0, data) == []
    images = data["images"].numpy()
    images[15] = 255
    sick = {**data, "images": tf.constant(images)}
    paths = [variable.path for variable in run.state.networks["discriminator"].trainable_variables]
    assert not_finite(step, "judge", 0, sick) == ["loss", *paths]
    assert not_finite(step, "fool", 0, sick) == []
