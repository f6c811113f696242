import json

import numpy as np
import pytest
import tensorflow as tf

from building import tiny_run
from hvdgan.errors import UserError
from hvdgan.evaluation import Evaluator
from hvdgan.train import main
from tiny import Tiny

TINY = "--recipe test_evaluation:Measured --image-size 8 --global-batch-size 16 --steps 4".split()


class Measured(Tiny):
    """Its metrics are known: the brightness of an image, its label, and a draw that is the same at every evaluation."""

    def evaluate(self, nets, batch):
        return {
            "brightness": tf.reduce_mean(batch.images, axis=(1, 2, 3)),
            "label": batch.labels,
            "latent": batch.latents[:, 0],
            "made": tf.reduce_mean(nets.generator(batch.latents), axis=(1, 2, 3)),
        }


def test_every_held_out_image_counts_once():
    """90 images in batches of 16: the last is filled up, and the filling must not count."""
    run = tiny_run(Measured)
    assert len(run.held_out) == 100 and len(run.source) == 1697
    values = Evaluator(run.recipe, run.state, run.held_out, run.ranks, run.config)()
    images = run.held_out.fetch_batch(np.arange(100)) / 127.5 - 1
    assert values["eval/brightness"] == pytest.approx(images.mean(), rel=1e-5)
    assert values["eval/label"] == pytest.approx(run.held_out.labels.mean())
    again = Evaluator(run.recipe, run.state, run.held_out, run.ranks, run.config)()
    assert values == again


def test_a_broken_image_is_left_out():
    run = tiny_run(Measured)
    whole = run.held_out.fetch

    def fetch(index):
        if index == 7:
            from hvdgan.data import BadImage

            raise BadImage("7", "broken")
        return whole(index)

    run.held_out.fetch = fetch
    values = Evaluator(run.recipe, run.state, run.held_out, run.ranks, run.config)()
    assert values["eval/label"] == pytest.approx(np.delete(run.held_out.labels, 7).mean())


def test_the_averages_are_what_is_evaluated():
    run = tiny_run(Measured)
    evaluator = Evaluator(run.recipe, run.state, run.held_out, run.ranks, run.config)
    before = evaluator()["eval/made"]
    for variable in run.state.networks["generator"].trainable_variables:
        variable.assign(tf.ones_like(variable.value))
    assert evaluator()["eval/made"] == before
    for average in run.state.ema["generator"]:
        average.assign(tf.ones_like(average.value))
    assert evaluator()["eval/made"] != before


def test_a_run_writes_them_when_they_are_due(tmp_path):
    assert main([*TINY, "--eval-every", "2", "--log-every", "4", "--run-dir", str(tmp_path)]) == 0
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    evaluated = [record for record in records if "eval/brightness" in record]
    assert [record["step"] for record in evaluated] == [2, 4]
    assert evaluated[0]["eval/latent"] == evaluated[1]["eval/latent"]
    assert "held out: eval/brightness" in (tmp_path / "log.txt").read_text()


def few_images(folder):
    """Too few for one of them to be held out by default."""
    np.save(folder / "few.npy", np.stack([np.full((8, 8), number, np.uint8) for number in range(3)]))
    return folder / "few.npy"


def test_how_much_is_held_out_can_be_said_and_must_make_sense(tmp_path):
    assert tiny_run(Measured, holdout=0.0).held_out is None
    assert len(tiny_run(Measured, holdout=0.5).held_out) > 800
    assert tiny_run().held_out is None
    few = tiny_run(Measured, data=str(few_images(tmp_path)))
    assert few.held_out is None and len(few.source) == 3
    with pytest.raises(UserError, match="--holdout 0.1: the recipe has no evaluate"):
        tiny_run(holdout=0.1)
