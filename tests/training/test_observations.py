"""What a run observes: skipped updates and broken files, means between two log lines, plateaus, and a slow input.
Modules: training.speeds"""

import json

import numpy as np
import pytest
import tensorflow as tf

from hvdgan.distributed.devices import Device
from hvdgan.distributed.ranks import Ranks
from hvdgan.pages import run_facts
from hvdgan.pages.run_status import status_of
from hvdgan.recipe.stages import Plateau
from hvdgan.settings.config import Config
from hvdgan.training import speeds
from hvdgan.training.observations import BadUpdates, PlateauWatch, without_skipped
from saved import TINY, latest, measured, records, state, train
from tiny import Tiny


def test_a_bottleneck_names_the_slowest_rank_both_rates_and_what_helps():
    config = Config(global_batch_size=64)
    line = speeds.input_speed([[0.1, 1.0], [0.75, 1.0]], config, threads=3, prepared=False).line
    assert line.startswith("warning: input is the bottleneck: rank 1 waits for images 75% of the time; ")
    assert "the pipeline reads 64 images/s, and the steps could take 256" in line
    assert "hvdgan prepare" in line and "--pipeline.cache" in line
    assert "--pipeline.threads" in line and "now 3" in line


def means(compute, wait=0.01, step=0.42):
    """What a rank gathers at a log; all ranks need the same time for a step."""
    return {"step_seconds": step, "wait_seconds": wait, "reduce_seconds": step - wait - compute}


@pytest.fixture
def compared(monkeypatch):
    """A function that makes Speeds of some weights, and the events that they tell."""
    told = []
    monkeypatch.setattr(speeds, "everyones_devices", lambda ranks: [Device("n1", None, 0, "", "", 2)] * ranks.size)
    return lambda *weights: speeds.Speeds(Ranks(size=len(weights)), weights, told.append), told


def test_a_rank_that_is_1_2_times_slower_in_three_logs_in_a_row_is_named_once_until_it_has_recovered(compared):
    of, told = compared
    everyones, almost = of(1, 1, 1, 1), of(1, 1, 1)
    normal, slow = [means(0.3)] * 4, [means(0.3), means(0.32), means(0.3), means(0.4)]
    for step, each in enumerate([slow, slow, normal, slow, slow]):
        everyones.add(step, each)
        almost.add(step, [means(0.3 * ratio, wait=0.0, step=0.357) for ratio in (1.0, 1.0, 1.19)])
    assert told == []
    for step in range(5, 9):
        found = everyones.add(step, slow)
    (event,) = told
    assert "step 5: rank 3 on n1 (CPU, 2 cores) is 1.31 times as slow as the median of the ranks, in 3" in event.line
    assert "it computes 400 ms a step, the median is 300 ms" in event.line
    assert found["compute_seconds_min"] == pytest.approx(0.3) and found["compute_seconds_max"] == pytest.approx(0.4)
    assert found["compute_seconds_median"] == pytest.approx(0.31) and found["slowest_rank"] == 3
    for step, each in enumerate([normal, slow, slow, slow, normal, normal, normal, slow, slow, slow], start=9):
        everyones.add(step, each)
    assert [event.step for event in told] == [5, 18]
    for step in range(3):
        almost.add(step, [means(0.3 * ratio, wait=0.0, step=0.363) for ratio in (1.0, 1.0, 1.21)])
    assert [(event.step, event.rank, event.ratio) for event in told[2:]] == [(2, 2, 1.21)]


def test_nothing_is_told_of_more_samples_of_steps_that_only_exchange_or_of_waits_that_are_not_known(compared):
    of, told = compared
    uneven, exchanging, on_gpus, alone = of(1.5, 0.75, 0.75), of(1, 1), of(1, 1), of(1)
    for step in range(4):
        uneven.add(step, [means(0.6, wait=0.02, step=0.7), means(0.3, step=0.7), means(0.3, step=0.7)])
        exchanging.add(step, [means(0.02, step=0.2), means(0.01, step=0.2)])
        found = on_gpus.add(step, [{"step_seconds": 1.0, "wait_seconds": wait} for wait in (0.1, 0.5)])
    assert told == [] and found == {"wait_seconds_min": 0.1, "wait_seconds_median": 0.3, "wait_seconds_max": 0.5}
    assert alone.add(0, [means(0.3)]) == {}


def test_steps_that_are_not_finite_are_skipped_and_counted(tmp_path, capsys):
    """The third step alone is not finite; the judge keeps its weights in it, and the run continues."""
    flags = ["--recipe", "tiny:Exploding", *TINY[2:], "--checkpoint-every", "1", "--keep", "0"]
    assert train(tmp_path, flags=flags) == 0
    skipped = "update judge: loss or gradients are not finite; every rank skips the update (1 in a row)"
    assert f"step 2, stage adversarial, {skipped}" in capsys.readouterr().err
    assert train(tmp_path / "strict", "--max-bad-steps", "1", flags=flags) == 1
    error = capsys.readouterr().err
    assert "update judge: loss or gradients are not finite (rank 0: loss, discriminator/" in error
    assert latest(tmp_path / "strict") == 2


