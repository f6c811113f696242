"""The page of a run: what it has, and in which order; several runs on one page, sorted by a metric.
Modules: pages.run_facts, pages.curves, pages.several_runs"""

import dataclasses
import html
import json
import re
import shlex
import urllib.parse

import numpy as np
import pytest

import page_facts
import saved
from hvdgan import report
from hvdgan.files.lock import lock
from hvdgan.pages import run_facts, run_page
from hvdgan.runs.events import NetworkFacts, SkippedUpdate
from run_folders import START, checkpoint, grid, record, started, write

NETWORK = NetworkFacts(name="critic", trainable=1, other=0, is_frozen=False)


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


def made(folder):
    """The page of a run that was written by hand."""
    return run_page.make(run_facts.read(folder))


def section(page, name):
    """The part of the page below a heading."""
    return re.search(rf'(?s)<h2 id="{name}">.*?</section>', page)[0]


def test_the_sections_follow_each_other_from_the_result_to_its_origins(page):
    ids = re.findall('<h2 id="(.*?)">', page)
    assert ids == "samples metrics evaluations speed run checkpoints".split()
    assert re.findall('<a href="#(.*?)">', page) == ids
    header = page[: page.index("<main>")]
    assert "<h1>&lt;img src=x&gt;</h1>" in page and "<img src=x>" not in page
    assert "Finished at step 8" in header and "<dt>recipe</dt><dd>tiny:Tiny</dd>" in header
    assert re.search(r"<dt>duration</dt><dd>\d+ (seconds|minutes)</dd>", header)
    assert "TensorFlow" in section(page, "run") and "<li>--learning-rate=0.01</li>" in section(page, "run")


def test_the_best_value_is_named_and_marked(page):
    found = re.search(r"Best eval/histogram: ([\d.]+) at step ([48]); a circle marks it", section(page, "evaluations"))
    (_, steps, values), (kind, *best) = page_facts.charts(page)["eval/histogram"]
    assert kind == "best" and best[0] == [int(found[2])] and best[1] == pytest.approx([min(values)])
    assert steps.tolist() == [4, 8] and found[1] == f"{min(values):.4g}"


def test_generated_samples_stand_beside_real_ones_at_one_scale_and_checkpoints_have_their_sizes(run, page):
    shown = section(page, "samples")
    captions = re.findall("<figcaption>(.*?)</figcaption>", shown)
    assert captions[0].startswith("Generated, step") and captions[-1] == "Real"
    widths = set(re.findall(r'width="(\d+)"', shown))
    assert set(re.findall(r"--w: (\d+)", shown)) == widths, "widths in the page are in proportion to pixels"
    size = saved.checkpoint(run, saved.latest(run)).stat().st_size / 1e6
    sizes = re.findall(r'<td class="n">([\d.]+)</td>', section(page, "checkpoints"))
    assert float(sizes[0]) == pytest.approx(size, abs=0.06)


def test_the_command_is_in_the_header(tmp_path):
    """With its launcher if that needs only the number of ranks."""
    typed = "python -m hvdgan.train --x &#39;a b&#39;"
    for changes, command in (
        ({"ranks": 1, "launcher": "none"}, typed),
        ({"launcher": "horovodrun"}, f"horovodrun -np 2 {typed}"),
        ({"launcher": "horovodrun", "hosts": 2}, typed),
        ({"command": "hvdgan train --x"}, "hvdgan launch -np 2 train --x"),
    ):
        changes = {"command": "python -m hvdgan.train --x 'a b'", **changes}
        start = dataclasses.replace(START, **changes)
        assert f"<code>{command}</code>" in made(write(tmp_path, told=[start])).partition("<main>")[0]


