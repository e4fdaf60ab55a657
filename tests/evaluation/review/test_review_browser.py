"""The reviewers' form in headless Chromium: answered by keyboard, kept, saved as a file that the analysis reads."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
import pytest

from polyclinic.evaluation.review.answers import read_key, read_reviews
from polyclinic.evaluation.review.packet import choose, write_packet
from polyclinic.evaluation.review.scores import analyse
from tests.evaluation.browser import Tab, browser, needs_browser
from tests.evaluation.review.test_review import MADE, REAL, SHOWN

pytestmark = needs_browser
FOCUSED = "[document.activeElement.name, document.activeElement.value]"


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("review") / "packet"
    write_packet(choose(REAL, MADE, SHOWN, 4, 1), SHOWN, 1, out)
    return out


def press(tab: Tab, *keys: str) -> None:
    codes = {"Tab": 9, "Enter": 13, "ArrowRight": 39, " ": 32}
    for key in keys:
        code = codes.get(key, ord(key.upper()[0]))
        text: dict[str, Any] = {"text": "\r" if key == "Enter" else key} if key == "Enter" or len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            tab.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                windowsVirtualKeyCode=code,
                **(text if kind == "keyDown" else {}),
            )


def begin(tab: Tab, folder: Path, initials: str) -> None:
    tab.open((folder / "packet.html").as_uri())
    tab.value("document.getElementById('initials').focus()")
    press(tab, *initials, "Enter")


def test_a_reviewer_answers_by_keyboard_and_saves_a_file_that_is_read(tab: Tab, folder: Path, tmp_path: Path) -> None:
    tab.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    begin(tab, folder, "ab")
    assert tab.value(FOCUSED) == ["score-1", "0"]
    given = {1: ("7", "real"), 2: ("10", "synthetic"), 3: ("0", "real"), 4: ("3", "synthetic")}
    for number, (score, guess) in given.items():
        press(tab, *(["9", "ArrowRight"] if score == "10" else [score]), "Tab")
        assert tab.value("document.activeElement.name") == f"guess-{number}"
        press(tab, " ", *(["ArrowRight"] if guess == "synthetic" else []), "Tab")
    assert tab.value("document.getElementById('count').textContent") == "4 of 4 answered"
    assert tab.value("document.querySelectorAll('.state')[3].textContent") == "\u2713 answered"
    tab.value("document.getElementById('save').focus()")
    press(tab, "Enter")
    file = tmp_path / f"scores-AB-{read_key(folder).packet[:8]}.json"
    for _ in range(200):
        if file.is_file() and file.stat().st_size:
            break
        time.sleep(0.05)
    answers = json.loads(file.read_text())["answers"]
    assert {one["patient"]: (str(one["score"]), one["guess"]) for one in answers} == given
    key = read_key(folder)
    found = analyse(read_reviews([file], key), key)
    right = [key.real[number - 1] == (guess == "real") for number, (_, guess) in given.items()]
    assert found["pooled"]["guesses"]["accuracy"]["value"] == np.mean(right) and found["patients"] == 4
    assert not [event for event in tab.told if event["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")]
    asked = [event["params"]["request"]["url"] for event in tab.told if event["method"] == "Network.requestWillBeSent"]
    assert asked and all(url.startswith(("file:", "blob:")) for url in asked)


def test_answers_come_back_to_their_reviewer_alone(tab: Tab, folder: Path) -> None:
    begin(tab, folder, "cd")
    press(tab, "6", "Tab", " ")
    assert tab.value("document.getElementById('count').textContent") == "1 of 4 answered"
    stored = "Object.entries(localStorage).filter(([k]) => k.endsWith(':CD'))[0][1]"
    assert json.loads(tab.value(stored)) == [{"patient": 1, "score": 6, "guess": "real"}]  # no value of a record
    begin(tab, folder, "ef")
    assert tab.value("document.getElementById('count').textContent") == "0 of 4 answered"
    begin(tab, folder, "CD")
    assert tab.value("document.getElementById('count').textContent") == "1 of 4 answered"
    assert tab.value(FOCUSED)[0] == "score-2"


def test_nothing_can_be_answered_before_who_answers_is_said(tab: Tab, folder: Path) -> None:
    tab.open((folder / "packet.html").as_uri())
    assert tab.value("document.querySelector('#score-1, [name=score-1]').matches(':disabled')")
    tab.value("document.getElementById('initials').focus()")
    press(tab, "Enter")
    assert tab.value("document.getElementById('bar').checkVisibility()") is False


def test_it_is_dark_on_a_dark_screen_and_every_printed_page_warns(tab: Tab, folder: Path, tmp_path: Path) -> None:
    tab.open((folder / "packet.html").as_uri())
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    tab.call("Emulation.setEmulatedMedia", media="", **dark)
    assert tab.value("getComputedStyle(document.body).backgroundColor") == "rgb(26, 26, 26)"
    tab.call("Emulation.setEmulatedMedia", media="")
    tab.call("Emulation.setDeviceMetricsOverride", width=360, height=800, deviceScaleFactor=1, mobile=False)
    assert tab.value("document.documentElement.scrollWidth") <= 360
    tab.call("Emulation.clearDeviceMetricsOverride")
    if which("pdftotext") is None:
        pytest.skip("the printed pages are not read: there is no pdftotext here")
    (tmp_path / "p.pdf").write_bytes(base64.b64decode(tab.call("Page.printToPDF", preferCSSPageSize=True)["data"]))
    read = subprocess.run(
        ["pdftotext", str(tmp_path / "p.pdf"), "-"], capture_output=True, text=True, check=True
    ).stdout
    pages = read.rstrip("\f").split("\f")
    assert len(pages) >= 2 and all("real patients' records. It stays at the hospital." in page for page in pages)
