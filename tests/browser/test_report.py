"""The pages of real runs in a real browser: complete, readable, silent, and with nothing from elsewhere."""

import base64
import contextlib
import itertools
import json
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import browsing
import hostile_runs
import saved
from hvdgan import report
from launching import SECONDS, environment

pytestmark = browsing.MARKS
STAGED = "--recipe completion --data digits --nf 2 --global-batch-size 8 --log-every 2 --sample-every 8".split()
STAGED += ["--stages", "completion=8,discriminator=8,joint=8"]


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """A completion in three stages that was resumed twice."""
    folder = tmp_path_factory.mktemp("runs") / "completion"
    flags = [
        *STAGED,
        "--eval-samples",
        "16",
        "--eval-every",
        "8",
        "--best-metric",
        "eval/hole_psnr",
        "--best-mode",
        "max",
    ]
    for most in ("6", "14", "24"):
        assert saved.train(folder, "--max-steps", most, flags=flags) == 0
    return folder


@contextlib.contextmanager
def in_progress(run):
    """A run in a process of its own that has logged a few of its many steps; it is killed at the end."""
    words = "--recipe tiny:Tiny --image-size 8 --global-batch-size 8 --steps 1000000 --log-every 20".split()
    command = [sys.executable, "-m", "hvdgan.train", *words, "--run-dir", str(run)]
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
    bound = threading.Timer(SECONDS, process.kill)
    bound.start()
    try:
        logged = (line for line in process.stderr if line.startswith("step "))
        assert len(list(itertools.islice(logged, 3))) == 3
        yield run
    finally:
        bound.cancel()
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def pages(tmp_path_factory, resumed):
    """A page of each kind: finished, failed, running, compared."""
    folder = tmp_path_factory.mktemp("pages")
    failed = resumed.parent / "exploding"
    words = ["--recipe", "tiny:Exploding", "--max-bad-steps", "1", "--checkpoint-every", "1"]
    assert saved.train(failed, *words) == 1
    made = {name: folder / f"{name}.html" for name in ("finished", "failed", "running", "compared")}
    with in_progress(resumed.parent / "running") as running:
        for name, run in (("finished", resumed), ("failed", failed), ("running", running)):
            assert report.main([str(run), "--out", str(made[name])]) == 0
    assert report.main([str(resumed), str(running), "--out", str(made["compared"])]) == 0
    return made


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["finished", "failed", "running", "compared"])
def test_a_page_is_silent_complete_and_accessible(browser, pages, tmp_path, kind, scheme, width):
    browser.open(pages[kind], width=width, scheme=scheme)
    assert browser.console() == []
    assert browser.requests() == [pages[kind].as_uri()]
    assert browser.run(browsing.FAULTS) == []
    assert browser.violations() == []
    browser.picture(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("finished", ["Finished at step 24", "resumed from a checkpoint twice", "eval/hole_psnr", "judge/loss"]),
        ("failed", ["Failed after step", "loss or gradients are not finite", "python -m hvdgan.train --config"]),
        ("running", ["Running at step ", " of 1,000,000, about ", " left", "Its lock is held by host"]),
        ("compared", ["2 runs compared", "--recipe", "completion", "Finished at step 24"]),
    ],
)
def test_the_text_of_a_page_can_be_searched(browser, pages, kind, words):
    browser.open(pages[kind])
    find = "return window.find(%s, true, false, true)"  # with upper and lower case, forwards, and from the top again
    assert [word for word in words if not browser.run(find % json.dumps(word))] == []
    assert not browser.run(find % json.dumps("no such words"))


def test_the_filmstrip_steps_by_keyboard_and_buttons(browser, pages):
    browser.open(pages["finished"])
    keys = (
        "document.querySelector('.film button').dispatchEvent(new KeyboardEvent('keydown', {key: '%s', bubbles: true}))"
    )
    shown = "return [...document.querySelectorAll('.frame')].filter(one => !one.hidden).map(one => one.innerText)"
    last = browser.run(shown)
    assert last == ["Generated, step 24"]
    browser.run(keys % "ArrowLeft")
    assert browser.run(shown) == ["Generated, step 16"]
    browser.run("document.querySelectorAll('.film button')[1].click()")
    assert browser.run(shown) == last
    slider = browser.driver.find_element("css selector", ".film input")
    slider.send_keys("\ue012")  # the left arrow, from a real keyboard's event
    assert browser.run(shown) == ["Generated, step 16"]
    assert browser.run("return document.activeElement.matches(':focus-visible')")
    back = browser.driver.find_element("css selector", ".film button")
    back.send_keys("\ue012", "\ue012", "\ue012", "\ue012")  # to the first frame, and the button keeps the focus
    assert browser.run("return document.querySelector('.film button').getAttribute('aria-disabled')") == "true"
    browser.driver.switch_to.active_element.send_keys("\ue014", "\ue014", "\ue014", "\ue014")
    assert browser.run(shown) == last


