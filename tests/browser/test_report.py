"""The pages of real runs in a real browser: complete, readable, silent, and with nothing from elsewhere."""

import json

import pytest
from selenium.webdriver.support.ui import WebDriverWait

import browsing
import hostile_runs
import run_folders
import saved
from hvdgan import report

pytestmark = browsing.MARKS
STAGED = "--recipe tiny:Staged --image-size 8 --global-batch-size 8 --steps 8 --log-every 2 --sample-every 8".split()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A window of a real browser."""
    window = browsing.Browser(tmp_path_factory.mktemp("profile"))
    yield window
    window.close()


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """A run in three stages that was resumed."""
    folder = tmp_path_factory.mktemp("runs") / "staged"
    flags = [*STAGED, *"--eval-samples 16 --eval-every 8 --best-metric eval/histogram --best-mode min".split()]
    for most in ("14", "24"):
        assert saved.train(folder, "--max-steps", most, flags=flags) == 0
    return folder


@pytest.fixture(scope="module")
def pages(tmp_path_factory, resumed):
    """A page of each kind: finished, failed, compared."""
    folder = tmp_path_factory.mktemp("pages")
    failed = resumed.parent / "exploding"
    words = ["--recipe", "tiny:Exploding", "--max-bad-steps", "1", "--checkpoint-every", "1"]
    assert saved.train(failed, *words) == 1
    made = {name: folder / f"{name}.html" for name in ("finished", "failed", "compared")}
    for name, runs in (("finished", [resumed]), ("failed", [failed]), ("compared", [resumed, failed])):
        assert report.main([*map(str, runs), "--out", str(made[name])]) == 0
    return made


def opened(browser, page, **view):
    """Open a page, and wait until its charts are drawn."""
    browser.open(page, **view)
    drawn = "return document.documentElement.dataset.drawn || !document.getElementById('curves')"
    WebDriverWait(browser.driver, 60).until(lambda _: browser.run(drawn))


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
@pytest.mark.parametrize("kind", ["finished", "failed", "compared"])
def test_a_page_is_silent_complete_and_accessible(browser, pages, kind, width, scheme):
    opened(browser, pages[kind], width=width, scheme=scheme)
    assert browser.console() == []
    assert browser.requests() == [pages[kind].as_uri()]
    assert browser.violations() == []


COUNT = 1_000
CHARTS = "const charts = [...Bokeh.index].map((view) => view.model).filter((one) => one.x_range);"
LINES = "const lines = (of) => of.renderers.filter((one) => one.tags[0] === 'line');"
ENDS = f"{CHARTS} return charts.map((one) => [one.x_range.start, one.x_range.end])"


def end(browser):
    """The end of the axis of the first chart."""
    return browser.run(ENDS)[0][1]


def settle(browser, selector, value):
    """Set a control as a user does."""
    kind = "checked" if isinstance(value, bool) else "value"
    browser.run(
        f"const one = document.querySelector('{selector}'); one.{kind} = {json.dumps(value)};"
        "one.dispatchEvent(new Event('input')); one.dispatchEvent(new Event('change'));"
    )


def pointer(browser, kind, place):
    """Move or press the pointer at a part of the width of the first chart."""
    script = "const one = document.querySelector('.plot'); one.scrollIntoView({block: 'center'});"
    box = browser.run(f"{script} const at = one.getBoundingClientRect(); return [at.x, at.y, at.width, at.height]")
    where = {"x": box[0] + place * box[2], "y": box[1] + 0.4 * box[3], "clickCount": 1}
    where |= {"type": kind, "button": "left", "buttons": 1}
    browser.driver.execute_cdp_cmd("Input.dispatchMouseEvent", where)


@pytest.fixture
def long(browser, tmp_path):
    """The page of a run of 1,000 steps is open."""
    run = run_folders.write(tmp_path / "long", config='{"global_batch_size": 16}', told=[run_folders.START])
    run_folders.long_metrics(run / "metrics.jsonl", range(1, COUNT + 1))
    assert report.main([str(run)]) == 0
    opened(browser, run / "report.html")
    yield browser
    assert browser.console() == []


def test_the_axis_is_in_steps_images_or_time(long):
    assert long.run(ENDS) == [[pytest.approx(-0.01 * COUNT), pytest.approx(1.01 * COUNT)]] * len(long.run(ENDS))
    for kind, most, label in (("images", 16 * COUNT, "images"), ("time", COUNT * 0.06 / 60, "minutes")):
        settle(long, "[name=x]", kind)
        assert end(long) == pytest.approx(1.01 * most, rel=0.01)
        assert long.run(f"{CHARTS} return charts[0].below[0].axis_label") == label
        last = f"{CHARTS} {LINES} return lines(charts[0])[0].data_source.get_array('step').at(-1)"
        assert long.run(last) == pytest.approx(most, rel=0.01)


def test_the_pointer_zooms_all_charts(long):
    settle(long, "[name=zoom]", True)
    pointer(long, "mousePressed", 0.4)
    for place in (0.45, 0.5, 0.6):
        pointer(long, "mouseMoved", place)
    pointer(long, "mouseReleased", 0.6)
    WebDriverWait(long.driver, 20).until(lambda _: end(long) < 0.9 * COUNT)
    found = long.run(ENDS)
    assert all(each == found[0] for each in found) and found[0][0] > 0.1 * COUNT
    long.run("document.querySelector('.options button').click()")
    assert end(long) == pytest.approx(1.01 * COUNT)


def test_lines_are_smoothed_and_hidden_and_their_axis_is_logarithmic(long):
    spread = f"{CHARTS} {LINES} const shown = [...lines(charts[0])[0].data_source.get_array('shown')];"
    spread += "return Math.max(...shown) - Math.min(...shown)"
    before = long.run(spread)
    settle(long, "[name=smooth]", "0.9")
    assert long.run(spread) < before / 2
    settle(long, "[name=smooth]", "0")
    assert long.run(spread) == pytest.approx(before)
    long.run("document.querySelector('.key').click()")
    assert long.run(f"{CHARTS} {LINES} return lines(charts[0]).map((one) => one.visible)") == [False, True]
    assert long.run("return document.querySelector('.key').getAttribute('aria-pressed')") == "false"
    for is_log in (False, True):
        settle(long, ".log", is_log)
        assert long.run(f"{CHARTS} return charts[0].y_scale.type") == ("LogScale" if is_log else "LinearScale")


def test_a_click_on_a_heading_sorts_the_runs(browser, pages):
    opened(browser, pages["compared"])
    names = "return [...document.querySelectorAll('#runs ~ .table tbody th')].map((one) => one.innerText)"
    first = browser.run(names)
    head = "document.querySelector('#runs ~ .table thead button').click()"
    browser.run(head)
    assert browser.run(names) == sorted(first)
    browser.run(head)
    assert browser.run(names) == sorted(first, reverse=True)
    assert browser.run("return document.querySelector('#runs ~ .table th').ariaSort") == "descending"


def test_without_scripts_a_line_says_what_is_missing(browser, pages):
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.open(pages["finished"])
        text = browser.driver.find_element("css selector", "main").text
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert "This browser runs no scripts" in text and "judge/loss" in text and "smoothing" not in text


def test_hostile_contents_are_never_executed(browser, tmp_path):
    for name in hostile_runs.CASES:
        hostile_runs.write(tmp_path / "runs" / name, name)
    words = [str(tmp_path / "runs"), *(str(tmp_path / "runs" / name) for name in ("scripts everywhere", "links"))]
    for number, path in enumerate(words):
        page = tmp_path / f"{number}.html"
        assert report.main([path, "--out", str(page)]) == 0
        opened(browser, page)
        struck = "return [window.struck === undefined, document.querySelectorAll('[onerror]').length]"
        assert browser.run(struck) == [True, 0]
        assert browser.console() == [] and browser.requests() == [page.as_uri()] and browser.violations() == []
