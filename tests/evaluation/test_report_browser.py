"""The report in headless Chromium, by its DevTools protocol: it renders, sorts by keyboard, and asks for nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from polyclinic.evaluation.report import render_report

sync = pytest.importorskip("websockets.sync.client", reason="NOT TESTED: websockets is not installed")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="NOT TESTED IN A BROWSER: there is no chromium here")
WriteRun = Callable[..., Path]  # the fixtures of conftest.py
Evaluation = Callable[..., dict[str, Any]]


class Tab:
    """One page: ``told`` holds every event that the browser told."""

    def __init__(self, address: str) -> None:
        self._socket = sync.connect(address, max_size=2**26)
        self._count = 0
        self.told: list[dict[str, Any]] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        self._socket.send(json.dumps({"id": self._count, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=30))
            if message.get("id") == self._count:
                assert "error" not in message, message
                return dict(message["result"])
            self.told.append(message)

    def value(self, script: str) -> Any:
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def open(self, page: Path) -> None:
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=page.as_uri())
        for _ in range(200):
            if self.value("document.readyState + location.protocol") == "completefile:":
                return
            time.sleep(0.05)
        raise AssertionError("the page did not load")

    def press(self, key: str) -> None:
        code = {"Tab": 9, "Enter": 13}[key]
        more = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **more)


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    home = tmp_path_factory.mktemp("browser")
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", f"--user-data-dir={home}"]
    environment = os.environ | {"HOME": str(home)}
    with (home / "log").open("w") as log:
        process = subprocess.Popen([str(BROWSER), *flags, "about:blank"], stderr=log, stdout=log, env=environment)
    try:
        for _ in range(600):
            told = re.search(r"ws://([\d.:]+)/", (home / "log").read_text())
            if told or process.poll() is not None:
                break
            time.sleep(0.05)
        assert told, (home / "log").read_text()
        with urlopen(f"http://{told[1]}/json/list", timeout=30) as answer:
            pages = [one for one in json.load(answer) if one["type"] == "page"]
        yield Tab(pages[0]["webSocketDebuggerUrl"])
    finally:
        process.terminate()
        process.wait(timeout=30)


ORDER = "[...document.querySelector('table.sortable').tBodies[0].rows].map(row => row.cells[{}].textContent.trim())"


def test_the_report_renders_sorts_by_keyboard_and_asks_for_nothing(
    tab: Tab, write_run: WriteRun, evaluation: Evaluation
) -> None:
    def change(summary: dict[str, Any]) -> None:
        summary["evaluation"] = evaluation(column="sex", groups=["f", "m", "missing"])
        for site, auroc in zip(summary["metrics"]["sites"].values(), (0.7, None, 0.9, 0.8), strict=True):
            site["auroc"] = auroc

    tab.open(render_report(write_run(change=change)))
    images = tab.value("[...document.images].map(image => image.naturalWidth)")
    assert len(images) == 6 and all(width > 100 for width in images)
    assert tab.value("document.querySelector('table.sortable').tHead.querySelectorAll('button').length") == 8
    tab.value("document.querySelector('table.sortable').tHead.querySelectorAll('button')[1].focus()")
    tab.press("Tab")
    assert tab.value("document.activeElement.textContent.trim()") == "AUROC"
    tab.press("Enter")
    assert tab.value(ORDER.format(2)) == ["0.700", "0.800", "0.900", "undefined"]
    assert tab.value("document.activeElement.closest('th').getAttribute('aria-sort')") == "ascending"
    tab.press("Enter")
    assert tab.value(ORDER.format(2)) == ["0.900", "0.800", "0.700", "undefined"]
    assert tab.value("document.querySelector('tbody.totals th').textContent") == "Pooled"
    assert not [event for event in tab.told if event["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")]
    asked = [event["params"]["request"]["url"] for event in tab.told if event["method"] == "Network.requestWillBeSent"]
    assert asked and all(url.startswith(("file:", "data:")) for url in asked)


def test_it_is_dark_on_a_dark_screen_light_in_print_and_fits_a_narrow_one(
    tab: Tab, write_run: WriteRun, evaluation: Evaluation
) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    tab.open(render_report(write_run(change=lambda s: s.update(evaluation=evaluation()))))
    tab.call("Emulation.setEmulatedMedia", media="", **dark)
    assert tab.value(paper) == "rgb(26, 26, 26)"
    tab.call("Emulation.setEmulatedMedia", media="print", **dark)
    assert tab.value(paper) == "rgb(255, 255, 255)"
    assert len(tab.call("Page.printToPDF")["data"]) > 10_000
    tab.call("Emulation.setEmulatedMedia", media="")
    tab.call("Emulation.setDeviceMetricsOverride", width=360, height=800, deviceScaleFactor=1, mobile=False)
    assert tab.value("document.documentElement.scrollWidth") <= 360
    tab.call("Emulation.clearDeviceMetricsOverride")


def test_an_injected_script_does_not_run(tab: Tab, write_run: WriteRun) -> None:
    page = render_report(write_run())
    html = page.read_text(encoding="utf-8")
    page.write_text(html.replace("</main>", "<script>document.title = 'taken'</script></main>"), encoding="utf-8")
    tab.told.clear()
    tab.open(page)
    assert tab.value("document.title") != "taken"
    assert any("Content Security Policy" in json.dumps(event) for event in tab.told)
