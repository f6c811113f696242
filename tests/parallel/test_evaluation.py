"""Evaluations by two ranks: their sums, and errors in images or in a recipe on one rank, which all ranks raise."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from building import tiny_run
from hvdgan.data import BadImage
from hvdgan.errors import RankFailed, RunError
from hvdgan.evaluation.held_out import Evaluator
from measured import Bright, Measured
from tiny import Tiny


def test_more_ranks_than_images_in_a_batch_give_the_figures_of_one(ranks):
    """As hvdgan.evaluate on more ranks than a run was trained on; one of the metrics is a random draw."""
    run = tiny_run(Measured, global_batch_size=1)
    parts = run.recipe, run.state.sampling_nets, run.held_out
    together = Evaluator(*parts, dataclasses.replace(ranks, slice_unit=1), run.config)()
    assert together == pytest.approx(Evaluator(*parts, run.ranks, run.config)(), rel=1e-6)


def test_the_images_that_the_other_can_read_are_enough_and_none_are_too_few(ranks):
    run = tiny_run(Bright, ranks=ranks)

    def broken(indices):
        raise BadImage(f"{np.ravel(indices)[0]}", "broken")

    if ranks.rank:
        run.held_out.fetch = run.held_out.fetch_batch = broken
    evaluator = Evaluator(run.recipe, run.state.sampling_nets, run.held_out, ranks, run.config)
    assert -1 < evaluator()["eval/brightness"] < 1
    assert len(evaluator.bad_files) == (48 if ranks.rank else 0)  # its halves of 6 whole batches
    run.held_out.fetch = run.held_out.fetch_batch = broken
    with pytest.raises(RunError, match="none of the 100 images held out can be read; the first: 0: broken"):
        evaluator()


def test_the_modes_of_all_samples_are_counted(ranks):
    """A picture is in the mode of its brightest block, if this is bright."""

    class Sorted(Tiny):
        def features(self, nets, batch):
            blocks = tf.reshape(tf.nn.avg_pool2d(batch.images, 2, 2, "VALID"), (-1, 16))
            is_good = tf.reduce_max(blocks, axis=1, keepdims=True) > 0.25
            return blocks, tf.one_hot(tf.argmax(blocks, axis=1), 16) * tf.cast(is_good, tf.float32)

    settings = {"eval_samples": 101, "eval_features": "recipe"}
    alone = tiny_run(Sorted, **settings).comparison(print)
    together = tiny_run(Sorted, ranks=ranks, **settings).comparison(print)
    names = ("eval/modes", "eval/mode_good", "eval/mode_kl", "eval/inception_score")
    assert [together[name] for name in names] == pytest.approx([alone[name] for name in names], rel=1e-12)
    assert alone["eval/modes"] > 3 and 0 < alone["eval/mode_good"] < 1 and alone["eval/mode_kl"] > 0


def test_an_error_on_one_rank_is_raised_on_both(ranks):
    run = tiny_run(Measured, ranks=ranks, eval_samples=40)

    def failing(error):
        def work(peers):
            raise error

        return work

    if ranks.rank:
        run.held_out.fetch_batch = failing(RunError("the disk of rank 1"))
        run.comparison.reals.batches = failing(ValueError("odd"))
    with pytest.raises(RunError, match="the disk of rank 1"):
        Evaluator(run.recipe, run.state.sampling_nets, run.held_out, ranks, run.config)()
    with pytest.raises(RankFailed, match=r"^rank 1 failed: ValueError\('odd'\)"):
        run.comparison(print)


def test_features_that_differ_between_hosts_are_refused(ranks, tmp_path, monkeypatch):
    """The file of the same name is another one on rank 1."""
    monkeypatch.chdir(tmp_path)
    keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), layers.Dense(2)]).save("local.keras")
    with pytest.raises(RunError, match="the ranks disagree on the features of evaluations: SHA-256 is"):
        tiny_run(ranks=ranks, eval_samples=40, eval_features="local.keras")
