"""A real browser without a window, for the tests of what it shows."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from tests.services import missing_service

PHONE = (390, 844)
DESKTOP = (1280, 900)


class Browser:
    """Opens local pages and remembers what they complained about and asked for."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, page: Path, *, size: tuple[int, int] = DESKTOP, scheme: str = "light") -> None:
        """Show a file as on a screen of this size, for somebody who prefers this colour scheme."""
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},  # a click must not wait for a page that glides
        ]
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.get(page.as_uri())

    def evaluate(self, expression: str) -> Any:
        """Return what a JavaScript expression is worth."""
        return self.driver.execute_script(f"return {expression}")

    def complaints(self) -> list[str]:
        """Return what the console said since the page was opened."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Return the addresses that were asked for since the page was opened, its own among them."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium, driven through chromedriver; one for the whole session."""
    binary = shutil.which("chromium") or shutil.which("google-chrome")
    chromedriver = shutil.which("chromedriver")
    if binary is None or chromedriver is None:
        missing_service("no chromium with chromedriver; Debian has both: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    arguments = ["--headless=new", "--disable-dev-shm-usage", "--hide-scrollbars"]
    for argument in [*arguments, "--no-sandbox"] if os.geteuid() == 0 else arguments:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(chromedriver))
    yield Browser(driver)
    driver.quit()
