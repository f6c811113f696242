"""The page of a real run: what it has, and in which order.

Modules: pages.reading.waits.
"""

import re

import pytest

import saved
from hvdgan import report
from hvdgan.pages import run_page
from hvdgan.pages.reading import run_folder
from run_folders import grid, record, write


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a run with two evaluations and a best checkpoint."""
    run = tmp_path_factory.mktemp("runs") / "run"
    words = ["--eval-samples", "16", "--eval-every", "4", "--best-metric", "eval/histogram", "--learning-rate", "0.01"]
    assert saved.train(run, *words) == 0
    assert report.main([str(run)]) == 0
    return (run / "report.html").read_text()


def section(page, name):
    """The part of the page below a heading."""
    return re.search(rf'(?s)<h2 id="{name}">.*?</section>', page)[0]


def test_the_best_checkpoint_is_named_and_marked(page):
    shown = section(page, "evaluations")
    assert re.search(r"Best checkpoint: eval/histogram [\d.]+ at step [48] \(the smallest value is the best\)", shown)
    assert "var(--mark)" in shown


def test_the_times_of_the_checkpoints_are_those_of_the_log(page):
    shown = re.sub("<.*?>", " ", section(page, "speed"))
    assert re.search(r"checkpoints written +1\s", shown)
    assert re.search(r"the steps waited for each +\d+\.\d{3} s, at most \d+\.\d{3} s", shown)
    assert re.search(r"a thread wrote each beside the steps +0\.\d{3} s, at most 0\.\d{3} s", shown)


def waiting(folder, *records):
    """The section about speed of a run of two ranks, whose records name the rank that waits longest for data."""
    times = {"step_seconds": 0.1, "wait_seconds": 0.01}
    lines = [
        record(step, **times, wait_rank=rank, wait_seconds_max=seconds)
        for step, (rank, seconds) in enumerate(records, start=1)
    ]
    return section(run_page.make(run_folder.read(write(folder, metrics="".join(lines)), verify=False)), "speed")


def test_ranks_that_wait_longer_for_data_are_named(tmp_path):
    shown = waiting(tmp_path / "run", (0, 9.0), (1, 0.02), (1, 0.04), (0, 0.01), (7, 0.08))
    rows = re.findall(
        '<th scope="row" class="s">rank ([0-9]+)</th><td class="n">(.*?)</td><td class="n">(.*?)</td>', shown
    )
    assert rows == [("7", "1", "80.0%"), ("1", "2", "30.0%"), ("0", "1", "10.0%")]


def test_ranks_that_wait_equally_long_are_not_named(tmp_path):
    assert "waited longest" not in waiting(tmp_path / "run", *[(rank, 0.0105) for rank in (0, 1, 0, 1)])


def test_records_that_cannot_be_true_name_no_rank(tmp_path):
    wrong = [(-1, 0.05), (0.5, 0.05), (1e9, 0.05), (3, None), (1, 0.05)]
    shown = waiting(tmp_path / "run", (0, 0.05), *wrong)
    assert re.findall("rank ([0-9]+)</th>", shown) == ["1"]


def test_the_best_loss_is_marked_in_the_chart_of_losses(tmp_path):
    write(tmp_path, metrics=record(1, **{"judge/loss": 2.0}) + record(2, **{"judge/loss": 1.0}))
    run = run_folder.read(tmp_path, verify=False)
    assert "var(--mark)" not in section(run_page.make(run), "metrics")
    best = {"metric": "judge/loss", "mode": "min", "value": 1.0, "step": 2}
    run.checkpoints = [run_folder.Saved("step-00000002", 2, {"best": best})]
    page = run_page.make(run)
    assert "var(--mark)" in section(page, "metrics") and "a circle marks it" in section(page, "evaluations")


def test_few_of_many_large_grids_are_decoded(tmp_path, monkeypatch):
    write(tmp_path, metrics=record(1, loss=1.0))
    sizes = [grid(tmp_path, f"step-{step:08d}.png").stat().st_size for step in range(1, 31)]
    for most, count in ((10**9, 24), (5 * sizes[-1], 5), (1, 2)):
        monkeypatch.setattr(run_page, "ALL_GRIDS", most)
        page = run_page.make(run_folder.read(tmp_path, verify=False))
        assert page.count('class="frame"') == count and "Generated, step 1<" in page and "Generated, step 30<" in page


def test_only_options_that_differ_are_listed_and_the_others_are_folded(page):
    shown, _, folded = section(page, "settings").partition("<details>")
    assert "--learning-rate" in shown and "--norm" not in shown and "norm" in folded


def test_the_sections_follow_each_other_from_the_result_to_its_origins(page):
    ids = re.findall('<h2 id="(.*?)">', page)
    assert ids == "samples metrics evaluations speed data trained settings machine checkpoints".split()
    assert re.findall('<a href="#(.*?)">', page) == ids
    assert "tiny:Tiny" in section(page, "trained") and "TensorFlow" not in section(page, "trained")
    assert "TensorFlow" in section(page, "machine") and "CPU" in section(page, "machine")
