"""Comparisons that nobody has asked for: at checkpoints, in little time, without a trace in what is trained.
Modules: evaluation.comparison"""

import math

import numpy as np
import pytest
import tensorflow as tf

import saved
from hvdgan import report
from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import RunError
from hvdgan.evaluation import comparison
from hvdgan.evaluation.comparison import Pace
from hvdgan.pages import run_facts
from hvdgan.settings.evaluation import PLAIN_MEASURE
from thread_ranks import Threads
from tiny import Tiny

SAVING = [*saved.TINY, "--checkpoint-every", "4"]


class Cropped(Tiny):
    """What it generates has another shape than the data."""

    def generate(self, nets, batch):
        return nets.generator(batch.latents)[:, :4]


class Diverged(Tiny):
    """Its samples are not finite."""

    def generate(self, nets, batch):
        return nets.generator(batch.latents) + math.nan


class Named(Tiny):
    """Its metric has the name of a distance."""

    def evaluate(self, nets, batch):
        return {"histogram": tf.reduce_mean(batch.images, (1, 2, 3))}


@pytest.fixture
def in_time(monkeypatch):
    """There is always time for a comparison."""
    monkeypatch.setattr(comparison, "_SHARE", 1e9)


def compared(run_dir):
    """The values of the measure by their steps."""
    return {each["step"]: each[PLAIN_MEASURE] for each in saved.records(run_dir) if PLAIN_MEASURE in each}


def test_the_time_is_at_most_a_fiftieth_and_what_is_skipped_is_said_once(monkeypatch):
    now, said = [0.0], []
    monkeypatch.setattr(comparison.time, "perf_counter", lambda: now[0])
    pace = Pace(1.0, 512, Ranks())

    def allows(seconds, samples=25_600):
        now[0] = seconds
        return pace.allows("here", samples, said.append)

    assert [allows(1000.0, 25_599), allows(49.9), allows(50.0)] == [False, False, True]
    pace.add(2.0, 1.0)
    assert [allows(149.0), allows(150.0, 0)] == [False, True] and len(said) == 1
    pace.end("there", RunError("broken"), said.append)
    assert not allows(1e9) and said[1:] == ["warning: there: samples are no longer compared with real ones: broken"]


def test_the_ranks_follow_the_clock_of_rank_0():
    answers = {}

    def work(peers):
        pace = Pace(math.inf if peers.rank else 0.0, 512, peers)
        answers[peers.rank] = pace.allows("here", 10**9, print)

    assert Threads().run(work) == [None, None] and answers == {0: True, 1: True}


def test_a_checkpoint_has_its_figure_the_best_is_known_and_the_weights_are_those_without(tmp_path, monkeypatch, capsys):
    """Also if a part of the run has no time for a comparison."""
    assert saved.train(tmp_path / "off", "--eval-samples", "0", flags=SAVING) == 0
    with monkeypatch.context() as patch:
        patch.setattr(comparison, "_SHARE", 1e9)
        assert saved.train(tmp_path / "on", "--max-steps", "6", flags=SAVING) == 0
    capsys.readouterr()
    assert saved.train(tmp_path / "on", flags=SAVING) == 0
    assert capsys.readouterr().err.count("step 8: no comparison") == 1
    found = compared(tmp_path / "on")
    assert [*found] == [4, 6] and compared(tmp_path / "off") == {}
    best = min(found, key=found.get)
    assert saved.manifest(tmp_path / "on", 8)["best"] == {
        **{"metric": PLAIN_MEASURE, "mode": "min", "step": best},
        "value": found[best],
    }
    assert run_facts.read(tmp_path / "on").best == (PLAIN_MEASURE, best, found[best])
    assert saved.manifest(tmp_path / "off", 8)["best"] is None
    assert saved.state(tmp_path / "on", 8) == saved.state(tmp_path / "off", 8)


@pytest.mark.parametrize(
    ("name", "flags", "why"),
    [
        ("Cropped", "", "generate() returns"),
        ("Diverged", "", "is not finite"),
        ("Named", "--holdout 0.1", ""),
        ("Tiny", "--data few.npy --global-batch-size 4", ""),
    ],
)
def test_what_cannot_be_compared_is_trained_all_the_same(name, flags, why, tmp_path, monkeypatch, capsys, in_time):
    monkeypatch.chdir(tmp_path)
    np.save("few.npy", np.arange(5 * 64, dtype=np.uint8).reshape(5, 8, 8))
    words = ["--recipe", f"test_pace:{name}", *flags.split()]
    assert saved.train(tmp_path / "run", *words, flags=SAVING) == 0
    assert compared(tmp_path / "run") == {} and saved.latest(tmp_path / "run") == 8
    warnings = [line for line in capsys.readouterr().err.splitlines() if "no longer compared" in line]
    assert len(warnings) == bool(why) and why in "".join(warnings)


@pytest.mark.long
def test_a_collapse_is_seen_and_the_best_checkpoint_is_the_one_before_it(tmp_path, in_time):
    """On digits: the default recipe learns for 300 steps, and then falls apart at a rate that is far too large."""
    flags = "--nf 8 --checkpoint-every 100 --keep 1 --logger none --report never --run-dir".split()
    flags.append(str(tmp_path))
    assert saved.main([*flags, "--steps", "300", "--learning-rate", "2e-3"]) == 0
    assert saved.main([*flags, "--steps", "500", "--learning-rate", "0.3", "--allow-changed", "learning_rate"]) == 0
    found = compared(tmp_path)
    assert [*found] == [100, 200, 300, 400, 500]
    best = min(found, key=found.get)
    assert best in (200, 300) and min(found[400], found[500]) > 5 * found[best]
    assert saved.steps(tmp_path) == [best, 500]
    assert report.main([str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    assert f"Best {PLAIN_MEASURE}: {found[best]:.4g} at step {best}" in page
