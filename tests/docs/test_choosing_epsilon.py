"""The page on choosing epsilon says of regressions what the check before a charge does, and of risks what epsilon means."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import DpEvent, SelfComposedDpEvent

from polyclinic.errors import ConfigError
from polyclinic.inference.bounded_newton import PRIOR, BoundedNewton, Regressed
from polyclinic.inference.families import FAMILIES, PrivateFamily
from polyclinic.privacy.accounting import calibrate_noise_multiplier, gaussian_event

PAGE = (Path(__file__).resolve().parents[2] / "docs/privacy/choosing-epsilon.md").read_text(encoding="utf-8")
ROUNDS, DELTA = 10, 1e-5


def event(noise: float) -> DpEvent:
    return SelfComposedDpEvent(gaussian_event(noise), ROUNDS)


@pytest.mark.parametrize(
    ("coefficients", "shown"), re.findall(r"^\| (\d+) \| ([\d,]+ \| [\d,]+ \| [\d,]+) \|$", PAGE, re.M)
)
def test_a_regression_of_fewer_patients_than_the_page_says_is_refused(coefficients: str, shown: str) -> None:
    family, k = FAMILIES["logistic"], int(coefficients)
    assert isinstance(family, PrivateFamily)
    model = Regressed(family, tuple(f"x{number}" for number in range(k)))
    method = BoundedNewton(model, np.zeros(k), np.full(k, PRIOR), ROUNDS)
    for epsilon, text in zip((1.0, 3.0, 10.0), shown.split(" | "), strict=True):
        noise, patients = calibrate_noise_multiplier(epsilon, DELTA, event), int(text.replace(",", ""))
        method.check_noise(noise / (patients + 1))
        with pytest.raises(ConfigError, match="noise would hide the information"):
            method.check_noise(noise / (patients - 1))


def test_the_page_says_how_far_odds_change() -> None:
    rows = re.findall(r"^\| ([\d.]+) \| ([\d,.]+) times \| ([\d.]+) % \|", PAGE, re.M)
    assert [float(epsilon) for epsilon, *_ in rows] == [0.1, 0.5, 1, 3, 8, 10]
    for epsilon, odds, sure in rows:
        factor = math.exp(float(epsilon))
        assert float(odds.replace(",", "")) == pytest.approx(factor, rel=0.04)
        assert float(sure) / 100 == pytest.approx(factor / (1 + factor), abs=0.005 if factor < 100 else 5e-5)
