"""Several runs on one page: sorted by a metric, with the settings that differ. Modules: pages.comparison"""

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


@pytest.mark.parametrize(("metric", "mode"), [("eval/hole_psnr", "max"), ("eval/fid", "min")])
def test_without_a_mode_the_best_value_is_that_of_the_metrics_kind(tmp_path, metric, mode):
    for name, value in (("a", 20.0), ("b", 30.0)):
        run_folders.write(tmp_path / "runs" / name, metrics=record(1, **{metric: value}))
    assert report.main([str(tmp_path / "runs"), "--out", str(tmp_path / "page.html")]) == 0
    assert order((tmp_path / "page.html").read_text()) == (["b", "a"] if mode == "max" else ["a", "b"])


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
