"""The page that shows what epsilon does, in headless Chromium: its figures are the library's, and it asks for nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from polyclinic.privacy.accounting.risk import risk
from polyclinic.privacy.mechanisms import FINE, laplace
from polyclinic.privacy.streams import keyed_stream
from tests.evaluation.browser import Tab, browser, needs_browser

pytestmark = needs_browser
PAGE = Path(__file__).resolve().parents[2] / "docs" / "privacy" / "epsilon.html"


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("browser")) as found:
        found.open(PAGE.as_uri())
        yield found


def shown(tab: Tab, name: str) -> float:
    text = tab.value(f"document.getElementById('{name}').textContent")
    return float(text.strip("±% ").replace(",", ""))


def move(tab: Tab, name: str, value: float) -> None:
    tab.value(f"at('{name}').value = {value}; at('{name}').dispatchEvent(new Event('input'))")


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_the_figures_are_those_of_the_laplace_mechanism(tab: Tab, epsilon: float) -> None:
    move(tab, "epsilon", math.log10(epsilon))
    mechanism = laplace(1 / epsilon, FINE)  # on so fine a grid the law is the continuous one
    assert shown(tab, "epsilon-shown") == pytest.approx(epsilon)
    released = mechanism.release(np.array([2000 * FINE]), keyed_stream(0, "page"))
    assert shown(tab, "deviation") == pytest.approx(float(np.max(released.standard_error)) / FINE, rel=1e-3)
    assert shown(tab, "within") == pytest.approx(math.log(20) / epsilon, rel=1e-3)
    assert shown(tab, "odds") == pytest.approx(math.exp(epsilon), rel=1e-3)
    # The most that a guess can gain over a coin, by the event that the ledger is charged.
    advantage = risk(mechanism.event).advantage
    assert shown(tab, "guess") / 100 == pytest.approx(0.5 + advantage / 2, abs=2e-3)


def test_a_mean_of_more_patients_has_less_noise_and_tells_as_much_of_alice(tab: Tab) -> None:
    move(tab, "epsilon", 0)
    tab.value("document.querySelector('input[value=mean]').click()")
    found = {}
    for patients in (2.0, 4.0):
        move(tab, "patients", patients)
        found[shown(tab, "patients-shown")] = shown(tab, "deviation"), shown(tab, "guess")
    assert {number: round(pair[0] * number, 1) for number, pair in found.items()} == {100: 169.7, 10_000: 169.7}
    assert found[100][1] == found[10_000][1]


def test_answers_vary_and_the_page_asks_for_nothing(tab: Tab) -> None:
    tab.value("document.querySelector('input[value=count]').click()")
    move(tab, "epsilon", -1)
    told = set()
    for _ in range(5):
        tab.value("at('ask').click()")
        told.add(tab.value("at('answer').textContent"))
    assert len(told) == 5 and all(text.startswith("With Alice: ") for text in told)
    draws = tab.value("Array.from({length: 4000}, () => laplace(2))")
    assert np.std(draws) == pytest.approx(2 * math.sqrt(2), rel=0.12) and abs(np.mean(draws)) < 0.25
    assert tab.value("document.querySelectorAll('polyline').length") == 2
    asked = [one["params"]["request"]["url"] for one in tab.told if one["method"] == "Network.requestWillBeSent"]
    assert asked == [PAGE.as_uri()]
    assert not [one for one in tab.told if one["method"] in ("Log.entryAdded", "Runtime.exceptionThrown")]
