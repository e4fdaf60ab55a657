"""Private metrics of numbers, quantiles and several labels: what one patient can change, and how near they come to exact ones."""

from typing import Any

import numpy as np
import pytest

from polyclinic.config import RunConfig
from polyclinic.evaluation.judges import judge_of
from polyclinic.objectives.objective import Objective
from polyclinic.plugins import objective_of
from polyclinic.privacy.accounting import epsilon
from polyclinic.privacy.mechanisms import FINE
from polyclinic.privacy.streams import keyed_stream
from polyclinic.releases.errors import question_of
from polyclinic.releases.measured import Measured, Noised
from polyclinic.releases.question import Pricing
from tests.objectives.cohorts import records, schema

KINDS = {"squared": "days", "poisson": "visits", "quantile": "days", "multi-label": "codes"}
PRICING = Pricing(1e-5, "pld", "add-remove")


def objective(name: str) -> Objective:
    options: dict[str, Any] = {"quantile": {"levels": [0.1, 0.5, 0.9]}}
    config = RunConfig(objective=name, objective_options=options.get(name, {}))
    return objective_of(config, schema(KINDS[name]).labels)


def question(name: str, noise: float) -> Measured:
    found = question_of(objective(name))
    assert found is not None
    return found[0](found[1], noise)


def made_up(name: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels, and predictions that know something of them."""
    from polyclinic.ehr.encoding import encode

    labels = encode(records(KINDS[name], rows), schema(KINDS[name])).y
    rng, columns = np.random.default_rng(1), len(objective(name).columns)
    if name == "multi-label":
        return labels, 1 / (1 + np.exp(-(2 * labels - 1 + rng.normal(size=labels.shape))))
    return labels, np.sort(labels[:, None] + rng.normal(size=(rows, columns)) * 2, axis=1).clip(0, 30)


@pytest.mark.parametrize("name", KINDS)
def test_one_patient_changes_the_noised_numbers_by_at_most_the_sensitivity(name: str) -> None:
    asked, (labels, scores) = question(name, 1.0), made_up(name, 300)
    scores[:6] = [[value] * scores.shape[1] for value in (np.nan, np.inf, -np.inf, 1e30, 0.0, 1.0)]
    patient = np.random.default_rng(2).integers(0, 40, 300)
    patient[:6] = np.arange(100, 106)
    whole, largest = asked.parts(asked.count(labels, scores, patient)), 0.0
    for gone in np.unique(patient):
        rest = patient != gone
        change = whole - asked.parts(asked.count(labels[rest], scores[rest], patient[rest]))
        largest = max(largest, float(np.linalg.norm(change)))
    assert 0.4 * asked.sensitivity < largest <= asked.sensitivity
    assert asked.count(labels[:0], scores[:0], patient[:0]).shape == asked.shape


@pytest.mark.parametrize("name", KINDS)
def test_figures_of_many_patients_are_near_the_exact_ones(name: str) -> None:
    found = question_of(objective(name))
    assert found is not None
    asked = found[0].within(found[1], 1.0, 1, PRICING)
    assert 0.99 < epsilon(asked.event, 1e-5) <= 1.0
    labels, scores = made_up(name, 20_000)
    judge = judge_of(objective(name))
    values = judge.with_weights(labels, scores, np.ones((1, len(labels))))[0]
    exact = dict(zip(judge.titles, values, strict=True))
    told = asked.answer(asked.count(labels, scores, np.arange(20_000)), keyed_stream(0, "t", 0, "s"))
    for metric, estimate in told.estimates().items():
        if metric == "patients":
            assert estimate["value"] == pytest.approx(20_000, abs=60)
        else:
            assert estimate["value"] == pytest.approx(exact[metric], abs=0.02 + 5 * (estimate["error"] or 0)), metric
            assert (estimate["error"] or 1) < 0.05, metric


def test_the_error_beside_a_figure_is_that_of_the_noise_and_drowned_figures_are_undefined() -> None:
    asked, (labels, scores) = question("squared", 3.7), made_up("squared", 1000)
    exact = asked.count(labels, scores, np.arange(1000))
    released = [asked.answer(exact, keyed_stream(seed, "t", 0, "s")) for seed in range(120)]
    for name in ("mae", "r2", "calibration_in_the_large"):
        spread = np.std([float(one.values()[name] or 0.0) for one in released])
        assert released[0].estimates()[name]["error"] == pytest.approx(spread, rel=0.35), name
    drowned = asked.noisy_answer(exact / FINE / 500, released[0].deviation).values()
    assert all(value is None for name, value in drowned.items() if name != "patients")
    pooled = Noised.pool(released[:2])
    assert pooled.counts == pytest.approx(released[0].counts + released[1].counts)
    assert pooled.deviation == pytest.approx(2**0.5 * released[0].deviation)


def test_a_time_until_an_event_has_no_private_metrics() -> None:
    assert question_of(objective_of(RunConfig(), schema("survival").labels)) is None
