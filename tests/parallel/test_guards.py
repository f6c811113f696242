"""Ranks skip the same step and stop after the same step."""

import importlib
import os
import signal

import pytest

from building import data_of, tiny_run
from hvdgan.errors import RunError
from hvdgan.recipe.stage_plan import Position
from hvdgan.training.digests import check_ranks
from hvdgan.training.loop import Loop
from hvdgan.training.page import Page
from hvdgan.training.record import Record
from hvdgan.training.saving import Commits, ResumePoint
from hvdgan.training.stopping import Stopping
from tiny import Tiny


def test_ranks_that_have_drifted_apart_stop_and_name_the_variables(ranks):
    run = tiny_run(ranks=ranks)
    check_ranks(ranks, run.state, 1)
    kernel = run.state.networks["generator"].trainable_variables[0]
    if ranks.rank == 1:
        kernel.assign(kernel + 1e-6)
    with pytest.raises(RunError, match=r"step 1: .* 1 of \d+ tensors: networks/generator/generator/dense.*/kernel;"):
        check_ranks(ranks, run.state, 1)


def test_an_update_that_is_not_finite_on_one_rank_is_skipped_by_both_and_the_rank_is_named(ranks, tmp_path):
    class OnRank1(Tiny):
        def judge(self, nets, batch):
            loss, metrics = super().judge(nets, batch)
            return loss * (float("nan") if ranks.rank == 1 else 1.0), metrics

    run, found = tiny_run(OnRank1, ranks=ranks, max_bad_steps=2), ResumePoint()
    record = Record(run.run_dir, is_root=False, start_step=0, total_steps=4)
    stopping = Stopping(ranks, tmp_path / "stop", None)
    loop = Loop(run, found, record=record, stopping=stopping, commits=Commits(), page=Page("never"))
    stage = run.plan.stages[0]
    batches = iter([data_of(run)] * 2)
    loop.step(batches, 0, Position(0, stage, 0))
    loop.pending.read_all()
    assert loop.observations.state()["bad_updates"] == {"adversarial/judge": 1}
    with pytest.raises(RunError, match=r"step 1, stage adversarial, update judge: .*\(rank 1: loss, discriminator/"):
        loop.step(batches, 1, Position(0, stage, 1))
        loop.pending.read_all()


def test_a_signal_to_one_rank_stops_both_after_the_same_step(ranks, tmp_path, monkeypatch):
    monkeypatch.setattr("hvdgan.training.stopping.CHECK_SECONDS", 0.0)
    with Stopping(ranks, tmp_path / "stop", None) as stopping:
        answers = [stopping.is_time()]
        if ranks.rank == 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        answers.append(stopping.is_time())
    assert answers == [False, True] and stopping.reason == "rank 1: SIGUSR1"


def test_a_recipe_whose_file_differs_between_ranks_is_named_on_both(ranks, tmp_path, monkeypatch):
    """Each rank reads a file of its own disk; the networks are the same."""
    (tmp_path / "differing.py").write_text(
        f"from tiny import Tiny\n\nclass Differing(Tiny):\n    weight = {ranks.rank}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    recipe = importlib.import_module("differing").Differing
    with pytest.raises(RunError, match='the files of the recipe: differing.py is ".* on rank 0 and ".* on rank 1;'):
        tiny_run(recipe, ranks=ranks)
