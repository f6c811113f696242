"""The page of a real run: what it has, and in which order.

Modules: pages.reading.waits.
"""

import json
import re

import pytest

import saved
from hvdgan import report
from hvdgan.cli.events import SkippedUpdate
from hvdgan.pages import run_page
from hvdgan.pages.reading import run_folder
from run_folders import START, grid, record, write


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with two evaluations and a best checkpoint."""
    run = tmp_path_factory.mktemp("runs") / "<img src=x>"
    words = ["--eval-samples", "16", "--eval-every", "4", "--best-metric", "eval/histogram", "--learning-rate", "0.01"]
    assert saved.train(run, *words) == 0
    return run


@pytest.fixture(scope="module")
def page(run):
    """Its page."""
    assert report.main([str(run)]) == 0
    return (run / "report.html").read_text()


def section(page, name):
    """The part of the page below a heading."""
    return re.search(rf'(?s)<h2 id="{name}">.*?</section>', page)[0]


def test_the_best_checkpoint_is_named_and_marked(page):
    shown = section(page, "evaluations")
    assert re.search(r"Best checkpoint: eval/histogram [\d.]+ at step [48] \(the smallest value is the best\)", shown)
    assert "var(--mark)" in shown


def test_generated_samples_stand_beside_real_ones_and_checkpoints_have_their_sizes(run, page):
    captions = re.findall("<figcaption>(.*?)</figcaption>", section(page, "samples"))
    assert captions[0].startswith("Generated, step") and captions[-1] == "Real"
    checkpoint = max((run / "checkpoints").glob("step-*"))
    size = sum(file.stat().st_size for file in checkpoint.iterdir()) / 1e6
    shown = re.findall(r'<td class="n">([\d.]+)</td>', section(page, "checkpoints"))
    assert shown and float(shown[-1]) == pytest.approx(size, abs=0.06)
    assert "no all-reduce with one rank" in section(page, "trained")


def test_the_name_of_a_folder_is_text(page):
    assert "<h1>&lt;img src=x&gt;</h1>" in page and "<img src=x>" not in page


def test_the_times_of_the_checkpoints_are_those_of_the_events(run, page):
    shown = re.sub("<.*?>", " ", section(page, "speed"))
    count = (run / "events.jsonl").read_text().count('"event": "checkpoint"')
    assert count == (run / "log.txt").read_text().count(": the steps waited ")
    assert re.search(rf"checkpoints written +{count}\s", shown)
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
    run.checkpoints = [run_folder.SavedCheckpoint("step-00000002", 2, {"best": best})]
    page = run_page.make(run)
    assert "var(--mark)" in section(page, "metrics") and "a circle marks it" in section(page, "evaluations")


def evaluated(folder, *records):
    """The section about evaluations of a run with these records of evaluation.jsonl."""
    write(folder, metrics=record(1, loss=1.0))
    (folder / "evaluation.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    return section(run_page.make(run_folder.read(folder, verify=False)), "evaluations")


def test_no_evaluation_is_left_out_in_silence(tmp_path):
    records = [{"step": step, **{f"eval/m{name}": 1.0 * step for name in range(30)}} for step in range(1, 701)]
    shown = evaluated(tmp_path, *records)
    assert shown.count("<h3>") == 24 and "6 more metrics of evaluations" in shown
    assert all(f"eval/m{name}<" in shown for name in range(30))
    assert "Records of evaluation.jsonl (500, the latest of 700)" in shown


def test_a_figure_that_a_record_lacks_is_not_one_without_a_finite_value(tmp_path):
    shown = evaluated(tmp_path, {"step": 1, "eval/fid": 2.0}, {"step": 2, "eval/fid": None, "eval/kid": 3.0})
    rows = re.findall(
        '<tr><th scope="row" class="s">([12])</th><td class="n">(.*?)</td><td class="n">(.*?)</td>', shown
    )
    assert rows == [("1", "2", ""), ("2", "no finite value", "3")]


@pytest.mark.parametrize("others", [{"features": "inception"}, {"bins": 1}, {"real_samples": 50}])
def test_evaluations_that_cannot_be_compared_are_not_joined(tmp_path, others):
    mine = {"features": "digits.keras", "samples": 100, "real_samples": 100, "bins": 2}
    other = {**mine, **others}
    shown = evaluated(
        tmp_path,
        {"step": 1, "eval/fid": 90.0, **other},
        {"step": 2, "eval/fid": 7.0, **mine},
        {"step": 3, "eval/fid": 5.0, **mine},
    )
    assert "eval/fid from 7 at step 2 to 5 at step 3" in shown
    assert "measured as the latest was, with features digits.keras, samples 100, real_samples 100, bins 2." in shown


def test_a_curve_is_broken_at_a_stage_without_it_and_its_words_name_the_marks(tmp_path):
    stages = [("first", 2.0), ("second", None), ("third", 1.0)]
    lines = [
        record(10 * number + step, stage=name, **({"judge/loss": loss} if loss else {"fool/loss": 9.0}))
        for number, (name, loss) in enumerate(stages)
        for step in range(1, 11)
    ]
    skipped = SkippedUpdate(step=5, stage="first", update="judge", times=1)
    write(tmp_path, metrics="".join(lines), told=[START, skipped])
    run = run_folder.read(tmp_path, verify=False)
    shown = section(run_page.make(run), "metrics")
    assert "Stages: first, steps 0 to 10; second, steps 10 to 20; third, steps 20 to 30." in shown
    assert "Skipped updates at step 5." in shown and "crosses are skipped updates." in shown
    curves = re.findall(r'd="(M[^"]*)"[^>]*stroke: var\(--c[01]\)', shown)
    assert sorted(curve.count("M") for curve in curves if curve.count("L") > 5) == [1, 2], "judge/loss has two parts"


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