def test_stages_and_resumptions_are_drawn_in_the_page(browser, pages):
    browser.open(pages["finished"])
    chart = browser.run("return document.querySelector('#metrics').closest('section').querySelector('svg').innerHTML")
    assert [name for name in ("completion", "discriminator", "joint") if name not in chart] == []
    assert chart.count("var(--mark)") >= 2 and "var(--band)" in chart


def test_the_printed_page_is_a4_and_shows_the_samples(browser, pages):
    browser.open(pages["finished"])
    printed = browser.driver.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"]
    boxes = re.findall(rb"/MediaBox ?\[([^]]+)\]", base64.b64decode(printed))
    sizes = {tuple(round(float(number)) for number in box.split()) for box in boxes}
    assert sizes == {(0, 0, 595, 842)}, "points of A4"
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert browser.run("return getComputedStyle(document.querySelector('.controls')).display") == "none"
    assert browser.run("return getComputedStyle(document.querySelector('.frame:not([hidden]) img')).display") != "none"
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "screen"})


WIDE = """
for (const one of document.querySelectorAll("details")) one.open = true;
const right = (one) => one.getBoundingClientRect().right;
return [...document.querySelectorAll("body *")].filter((one) => right(one) > window.innerWidth + 1)
  .map((one) => one.outerHTML.slice(0, 80));
"""


@pytest.mark.parametrize("kind", ["finished", "failed", "compared"])
def test_nothing_is_wider_than_the_printed_page(browser, pages, kind):
    browser.open(pages[kind], width=688)  # 210 mm less the margins
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert browser.run(WIDE) == []
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "screen"})


@pytest.mark.parametrize("name", [*hostile_runs.CASES, "all of them"])
def test_hostile_contents_are_never_executed(browser, tmp_path, name):
    names = hostile_runs.CASES if name == "all of them" else [name]
    for each in names:
        hostile_runs.write(tmp_path / "runs" / each, each)
    assert report.main([str(tmp_path / "runs"), "--out", str(tmp_path / "page.html")]) == 0
    browser.open(tmp_path / "page.html")
    assert browser.run("return [window.struck === undefined, document.querySelectorAll('[onerror]').length]") == [
        True,
        0,
    ]
    assert browser.console() == [] and browser.requests() == [(tmp_path / "page.html").as_uri()]
    assert browser.run(browsing.FAULTS) == []
    assert browser.violations() == []


def test_the_checks_find_faults(browser, tmp_path):
    page = tmp_path / "bad.html"
    page.write_text(
        "<html><body style='background:#fff'><h1>a</h1><h3>b</h3><p style='color:#999'>pale</p><img src=x><table>"
        "<th>c</th></table><button></button><svg></svg><nav><a href='#none'>d</a></nav>"
        "<div style='width:3000px'>e</div>"
    )
    browser.open(page)
    found = " ".join(browser.run(browsing.FAULTS))
    expected = [
        "heading level",
        "no language",
        "no main",
        "without alt",
        "without a size",
        "without words",
        "th without",
    ]
    expected += ["control without", "link to nothing", "contrast 2.85: P pale", "scrolls sideways"]
    assert [fault for fault in expected if fault not in found] == [], found
    broken = {each.partition(":")[0] for each in browser.violations()}
    assert {"button-name", "color-contrast", "html-has-lang", "image-alt"} <= broken


def test_a_script_that_got_into_the_page_would_not_run(browser, pages, tmp_path):
    page = tmp_path / "page.html"
    struck = '<script>window.struck = 1</script><img alt="x" width="1" src="x" onerror="window.struck = 1">'
    page.write_text(pages["failed"].read_text().replace("<main>", f"<main>{struck}"))
    browser.open(page)
    assert browser.run("return window.struck") is None
    assert any("Content Security Policy" in line for line in browser.console())


def test_the_command_of_a_failed_run_resumes_it(browser, resumed, pages, tmp_path, monkeypatch):
    run = tmp_path / "run"
    shutil.copytree(resumed, run)
    shutil.rmtree(run / "checkpoints" / "step-00000024")
    (run / ".lock").write_text("")  # it names this process, which would make the folder a copy
    log, told = run / "log.txt", run / "events.jsonl"
    told.write_text("".join(line for line in told.open() if '"event": "end"' not in line))
    assert report.main([str(run)]) == 0
    browser.open(run / "report.html")
    command = browser.run("return document.querySelector('pre code').innerText").split()
    assert command[:3] == ["python", "-m", "hvdgan.train"] and Path(command[-1]) == run
    from hvdgan.train import main

    assert main(command[3:]) == 0
    assert re.search("done: 24 steps", log.read_text()) and 24 in saved.steps(run)
