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
    """A window of Chromium, with an empty folder for its profile."""

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
        found = [f"{rule['id']}: {node['html'][:200]}" for rule in broken for node in rule["nodes"]]
        sideways = self.run("return document.documentElement.scrollWidth > window.innerWidth")
        return [*found, *(["it scrolls sideways"] if sideways else [])]

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