def test_a_curve_is_broken_at_a_stage_without_it_and_stages_and_marks_are_in_words(tmp_path):
    stages = [("first", 2.0), ("second", None), ("third", 1.0)]
    lines = [
        record(10 * number + step, stage=name, bad=None, **({"judge/loss": loss} if loss else {"fool/loss": 9.0}))
        for number, (name, loss) in enumerate(stages)
        for step in range(1, 11)
    ]
    skipped = SkippedUpdate(step=5, stage="first", update="judge", times=1)
    page = made(write(tmp_path, metrics="".join(lines), told=[START, skipped]))
    assert "shaded: first to step 10; second to step 20; third to step 30." in page and "an update was skipped" in page
    assert "Without a finite value: bad (30)." in page
    (_, steps, values), (_, _, others) = page_facts.charts(page)["loss"]
    assert np.isnan(values).tolist() == [False] * 10 + [True] + [False] * 10 and steps[-1] == 30
    assert not np.isnan(others).any()


def test_the_times_of_the_ranks_are_shown_and_the_slowest_is_named(tmp_path):
    others = {"step_seconds": 0.1, "compute_seconds_min": 0.01, "compute_seconds_median": 0.02, "wait_seconds": 0.01}
    rows = [(0, 9.0), (1, 0.02), (1, 0.04), (0, 0.03), (1, 0.03)]
    lines = [record(n, slowest_rank=rank, compute_seconds_max=most, **others) for n, (rank, most) in enumerate(rows)]
    page = section(made(write(tmp_path / "run", metrics="".join(lines))), "speed")
    shown = " ".join(re.sub("<.*?>", " ", page).split())
    assert "computing: least, median, most of the ranks 10, 20, 30 ms" in shown  # without the first record
    assert "the slowest rank rank 1 in 75% of records" in shown and "of it, waiting for data 10.0%" in shown
    alone = [record(step, step_seconds=0.1, wait_seconds=0.01) for step in (1, 2)]
    assert "rank" not in section(made(write(tmp_path / "one", metrics="".join(alone))), "speed")


@pytest.mark.parametrize("others", [{"features": "inception"}, {"bins": 1}])
def test_evaluations_that_cannot_be_compared_are_not_joined(tmp_path, others):
    mine = {"features": "digits.keras", "samples": 100, "real_samples": 100, "bins": 2}
    records = [{"step": 1, "eval/fid": 90.0, **mine, **others}]
    records += [{"step": step, "eval/fid": 9.0 - step, **mine} for step in (2, 3)]
    write(tmp_path, metrics=record(1, loss=1.0), evaluations=records)
    page = made(tmp_path)
    assert page_facts.charts(page)["eval/fid"][0][2].tolist() == [7.0, 6.0]
    assert "measured as the latest was, with features digits.keras, samples 100, real_samples 100, bins 2." in page


def test_what_is_measured_afterwards_stands_with_what_the_run_has_measured(tmp_path):
    own = [{"step": step, "eval/fid": 9.0 - step, "samples": 512} for step in (1, 2)]
    lines = "".join(record(each["step"], **{"eval/fid": each["eval/fid"]}) for each in own)
    write(tmp_path, metrics=lines, evaluations=[*own, {"step": 2, "eval/fid": 5.0, "samples": 50_000}])
    charts = page_facts.charts(made(tmp_path))
    assert charts["eval/fid"][0][2].tolist() == [8.0, 7.0]
    assert charts["eval/fid, 50,000 samples"][0][2].tolist() == [5.0]


def test_commands_to_copy_and_links_lead_to_the_run(tmp_path):
    folder, page = tmp_path / "my run", tmp_path / "pages" / "page.html"
    write(folder, metrics=record(1, loss=1.0), told=[dataclasses.replace(START, networks=[NETWORK])])
    words = ["touch", "report"]
    for is_saved in (False, True):
        words += ["sample", "evaluate", "export"] * is_saved
        if is_saved:
            checkpoint(folder, 10)
        with lock(folder):
            assert report.main([str(folder), "--out", str(page)]) == 0
        text = html.unescape(page.read_text())
        header = text.partition("<main>")[0]
        commands = [shlex.split(each) for each in re.findall("<code>(.*?)</code>", header)[1:]]
        assert {command[command[0] == "hvdgan"] for command in commands} == {*words}
        assert all(any(word.startswith(str(folder)) for word in command) for command in commands)
        for address in re.findall('<a href="([^#].*?)"', header):
            assert (page.parent / urllib.parse.unquote(address)).exists(), address
        assert "log.txt" not in header and 'my%20run/metrics.jsonl"' in header
    assert any(command[-1] == "critic.keras" for command in commands)
    (folder / "config.json").write_text(json.dumps({"conditions": ["scan/dose"]}))
    assert "--out samples.png --condition scan/dose=NUMBER<" in made(folder)


