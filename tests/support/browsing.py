"""A real browser: Debian's Chromium, headless, in a profile of its own."""

import base64
import json
import shutil
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium_axe_python import Axe

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = "needs Chromium and its driver: apt-get install chromium chromium-driver"
MARKS = [pytest.mark.browser, pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=MISSING)]
_FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)


class Browser:
    """A window of Chromium.

    Args:
        profile: empty folder for its profile.
    """

    def __init__(self, profile: Path) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for flag in [*_FLAGS.split(), f"--user-data-dir={profile}"]:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(DRIVER))
        self.driver.set_page_load_timeout(120)

    def open(self, page: Path, *, width: int = 1280, scheme: str = "light") -> None:
        """Open a file, at a width of the window (pixels) and in a colour scheme."""
        self.driver.get_log("performance")
        self.driver.get_log("browser")
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.get(page.resolve().as_uri())

    def run(self, script: str):
        """The value that a script returns."""
        return self.driver.execute_script(script)

    def violations(self) -> list[str]:
        """The rules of the accessibility checker axe-core that the page breaks, with the elements."""
        axe = Axe(self.driver)
        axe.inject()
        broken = axe.run()["violations"]
        return [f"{rule['id']}: {node['html'][:200]}" for rule in broken for node in rule["nodes"]]

    def console(self) -> list[str]:
        """What the page has written to the console, errors of the browser among it."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """The addresses that the page has asked for, except data: ones."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith("data:")]

    def picture(self, path: Path, height: int | None = None) -> None:
        """Write a screenshot of the page, from its top to a height (pixels) or to its end."""
        width, whole = self.run("return [window.innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": width, "height": height or whole, "scale": 1}
        taken = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        path.write_bytes(base64.b64decode(taken["data"]))

    def close(self) -> None:
        """End the browser and its driver."""
        self.driver.quit()


FAULTS = """
const faults = [];
const visible = (one) => one.getClientRects().length > 0 && getComputedStyle(one).visibility !== "hidden";
const number = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
const luminance = (rgb) => {
  const [r, g, b] = rgb.map((c) => c / 255).map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = (one) => {
  for (let at = one; at; at = at.parentElement) {
    const c = number(getComputedStyle(at).backgroundColor);
    if (c.length === 3 || c[3] > 0) return c.slice(0, 3);
  }
  return [255, 255, 255];
};
const levels = [...document.querySelectorAll("h1,h2,h3,h4,h5,h6")].map((one) => Number(one.tagName[1]));
if (levels.filter((level) => level === 1).length !== 1) faults.push("not one h1");
levels.forEach((level, at) => { if (at && level > levels[at - 1] + 1) faults.push("a heading level is skipped"); });
if (!document.documentElement.lang) faults.push("no language");
if (!document.querySelector("main")) faults.push("no main landmark");
for (const one of document.images) {
  if (!one.alt) faults.push("a picture without alt");
  if (!one.naturalWidth || !one.getAttribute("width")) faults.push("a picture without a size");
}
for (const one of document.querySelectorAll("svg"))
  if (one.getAttribute("aria-hidden") !== "true" && !(one.getAttribute("role") === "img" && one.ariaLabel))
    faults.push("a chart without words");
for (const one of document.querySelectorAll("th")) if (!one.scope) faults.push("th without scope");
for (const one of document.querySelectorAll("button,input,a"))
  if (!(one.textContent.trim() || one.ariaLabel || one.labels?.length)) faults.push("a control without a name");
const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
if (new Set(ids).size !== ids.length) faults.push("an id twice");
for (const one of document.querySelectorAll("nav a"))
  if (!document.querySelector(one.getAttribute("href"))) faults.push("a link to nothing: " + one.href);
for (const one of document.body.querySelectorAll("*")) {
  const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!own || !visible(one) || one.disabled || ["SCRIPT", "STYLE"].includes(one.tagName)) continue;
  const style = getComputedStyle(one);
  const colour = number(one.closest("svg") ? style.fill : style.color).slice(0, 3);
  const [a, b] = [luminance(colour), luminance(ground(one))].sort((x, y) => y - x);
  const contrast = (a + 0.05) / (b + 0.05);
  if (contrast < 4.5) faults.push(`contrast ${contrast.toFixed(2)}: ${one.tagName} ${one.textContent.slice(0, 40)}`);
}
if (document.documentElement.scrollWidth > window.innerWidth) faults.push("the page scrolls sideways");
return faults;
"""
"""a script that returns what an accessibility checker would complain about; bands of charts are as good as the page"""
