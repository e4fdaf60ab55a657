"""The partial likelihood of proportional hazards, as lifelines and statsmodels have it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lifelines import CoxPHFitter
from lifelines.datasets import load_rossi
from statsmodels.duration.hazard_regression import PHReg

from polyclinic.inference.cox import partial_likelihood
from polyclinic.types import Bools, Floats, Ints

TERMS = ["fin", "age", "race", "wexp", "mar", "paro", "prio"]


def newton(time: Floats, event: Bools, x: Floats, hospital: Ints, ties: str = "efron") -> tuple[float, Floats, Floats]:
    """The largest log partial likelihood within hospitals, its estimate and standard errors."""
    estimate, value, information = np.zeros(x.shape[1]), 0.0, np.zeros((x.shape[1], x.shape[1]))
    for _ in range(12):
        parts = [
            partial_likelihood(time[hospital == h], event[hospital == h], x[hospital == h], estimate, ties)
            for h in np.unique(hospital)
        ]
        value, information = sum(part[0] for part in parts), np.sum([part[2] for part in parts], axis=0)
        estimate = estimate + np.linalg.solve(information, np.sum([part[1] for part in parts], axis=0))
    return value, estimate, np.sqrt(np.diag(np.linalg.inv(information)))


def test_newton_steps_over_hospitals_are_lifelines_stratified_fit() -> None:
    table = load_rossi().assign(hospital=np.arange(432) % 4)
    x = table[TERMS].to_numpy(float)
    value, estimate, errors = newton(
        table["week"].to_numpy(float), table["arrest"].to_numpy(bool), x - x.mean(axis=0), table["hospital"].to_numpy()
    )
    theirs = CoxPHFitter().fit(table, "week", "arrest", strata=["hospital"], fit_options={"precision": 1e-10})
    assert estimate == pytest.approx(theirs.params_[TERMS].to_numpy(), abs=1e-6)
    assert errors == pytest.approx(theirs.standard_errors_[TERMS].to_numpy(), abs=1e-6)
    assert value == pytest.approx(theirs.log_likelihood_, abs=1e-6)


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_both_ways_to_break_ties_are_those_of_statsmodels(ties: str) -> None:
    table = load_rossi()
    time, event, x = table["week"].to_numpy(float), table["arrest"].to_numpy(bool), table[TERMS].to_numpy(float)
    hospital = np.arange(432) % 3
    value, estimate, errors = newton(time, event, x - x.mean(axis=0), hospital, ties)
    theirs = PHReg(time, x, status=event, strata=hospital, ties=ties).fit(gtol=1e-10)
    assert estimate == pytest.approx(theirs.params, abs=1e-5) and errors == pytest.approx(theirs.bse, abs=1e-5)
    assert value == pytest.approx(theirs.llf, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["efron", "breslow"]))
def test_score_and_information_are_derivatives(seed: int, ties: str) -> None:
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(1, 12))
    time, event = rng.integers(0, 4, rows).astype(float), rng.random(rows) < 0.7
    x, at, step = rng.normal(size=(rows, 2)), rng.normal(size=2), 1e-5
    _, score, information = partial_likelihood(time, event, x, at, ties)
    for k in range(2):
        moved = [partial_likelihood(time, event, x, at + sign * step * np.eye(2)[k], ties) for sign in (1, -1)]
        assert (moved[0][0] - moved[1][0]) / (2 * step) == pytest.approx(score[k], abs=1e-5)
        assert (moved[1][1] - moved[0][1]) / (2 * step) == pytest.approx(information[k], abs=1e-4)


def test_hospitals_without_events_or_patients_say_nothing() -> None:
    none = partial_likelihood(np.zeros(0), np.zeros(0, dtype=bool), np.zeros((0, 2)), np.ones(2))
    quiet = partial_likelihood(np.ones(3), np.zeros(3, dtype=bool), np.ones((3, 2)), np.ones(2))
    for value, score, information in (none, quiet):
        assert value == 0 and not score.any() and not information.any()
