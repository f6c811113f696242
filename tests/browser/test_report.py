"""The pages of real runs in a real browser: complete, readable, silent, and with nothing from elsewhere."""

import json

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

import browsing
import hostile_runs
import run_folders
import saved
from hvdgan import report
from run_folders import record

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


FRAME = "const seen = () => document.querySelector('.frame:not([hidden]) figcaption').textContent;"


def pressed(browser, key, selector="body"):
    """The caption of the grid that is shown after a key, with the focus on an element."""
    browser.run(f"{FRAME} document.querySelector('{selector}').focus()")
    ActionChains(browser.driver).send_keys(key).perform()
    return browser.run(f"{FRAME} return seen()")


@pytest.mark.long
def test_arrow_keys_step_the_grids_from_anywhere_and_a_click_enlarges_one(browser, pages):
    opened(browser, pages["finished"])
    assert browser.run(f"{FRAME} return seen()") == "Generated, step 24"
    assert pressed(browser, Keys.ARROW_LEFT) == "Generated, step 16"
    assert pressed(browser, Keys.ARROW_RIGHT, ".csv") == "Generated, step 24"
    assert pressed(browser, Keys.ARROW_LEFT, "[name=smooth]") == "Generated, step 24", "there the key is the control's"
    browser.driver.find_element("css selector", ".frame:not([hidden]) .look").click()
    large = "const one = document.querySelector('dialog'); return one.open && one.querySelector('p').textContent"
    assert browser.run(large) == "Generated, step 24"
    ActionChains(browser.driver).send_keys(Keys.ARROW_LEFT).perform()
    assert browser.run(large) == "Generated, step 16"
    width = "return document.querySelector('{}').getBoundingClientRect().width"
    assert browser.run(width.format("dialog img")) > 1.5 * browser.run(width.format(".frame:not([hidden]) img"))
    ActionChains(browser.driver).send_keys(Keys.ESCAPE).perform()
    assert browser.run(large) is False


def test_a_command_is_copied(browser, pages):
    opened(browser, pages["finished"])
    origin = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    browser.driver.execute_cdp_cmd("Browser.grantPermissions", origin)
    browser.driver.find_element("css selector", "[aria-label='Copy: Draw samples']").click()
    copied = browser.driver.execute_async_script("navigator.clipboard.readText().then(arguments[0])")
    assert copied.startswith("hvdgan sample ") and copied.endswith(" --out samples.png")


def test_a_phone_shows_that_a_table_is_cut_and_its_tick_labels_apart(browser, pages):
    opened(browser, pages["finished"], width=390)
    browser.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    cut = "const cut = [...document.querySelectorAll('.table')].map((one) => [one.scrollWidth > one.clientWidth + 1, "
    cut += "getComputedStyle(one, '::after').content !== 'none']);"
    found = f"{cut} return cut.some(([is_cut]) => is_cut) && cut.every(([is_cut, is_said]) => is_cut === is_said)"
    WebDriverWait(browser.driver, 20).until(lambda _: browser.run(found))
    ticks = "const views = [...Bokeh.index].filter((one) => one.model.x_range); return views.map(({frame, model}) => "
    ticks += "[model.below[0].ticker.desired_num_ticks, frame.bbox.width])"
    assert all(most <= width / 70 for most, width in browser.run(ticks))


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
    browser.folder = run
    yield browser
    assert browser.console() == []


@pytest.mark.long
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


FIT = f"""{CHARTS} {LINES} const [chart] = charts, {{start, end}} = chart.x_range;
const near = lines(chart).flatMap((one) => {{
  const [x, y] = ["step", "shown"].map((each) => one.data_source.get_array(each));
  return [...y].filter((_, place) => x[place] >= start && x[place] <= end);
}});
return [chart.y_range.start, chart.y_range.end, Math.min(...near), Math.max(...near)]"""


def test_after_a_zoom_the_y_axis_fits_what_is_seen(browser, tmp_path):
    values = [record(step, **{"judge/loss": 100.0 if step < 500 else 1 + step / 1e4}) for step in range(1, 1001)]
    run = run_folders.write(tmp_path / "run", metrics="".join(values), told=[run_folders.START])
    assert report.main([str(run)]) == 0
    opened(browser, run / "report.html")
    settle(browser, ".log", False)
    settle(browser, "[name=zoom]", True)
    for kind, place in (("mousePressed", 0.7), ("mouseMoved", 0.75), ("mouseMoved", 0.9), ("mouseReleased", 0.9)):
        pointer(browser, kind, place)
    WebDriverWait(browser.driver, 20).until(lambda _: browser.run(FIT)[1] < 2)
    low, high, least, most = browser.run(FIT)
    assert low <= least < most <= high and high - low < 2 * (most - least)


def test_one_tooltip_has_all_curves_of_a_chart(long):
    pointer(long, "mouseMoved", 0.5)
    WebDriverWait(long.driver, 20).until(lambda _: not long.run("return document.querySelector('.tip').hidden"))
    assert long.run("return document.querySelectorAll('.tip, .bk-Tooltip').length") == 1
    lines = long.run("return [...document.querySelectorAll('.tip p')].map((one) => one.textContent)")
    step = int(lines[0].removeprefix("step ").replace(",", ""))
    losses = (json.loads(line) for line in (long.folder / "metrics.jsonl").read_text().splitlines())
    (shown,) = [each for each in losses if each["step"] == step]
    for line, name in zip(lines[1:], ("fool/loss", "judge/loss"), strict=True):
        assert line.startswith(name) and float(line.removeprefix(name)) == pytest.approx(shown[name], rel=1e-3)


def test_curves_are_saved_as_csv(long, tmp_path):
    place = {"behavior": "allow", "downloadPath": str(tmp_path)}
    long.driver.execute_cdp_cmd("Browser.setDownloadBehavior", place)
    long.run("document.querySelector('.csv').click()")
    file = tmp_path / "loss.csv"
    WebDriverWait(long.driver, 20).until(lambda _: file.exists())
    head, *rows = (line.split(",") for line in file.read_text().splitlines())
    assert [each.strip('"') for each in head] == ["step", "fool/loss", "judge/loss"] and len(rows) == COUNT
    assert [int(row[0]) for row in rows] == list(range(1, COUNT + 1))


def test_a_resume_is_drawn_above_the_grid_and_below_the_curves(browser, pages):
    opened(browser, pages["finished"])
    kinds = "[one.center[0].level, one.renderers.map((each) => [each.tags[0], each.level])]"
    for grid, renderers in browser.run(f"{CHARTS} return charts.map((one) => {kinds})"):
        names = [name for name, _ in renderers]
        assert grid == "underlay" and dict(renderers)["mark"] == dict(renderers)["line"] == "glyph"
        assert names.index("mark") < names.index("line")


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