class Infinite(Tiny):
    """A loss that is infinite while its gradients are finite."""

    def fool(self, nets, batch):
        loss, metrics = super().fool(nets, batch)
        return loss + tf.constant(float("inf")), metrics


def test_bad_steps_in_a_row_are_counted_over_a_resume(tmp_path, capsys):
    flags = ["--recipe", "test_observations:Infinite", *TINY[2:], "--max-bad-steps", "3"]
    assert train(tmp_path, "--max-steps", "2", flags=flags) == 0
    (record,) = records(tmp_path)
    assert {"judge/loss", "step_seconds"} <= record.keys() and not [name for name in record if "fool" in name]
    assert train(tmp_path, "--max-steps", "8", flags=flags) == 1
    error = capsys.readouterr().err
    assert "step 2, stage adversarial, update fool" in error and "3 step(s) in a row" in error
    assert "step 3, " not in error


def test_a_good_step_ends_a_row_of_bad_ones_and_a_lowered_loss_scale_counts_for_none():
    bad = BadUpdates({})
    rows = [list(bad.add("fit", {}, {"judge": skipped})) for skipped in (True, True, False, True)]
    assert rows == [[("judge", 1)], [("judge", 2)], [], [("judge", 1)]]
    assert not list(bad.add("fit", {"judge/loss_scale": 2.0}, {"judge": True}))
    metrics = {"judge/loss": 1.0, "judge/applied": 0.0, "judge/loss_scale": 2.0, "fool/loss": 1.0}
    kept = without_skipped(metrics, {"judge": True, "fool": False})
    assert kept.keys() == metrics.keys() - {"judge/loss"}


def test_a_log_has_the_means_of_the_steps_since_the_last_one_also_of_those_before_a_resume(tmp_path):
    for name, every, stops in (("each", "1", ["8"]), ("whole", "4", ["8"]), ("cut", "4", ["2", "8"])):
        for last in stops:
            assert train(tmp_path / name, "--log-every", every, "--max-steps", last) == 0
    each, whole, (first, *cut) = (measured(tmp_path / name) for name in ("each", "whole", "cut"))
    assert cut == whole and [record["step"] for record in (first, *cut)] == [2, 4, 8]
    losses = np.array([record["judge/loss"] for record in each])
    expected = [losses[:2].mean(), losses[:4].mean(), losses[4:].mean()]
    assert [record["judge/loss"] for record in (first, *cut)] == pytest.approx(expected)


RULE = Plateau("fool/loss", window=2, patience=2)


def ends_at(values, rule=RULE):
    """After how many steps the stage ends, with an interruption before each; None: it does not."""
    watch = PlateauWatch(rule)
    for step, value in enumerate(values, start=1):
        watch = PlateauWatch(rule, json.loads(json.dumps(watch.state())))
        watch.add({rule.metric: value, "other": 0.0})
        if watch.is_over(step, Ranks(), [1.0]):
            return step
    return None


def test_a_stage_ends_after_patience_windows_that_are_not_better():
    assert ends_at([5, 5, 4, 4, 3, 3, 3, 3, 3, 3]) == 10
    assert ends_at([5, 5, 4, 4, 3, 3, 3, 3, 2, 2, 9, 9]) is None
    assert ends_at([5, 1, 1, 5, 5, 1]) == 6  # means count, and equal is not better
    delta = Plateau("fool/loss", window=1, patience=2, min_delta=0.5)
    assert (ends_at([5, 4.4, 4.2, 4.1], delta), ends_at([5, 4.4, 4.2, 3.8], delta)) == (4, None)
    assert ends_at([4, 3, 2], Plateau("eval/psnr", window=1, patience=2)) == 3  # more is better
    nan = float("nan")  # not better, and no best
    assert ends_at([nan, 5, 4, nan, 4, nan], Plateau("fool/loss", window=1, patience=3)) == 6


@pytest.mark.long
def test_the_next_stage_begins_where_the_first_has_ended_also_after_a_resume(tmp_path):
    """Windows of 2: the first is the best, two more are not better: 6 steps of 40."""
    flags = "--recipe stateful:Ending --image-size 8 --global-batch-size 4".split()
    flags += "--log-every 1 --checkpoint-every 1".split()
    assert train(tmp_path / "whole", flags=flags) == 0
    assert [record["stage"] for record in records(tmp_path / "whole")] == ["first"] * 6 + ["second"] * 3
    log = (tmp_path / "whole" / "log.txt").read_text()
    assert "stage first ends after 6 of 40 steps: judge/steady no longer improves; this run ends at step 9" in log
    status = status_of(run_facts.read(tmp_path / "whole"))
    assert (status.sentence, status.resume) == ("Finished at step 9", "")
    for last in ("3", "7", "100"):  # within the first stage, and after its early end
        assert train(tmp_path / "cut", "--max-steps", last, flags=flags) == 0
    assert [record["stage"] for record in records(tmp_path / "cut")] == ["first"] * 6 + ["second"] * 3
    assert state(tmp_path / "whole", 9) == state(tmp_path / "cut", 9)
