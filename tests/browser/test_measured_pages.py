"""The pages of hvdgan.bench, of hvdgan.doctor and of benchmarks/gpu.sh, from their facts, in a real browser.

Modules: pages.bench_page, pages.doctor_page.
"""

import json
import shutil
import sys

import pytest

import browsing
from benched import benched
from launching import ROOT, launcher, run

sys.path.insert(0, str(ROOT / "benchmarks"))
from gpu import page as gpu_page

pytestmark = browsing.MARKS
DOCTOR = "--max-bytes 64KB --seconds 0.02".split()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder with the facts and the page of each command."""
    folder = tmp_path_factory.mktemp("measured")
    for kind in ("json", "html"):
        shutil.copy(benched(tmp_path_factory) / f"bench.{kind}", folder)
    files = ["--json", "doctor.json", "--html", "doctor.html"]
    done = run([*launcher(2), sys.executable, "-m", "hvdgan.doctor", *DOCTOR, *files], folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["bench", "doctor"])
def test_a_page_is_silent_complete_and_accessible(browser, made, name, scheme, width):
    page = made / f"{name}.html"
    browser.open(page, width=width, scheme=scheme)
    assert browser.console() == []
    assert browser.requests() == [page.as_uri()]
    assert browser.run(browsing.FAULTS) == []
    assert browser.violations() == []


def test_the_page_of_the_bench_has_its_figures(browser, made):
    facts = json.loads((made / "bench.json").read_text())
    browser.open(made / "bench.html")
    text = browser.run("return document.body.innerText")
    best = max(facts["efficiency"], key=lambda row: row["ranks"])
    expected = [f"2 ranks reach, of 2 independent copies: {best['of_copies']['median']:.2f}"]
    expected += ["all-reduce not hidden", "PROJECTION, not a measurement", facts["machine"]["host"], "discriminator"]
    expected += [f"{row['of_one_rank']['median']:.3f}" for row in facts["efficiency"]]
    assert [word for word in expected if word not in text] == []
    assert browser.run("return document.querySelectorAll('figure.chart > svg').length") == 2


def test_the_page_of_the_doctor_has_its_verdicts(browser, made):
    facts = json.loads((made / "doctor.json").read_text())
    browser.open(made / "doctor.html")
    cells = "return [...document.querySelectorAll('#checks ~ .table tbody tr')].map(row => row.cells[1].innerText)"
    assert browser.run(cells) == [row["verdict"] for row in facts["rows"]]
    text = browser.run("return document.body.innerText")
    assert [row["found"] for row in facts["rows"] if row["found"] not in text] == []


def test_what_fails_is_in_the_first_lines(browser, tmp_path):
    (tmp_path / "runs").write_text("a file")
    done = run([sys.executable, "-m", "hvdgan.doctor", "--run-dir", "runs/x", "--html", "page.html"], tmp_path)
    assert done.returncode == 1
    browser.open(tmp_path / "page.html")
    verdict = browser.run("return document.querySelector('.verdict').innerText")
    assert verdict.startswith("A run would fail here") and "run folder: " in verdict
    assert browser.run(browsing.FAULTS) == []
    assert browser.violations() == []


@pytest.mark.parametrize("command", ["bench", "doctor"])
def test_a_page_is_not_written_over_a_file_and_not_into_that_of_the_json(tmp_path, command):
    (tmp_path / "page.html").write_text("mine")
    for words in (["--html", "page.html"], ["--html", "x", "--json", "x"]):
        done = run([sys.executable, "-m", f"hvdgan.{command}", *words], tmp_path)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_about_gpus_is_silent_complete_and_accessible(browser, made, tmp_path, width):
    bench = json.loads((made / "bench.json").read_text())
    done = {"verdict": "passed", "found": "", "figures": {}, "errors": [], "command": "", "seconds": 1.0}
    checks = [
        {
            **done,
            "name": name,
            "figures": {"bench": bench},
            "goal": {"ratio": ratio, "bound": 0.95, "reached": ratio > 0.95},
        }
        for name, ratio in (("float32", 0.971), ("mixed_float16", 0.942))
    ]
    checks += [
        {
            **done,
            "name": "ranks",
            "verdict": "failed",
            "errors": ["<b>first</b>", "NCCL WARN no link"],
            "command": "run",
        },
        {**done, "name": "DDP", "verdict": "not run", "found": "benchmarks/peers/setup.sh makes it"},
    ]
    gpus = [{"name": "H100", "memory.total": "81559 MiB", "driver_version": "550.54", "compute_cap": "9.0"}] * 8
    machine = {"when": "2026-11-25T12:00:00+0000", "host": "node1", "hosts": 1, "system": "Linux", "cpu": "EPYC"}
    machine |= {
        "cores": 96,
        "gpus": gpus,
        "links": ["GPU0  X  NV18"] * 8,
        "versions": {"keras": "3"},
        "code": "git commit a1b2, with changes that are not committed",
    }
    facts = {"machine": machine, "doctor": json.loads((made / "doctor.json").read_text()), "complete": True}
    facts |= {"parts": [{"name": "scaling", "title": "Ranks and copies", "checks": checks}], "seconds": 7200.0}
    facts |= {"settings": {"cpu": False, "ranks": [1, 2, 4, 8]}, "command": "benchmarks/gpu.sh"}
    (tmp_path / "page.html").write_text(gpu_page.make(facts))
    browser.open(tmp_path / "page.html", width=width)
    assert browser.console() == [] and browser.run(browsing.FAULTS) == []
    assert browser.violations() == []
    assert browser.requests() == [(tmp_path / "page.html").as_uri()]
    verdict = browser.run("return document.querySelector('.verdict').innerText")
    assert verdict.startswith("1 of 3 checks failed; 1 did not run") and "ranks: NCCL WARN no link" in verdict
    text = browser.run("return document.body.innerText")
    expected = ["<b>first</b>", "8 x H100, 81559 MiB", "0.971", "missed", "NV18", "benchmarks/peers/setup.sh makes it"]
    assert [word for word in expected if word not in text] == []
    assert browser.run("return document.querySelectorAll('figure.chart > svg').length") == 4
