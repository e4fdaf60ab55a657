"""The report in headless Chromium, by its DevTools protocol: it renders, sorts by keyboard, and asks for nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from polyclinic.evaluation.report import render_report
from tests.evaluation.browser import Tab, browser, needs_browser

pytestmark = needs_browser
WriteRun = Callable[..., Path]  # the fixtures of conftest.py
Evaluation = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


ORDER = "[...document.querySelector('table.sortable').tBodies[0].rows].map(row => row.cells[{}].textContent.trim())"


def test_the_report_renders_sorts_by_keyboard_and_asks_for_nothing(
    tab: Tab, write_run: WriteRun, evaluation: Evaluation
) -> None:
    def change(summary: dict[str, Any]) -> None:
        summary["evaluation"] = evaluation(column="sex", groups=["f", "m", "missing"])
        for site, auroc in zip(summary["evaluation"]["sites"].values(), (0.7, None, 0.9, 0.8), strict=True):
            site["auroc"] = {
                "value": auroc,
                "low": None if auroc != 0.9 else 0.1,
                "high": None if auroc != 0.9 else 1.0,
            }

    tab.open(render_report(write_run(change=change)).as_uri())
    images = tab.value("[...document.images].map(image => image.naturalWidth)")
    assert len(images) == 8 and all(width > 100 for width in images)
    assert tab.value("document.querySelector('table.sortable').tHead.querySelectorAll('button').length") == 8
    tab.value("document.querySelector('table.sortable').tHead.querySelectorAll('button')[1].focus()")
    tab.press("Tab")
    assert tab.value("document.activeElement.textContent.trim()") == "AUROC"
    tab.press("Enter")
    assert tab.value(ORDER.format(2)) == ["0.700", "0.800", "0.900 0.100 to 1.000", "undefined"]
    assert tab.value("document.activeElement.closest('th').getAttribute('aria-sort')") == "ascending"
    tab.press("Enter")
    assert tab.value(ORDER.format(2)) == ["0.900 0.100 to 1.000", "0.800", "0.700", "undefined"]
    assert tab.value("document.querySelector('tbody.totals th').textContent") == "Pooled"
    assert not [event for event in tab.told if event["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")]
    asked = [event["params"]["request"]["url"] for event in tab.told if event["method"] == "Network.requestWillBeSent"]
    assert asked and all(url.startswith(("file:", "data:")) for url in asked)


def test_it_is_dark_on_a_dark_screen_light_in_print_and_fits_a_narrow_one(
    tab: Tab, write_run: WriteRun, evaluation: Evaluation
) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    tab.open(render_report(write_run(change=lambda s: s.update(evaluation=evaluation()))).as_uri())
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
    tab.open(page.as_uri())
    assert tab.value("document.title") != "taken"
    assert any("Content Security Policy" in json.dumps(event) for event in tab.told)
