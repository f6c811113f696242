"""Several runs on one page: sorted by a metric, with the settings that differ.

Modules: pages.comparison.
"""

import json
import re

import pytest

import page_facts
import run_folders
from hvdgan import report
from run_folders import record


@pytest.fixture
def runs(tmp_path):
    """Three runs of a sweep, the second of which was the best at its first step."""
    for name, seed, losses in (("a", 0, (3.0, 2.0)), ("b", 1, (1.0, 5.0)), ("c", 2, (4.0, 4.0))):
        lines = [record(step, **{"judge/loss": loss, "images_per_sec": 9.0}) for step, loss in enumerate(losses, 1)]
        config = f'{{"recipe": "dcgan", "seed": {seed}, "run_dir": "runs/{name}"}}'
        run_folders.grid(run_folders.write(tmp_path / "runs" / name, metrics="".join(lines), config=config))
    return tmp_path / "runs"


def order(page):
    """The names of the runs in the table."""
    return re.findall(r'<tr><th scope="row" class="s">(\w)</th>', table(page))


def table(page):
    """The table of runs."""
    return page.partition('<h2 id="runs">')[2].partition("</table>")[0]


def test_a_folder_of_runs_is_sorted_by_the_best_value(runs, tmp_path):
    out = tmp_path / "page.html"
    assert report.main([str(runs), "--out", str(out)]) == 0
    page = out.read_text()
    assert order(page) == ["b", "a", "c"] and "Sorted by the best value of judge/loss, the smallest first" in page
    assert page.count('alt="Grid') == 3 and "Latest samples" in page
    settings = table(page)
    assert "--seed" in settings and "--recipe" not in settings and "--run-dir" not in settings
    assert report.main([str(runs), "--sort-by", "judge/loss", "--sort-mode", "max", "--out", str(out)]) == 0
    assert order(out.read_text()) == ["b", "c", "a"]


def test_the_best_metric_sorts_although_a_run_has_died_before_its_first_evaluation(tmp_path):
    """Its --best-mode is that of no other metric."""
    config = '{"best_metric": "eval/psnr", "best_mode": "max"}'
    for name, values in (("a", {}), ("b", {"eval/psnr": 20.0, "eval/fid": 3.0}), ("c", {"eval/psnr": 30.0})):
        metrics = record(1, **{"judge/loss": 1.0, **values})
        run_folders.write(tmp_path / "runs" / name, metrics=metrics, config=config)
    out = tmp_path / "page.html"
    assert report.main([str(tmp_path / "runs"), "--out", str(out)]) == 0
    assert order(out.read_text()) == ["c", "b", "a"]
    assert "Sorted by the best value of eval/psnr, the largest first" in out.read_text()
    for metric in ("eval/fid", "judge/loss"):
        assert report.main([str(tmp_path / "runs"), "--sort-by", metric, "--out", str(out)]) == 0
        assert f"Sorted by the best value of {metric}, the smallest first" in out.read_text()


@pytest.mark.parametrize(
    ("metric", "mode"),
    [("eval/hole_psnr", "max"), ("eval/precision", "max"), ("eval/inception_score", "max"), ("eval/fid", "min")],
)
def test_without_a_mode_the_best_value_is_that_of_the_metrics_kind(tmp_path, metric, mode):
    for name, value in (("a", 20.0), ("b", 30.0)):
        run_folders.write(tmp_path / "runs" / name, metrics=record(1, **{metric: value}))
    assert report.main([str(tmp_path / "runs"), "--out", str(tmp_path / "page.html")]) == 0
    assert order((tmp_path / "page.html").read_text()) == (["b", "a"] if mode == "max" else ["a", "b"])


def test_a_link_to_a_run_is_no_other_run_and_a_folder_of_sweeps_has_runs(runs, tmp_path):
    (runs / "latest").symlink_to(runs / "b")
    run_folders.write(tmp_path / "others" / "lr1" / "d", metrics=record(1, **{"judge/loss": 0.5}))
    words = [str(runs), str(tmp_path / "others"), "--out", str(tmp_path / "page.html")]
    assert report.main(words) == 0
    assert order((tmp_path / "page.html").read_text()) == ["d", "b", "a", "c"]


def test_evaluations_that_were_made_afterwards_sort_runs_and_have_curves(runs, tmp_path):
    for name, figure in (("a", 3.0), ("b", 2.0), ("c", 1.0)):
        lines = [{"step": step, "eval/fid": value} for step, value in ((2, figure), (1, 9.0), (1, 8.0))]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (runs / name / "evaluation.jsonl").write_text(text)
    out = tmp_path / "page.html"
    assert report.main([str(runs), "--sort-by", "eval/fid", "--out", str(out)]) == 0
    assert order(out.read_text()) == ["c", "b", "a"]
    assert report.main([str(runs / "a")]) == 0
    page = (runs / "a" / "report.html").read_text()
    assert page_facts.charts(page)["eval/fid"][0][2].tolist() == [8.0, 3.0]


def test_flags_without_a_meaning_are_refused(runs, capsys):
    for words in ([str(runs), "--sort-by", "eval/fid"], [str(runs / "a"), "--sort-by", "judge/loss"]):
        assert report.main(words) == 2 and "--sort-by" in capsys.readouterr().err
    assert not (runs / "report.html").exists()


def test_the_speed_of_each_run_is_its_mean(runs, tmp_path):
    """The last record may hold a single step, and the first one the time of tracing."""
    times = [{"step_seconds": seconds, "images_per_sec": 8 / seconds} for seconds in (9.0, 0.1, 0.3, 4.4)]
    lines = [record(step, **each) for step, each in enumerate(times, 1)]
    run_folders.write(runs / "a", metrics="".join(lines), config='{"global_batch_size": 8}')
    out = tmp_path / "page.html"
    assert report.main([str(runs), "--out", str(out)]) == 0
    assert re.search(r">a</th>.*?>5</td>", table(out.read_text()))
    assert report.main([str(runs / "a")]) == 0
    assert "<dt>images/s, mean</dt><dd>5</dd>" in (runs / "a" / "report.html").read_text()


@pytest.mark.parametrize("name", ["events.jsonl", "config.json"])
def test_a_file_beside_the_runs_does_not_make_their_folder_a_run(runs, tmp_path, name):
    (runs / name).write_text("{}")
    assert report.main([str(runs), "--out", str(tmp_path / "page.html")]) == 0
    assert "3 runs compared" in (tmp_path / "page.html").read_text()
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / name).write_text("{}")
    assert report.main([str(tmp_path / "begun")]) == 0, "a run that has not made a step"


def test_options_that_a_recipe_lacks_are_left_out_and_columns_can_be_sorted(tmp_path):
    for name, config in (("a", {"seed": 1, "nf": 8}), ("b", {"seed": 2, "norm": "batch"})):
        run_folders.write(tmp_path / "runs" / name, metrics=record(1, loss=1.0), config=json.dumps(config))
    assert report.main([str(tmp_path / "runs"), "--out", str(tmp_path / "page.html")]) == 0
    heads = re.findall('<button type="button">(.*?)</button>', table((tmp_path / "page.html").read_text()))
    assert heads == ["run", "images/s", "state", "--seed"]