def test_starts_are_listed_with_what_is_not_as_before(tmp_path):
    second = dataclasses.replace(started(4, 10), changed=["--nf=8", "--learning-rate=0.01", "--flip"], ranks=4)
    third = dataclasses.replace(
        second, step=6, changed=["--nf=8", "--learning-rate=0.1"], machine=[*second.machine, "a GPU"]
    )
    page = made(write(tmp_path, metrics=record(8, loss=1.0), told=[START, second, third]))
    table = page.partition("Starts (3)")[2].partition("</table>")[0]
    rows = [re.findall("<t[hd].*?>(.*?)</t[hd]>", row) for row in table.split("<tr>")[2:]]
    assert [row[1:3] for row in rows] == [["0", "2"], ["4", "4"], ["6", "4"]]
    assert [row[3] for row in rows] == [
        "",
        "--nf 8, was default; --learning-rate 0.01, was default; --flip on, was default",
        "--learning-rate 0.1, was 0.01; --flip default, was on; a GPU",
    ]


@pytest.fixture
def runs(tmp_path):
    """Three runs of a sweep, the second of which was the best at its first step."""
    for name, seed, losses in (("a", 0, (3.0, 2.0)), ("b", 1, (1.0, 5.0)), ("c", 2, (4.0, 4.0))):
        lines = [record(step, **{"judge/loss": loss, "images_per_sec": 9.0}) for step, loss in enumerate(losses, 1)]
        config = f'{{"recipe": "dcgan", "seed": {seed}, "run_dir": "runs/{name}"}}'
        grid(write(tmp_path / "runs" / name, metrics="".join(lines), config=config))
    return tmp_path / "runs"


def compared(runs, *words):
    """The names of the runs in their order in the table, the table and the page."""
    out = runs.parent / "page.html"
    assert report.main([str(runs), *words, "--out", str(out)]) == 0
    page = out.read_text()
    table = page.partition('<h2 id="runs">')[2].partition("</table>")[0]
    return re.findall(r'<tr><th scope="row" class="s">(\w)</th>', table), table, page


def test_a_folder_of_runs_is_sorted_by_the_best_value(runs):
    order, table, page = compared(runs)
    assert order == ["b", "a", "c"] and "Sorted by the best value of judge/loss, the smallest first" in page
    assert page.count('alt="Grid') == 3 and "Latest samples" in page
    assert "--seed" in table and "--recipe" not in table and "--run-dir" not in table
    assert compared(runs, "--sort-by", "judge/loss", "--sort-mode", "max")[0] == ["b", "c", "a"]
    assert compared(runs.parent)[0] == ["b", "a", "c"]


@pytest.mark.parametrize(("metric", "order"), [("eval/hole_psnr", ["b", "a"]), ("eval/fid", ["a", "b"])])
def test_without_a_mode_the_best_value_is_that_of_the_metrics_kind(tmp_path, metric, order):
    for name, value in (("a", 20.0), ("b", 30.0)):
        write(tmp_path / "runs" / name, metrics=record(1, **{metric: value}))
    assert compared(tmp_path / "runs")[0] == order


def test_evaluations_that_were_made_afterwards_sort_runs_and_have_curves(runs):
    for name, figure in (("a", 3.0), ("b", 2.0), ("c", 1.0)):
        values = ((2, figure), (1, 9.0), (1, 8.0))
        write(runs / name, evaluations=[{"step": step, "eval/fid": value} for step, value in values])
    assert compared(runs, "--sort-by", "eval/fid")[0] == ["c", "b", "a"]
    assert page_facts.charts(made(runs / "a"))["eval/fid"][0][2].tolist() == [8.0, 3.0]
