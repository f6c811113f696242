"""The metrics of a run: curves keep their extremes, columns their names, and steps that trace graphs do not count."""

import numpy as np
import pytest

import run_folders
from hvdgan.runs import folder, metrics
from hvdgan.runs.folder import Folder
from hvdgan.runs.metrics import POINTS, Series
from run_folders import record


def read(path, *lines, resumptions=()):
    read = Folder(run_folders.write(path, metrics="".join(lines)))
    return metrics.read(read, resumptions), read.remarks


def test_the_best_is_the_largest_of_some_metrics():
    names = ["eval/modes", "eval/mode_good", "eval/hole_psnr", "eval/mode_kl", "eval/frechet"]
    assert [metrics.mode_of(name) for name in names] == ["max"] * 3 + ["min"] * 2


def test_a_series_keeps_its_extremes_however_it_is_read_and_counts_what_is_not_finite():
    values = np.random.default_rng(0).normal(size=200_000)
    values[150_000], values[77] = np.nan, 50.0
    series = Series("loss")
    for begin in range(0, len(values), 3_000):
        series.add(np.arange(begin, min(begin + 3_000, len(values))), values[begin : begin + 3_000])
    steps, kept = series.curve()
    assert len(steps) <= POINTS and kept.max() == 50.0 and kept.min() == np.nanmin(values)
    assert (series.count, series.not_finite) == (199_999, 1)
    assert np.isclose(series.steady, np.nanmean(values)) and series.last == values[-1]
    assert series.best("max") == (77, 50.0) and series.best("min")[1] == np.nanmin(values)


def test_each_value_comes_to_its_own_name_and_step_however_the_names_change(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "_PORTION", 500)
    every = {"a/loss": 1, "b/loss": 2, "eval/fid": 7}
    lines = [
        record(step, **{name: step + many / 10 for name, many in every.items() if step % many == 0})
        for step in range(60)
    ]
    found, remarks = read(
        tmp_path, *lines, record(60, **{"b/loss": 6.5, "a/loss": None}), record(61, odd="high"), '{"eval/fid": 1}\n'
    )
    for name, many in every.items():
        steps, values = found.series[name].curve()
        expected = [*range(0, 60, many), *([60] if name == "b/loss" else [])]
        assert steps.tolist() == expected
        assert values.tolist() == [6.5 if step == 60 else step + many / 10 for step in expected]
    assert found.series["a/loss"].not_finite == 1 and found.last_step == 61
    assert remarks == ["metrics.jsonl: values that are no numbers or without a step are left out (2)"]


def test_steady_times_and_the_clock_leave_out_what_a_start_and_a_stage_begin_with(tmp_path):
    rows = [(10, "first", 9.0), (20, "first", 1.0), (30, "first", 5.0), (40, "first", 1.0), (50, "second", 7.0)]
    lines = [record(step, stage=stage, step_seconds=time, slowest_rank=step % 20 / 10) for step, stage, time in rows]
    found, remarks = read(tmp_path, *lines, record(60, stage="second", step_seconds=3.0), resumptions=[20])
    assert found.steady("step_seconds") == pytest.approx((1.0 + 1.0 + 3.0) / 3) and found.steady("other") is None
    assert [(band.name, band.first, band.last) for band in found.bands] == [("first", 0, 40), ("second", 40, 60)]
    steps, seconds = found.clock.curve()
    assert steps.tolist() == [10, 20, 30, 40, 50, 60] and seconds.tolist() == [90, 100, 150, 160, 230, 260]
    assert found.slowest == {0: 2} and not remarks


def test_the_latest_values_and_those_of_an_empty_folder(tmp_path):
    found, remarks = read(tmp_path / "empty")
    assert not found.series and not remarks and metrics.latest(Folder(tmp_path / "empty")) == {}
    read(tmp_path / "run", record(1, a=1.0, b=2.0), record(2, a=3.0))
    assert metrics.latest(Folder(tmp_path / "run")) == {"step": 2, "stage": "both", "stage_step": 2, "a": 3.0, "b": 2.0}
