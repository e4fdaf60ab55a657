"""Metrics of predicted survival, held to scikit-survival on the data that it ships, and to pairs counted one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sksurv.datasets import load_gbsg2, load_whas500
from sksurv.metrics import (
    brier_score,
    concordance_index_censored,
    concordance_index_ipcw,
    cumulative_dynamic_auc,
    integrated_brier_score,
)
from sksurv.nonparametric import kaplan_meier_estimator

from polyclinic.ehr.schema import Column
from polyclinic.evaluation.judges import judge_of
from polyclinic.evaluation.survival import (
    auroc_at,
    brier_scores,
    concordance,
    inverse_chances,
    kaplan_meier,
    mean_auroc,
    over_time,
)
from polyclinic.objectives.survival import Hazards
from polyclinic.types import Bools, Floats

COHORTS = {
    "gbsg2": (load_gbsg2, "pnodes", [181.5, 400.5, 730.5, 1100.5, 1800.5]),
    "whas500": (load_whas500, "age", [30.5, 180.5, 365.5, 900.5, 1500.5]),
}


class Cohort:
    """Outcomes, a risk, and survival that decays by it, at times at which nobody is censored."""

    def __init__(self, name: str) -> None:
        load, column, ends = COHORTS[name]
        x, self.y = load()
        event, time = self.y.dtype.names
        self.time, self.event = self.y[time].astype(float), self.y[event].astype(bool)
        self.risk, self.ends = np.log1p(x[column].to_numpy(float)), np.array(ends)
        hazards = np.exp(self.risk - self.risk.mean())
        self.survival = np.exp(-np.outer(hazards, self.ends / 3000))
        self.once = np.ones((1, len(self.time)))


@pytest.fixture(scope="module", params=COHORTS)
def cohort(request: pytest.FixtureRequest) -> Cohort:
    return Cohort(request.param)


def test_concordance_is_that_of_scikit_survival(cohort: Cohort) -> None:
    harrell = concordance(cohort.time, cohort.event, cohort.risk, cohort.once)[0]
    assert harrell == pytest.approx(concordance_index_censored(cohort.event, cohort.time, cohort.risk)[0], abs=1e-12)
    tau = cohort.ends[-1]
    uno = concordance(
        cohort.time, cohort.event & (cohort.time < tau), cohort.risk, cohort.once,
        inverse_chances(cohort.time, cohort.event) ** 2,
    )[0]  # fmt: skip
    assert uno == pytest.approx(concordance_index_ipcw(cohort.y, cohort.y, cohort.risk, tau)[0], abs=1e-12)
    assert 0.5 < harrell < 0.75 and uno != harrell


def test_brier_scores_are_those_of_scikit_survival(cohort: Cohort) -> None:
    ours = brier_scores(cohort.time, cohort.event, cohort.survival, cohort.ends)
    theirs = brier_score(cohort.y, cohort.y, cohort.survival, cohort.ends)[1]
    assert ours.mean(axis=0) == pytest.approx(theirs, abs=1e-12)
    whole = integrated_brier_score(cohort.y, cohort.y, cohort.survival, cohort.ends)
    assert over_time(ours, cohort.ends).mean() == pytest.approx(whole, abs=1e-12)
    assert over_time(ours[:, :1], cohort.ends[:1]) == pytest.approx(ours[:, 0])


def test_who_is_censored_when_a_score_is_taken_had_no_event_until_then() -> None:
    """Where scikit-survival counts nothing for such a patient, so that its mean is lower."""
    time, event, ends = np.array([1.0, 2.0, 3.0]), np.array([True, False, True]), np.array([2.0])
    scores = brier_scores(time, event, np.full((3, 1), 0.4), ends)
    assert scores[:, 0] == pytest.approx([0.4**2, 0.6**2, 0.6**2])


@pytest.mark.parametrize("by_time", [False, True])
def test_auroc_over_time_is_that_of_scikit_survival(cohort: Cohort, by_time: bool) -> None:
    risk = 1 - cohort.survival + 0.05 * np.sin(np.outer(cohort.time, cohort.ends)) if by_time else cohort.risk
    areas, mean = cumulative_dynamic_auc(cohort.y, cohort.y, risk, cohort.ends)
    for k, end in enumerate(cohort.ends):
        one = risk[:, k] if by_time else risk
        assert auroc_at(cohort.time, cohort.event, one, end, cohort.once)[0] == pytest.approx(areas[k], abs=1e-12)
    assert mean_auroc(cohort.time, cohort.event, risk, cohort.ends, cohort.once)[0] == pytest.approx(mean, abs=1e-12)


def test_what_a_run_is_judged_by_is_that_of_scikit_survival(cohort: Cohort) -> None:
    most = float(cohort.time.max())
    columns = (Column(name="time", kind="continuous", role="duration", bounds=(0, most)),
               Column(name="died", kind="binary", role="event"))  # fmt: skip
    judge = judge_of(Hazards(columns, edges=tuple(cohort.ends)))
    labels = np.stack([cohort.time, cohort.event], axis=1).astype(float)
    values = dict(zip(judge.titles, judge.with_weights(labels, cohort.survival, cohort.once)[0].tolist(), strict=True))
    risk, tau = -cohort.survival.sum(axis=1), cohort.ends[-1]
    assert values["concordance_uno"] == pytest.approx(concordance_index_ipcw(cohort.y, cohort.y, risk, tau)[0])
    seen = cohort.event & (cohort.time <= tau)
    assert values["concordance"] == pytest.approx(concordance_index_censored(seen, cohort.time.clip(0, tau), risk)[0])
    assert values["brier"] == pytest.approx(integrated_brier_score(cohort.y, cohort.y, cohort.survival, cohort.ends))
    area = cumulative_dynamic_auc(cohort.y, cohort.y, 1 - cohort.survival, cohort.ends)[1]
    assert values["auroc_over_time"] == pytest.approx(area)
    # The share that scikit-survival's Kaplan and Meier curve has lost by then, and by which predictions are off.
    at, alive = kaplan_meier_estimator(cohort.event, cohort.time)
    observed = alive[np.searchsorted(at, tau, "right") - 1]
    assert values["calibration_in_the_large"] == pytest.approx(observed - cohort.survival[:, -1].mean(), abs=1e-9)
    assert judge.calibration is not None
    predicted, seen_then = judge.calibration(labels, cohort.survival)
    assert predicted.mean() - seen_then.mean() == pytest.approx(-values["calibration_in_the_large"], abs=1e-9)


def test_the_curve_is_that_of_scikit_survival(cohort: Cohort) -> None:
    at, alive = kaplan_meier_estimator(cohort.event, cohort.time)
    assert kaplan_meier(cohort.time, cohort.event, at) == pytest.approx(alive, abs=1e-12)
    assert kaplan_meier(cohort.time, cohort.event, np.array([-1.0])) == 1.0


def pair_by_pair(time: Floats, event: Bools, risk: Floats, weight: Floats) -> float:
    right = pairs = 0.0
    for i in np.flatnonzero(event):
        for j in range(len(time)):
            if time[j] > time[i] or (time[j] == time[i] and not event[j]):
                pairs += weight[i] * weight[j]
                right += weight[i] * weight[j] * ((risk[i] > risk[j]) + (risk[i] == risk[j]) / 2)
    return right / pairs if pairs else np.nan


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 14), st.integers(0, 10**6))
def test_concordance_of_weighted_rows_counts_every_pair_once(rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    time, event = rng.integers(0, 5, rows).astype(float), rng.random(rows) < 0.6
    risk, weights = rng.integers(0, 4, rows).astype(float), rng.integers(0, 3, (3, rows)).astype(float)
    expected = [pair_by_pair(time, event, risk, weight) for weight in weights]
    assert concordance(time, event, risk, weights) == pytest.approx(expected, nan_ok=True)


def test_patients_who_are_censored_at_the_last_time_are_known_to_be_alive_until_then() -> None:
    time, event = np.array([1.0, 2.0, 3.0, 3.0]), np.array([True, False, False, False])
    scores = brier_scores(time, event, np.zeros((4, 1)), np.array([3.0]))
    assert scores[:, 0] == pytest.approx([0.0, 0.0, 1.5, 1.5])
    assert auroc_at(time, event, np.array([3.0, 0.0, 1.0, 1.0]), 3.0, np.ones((1, 4)))[0] == 1.0
