"""The private posterior by sums: without noise the exact one, with noise as wide as it says, and bounded for any record."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.errors import ConfigError, DataError
from polyclinic.inference.gauss_newton import GaussNewton, fit, private_posterior
from polyclinic.inference.likelihood import Linear, Logistic
from polyclinic.privacy.streams import generator
from polyclinic_studies.flows.paper_regression import PaperRegression, maximum_likelihood, measurements, records_of

MODEL = PaperRegression()
RECORDS = records_of(measurements(0))
TABLE = RECORDS.numpy()
METHOD = GaussNewton(MODEL, np.zeros(5), np.ones(5))
LIKELIHOOD = maximum_likelihood(MODEL, RECORDS, torch.zeros(5, dtype=torch.float64))


def test_without_noise_it_is_the_exact_posterior() -> None:
    found = fit(METHOD, [TABLE], 0.0, generator(0, "none"))
    assert (
        abs((found.posterior.mean - LIKELIHOOD.mean) / LIKELIHOOD.deviations).max() < 0.15
    )  # few records are shortened
    assert found.posterior.deviations == pytest.approx(LIKELIHOOD.deviations, rel=0.01)
    assert found.posterior.correlations == pytest.approx(LIKELIHOOD.correlations, abs=0.01)
    assert found.mean_weight > 0.99 and found.inflation == pytest.approx(np.ones(5))


def test_hospitals_together_are_one_table() -> None:
    parts = [TABLE[:1000], TABLE[1000:2500], TABLE[2500:]]
    one, many = (fit(METHOD, tables, 2.0, generator(1, "noise")) for tables in ([TABLE], parts))
    assert many.posterior.mean == pytest.approx(one.posterior.mean, abs=1e-9)
    assert many.posterior.covariance == pytest.approx(one.posterior.covariance, rel=1e-6)
    apart = fit(METHOD, parts, 2.0, generator(1, "noise"), shared=False)
    assert (apart.inflation > one.inflation).all()


def test_what_noise_adds_is_what_the_covariance_says() -> None:
    noise = 20.0
    found = [fit(METHOD, [TABLE], noise, generator(seed, "noise")) for seed in range(40)]
    means = np.array([one.posterior.mean for one in found])
    claimed = np.mean([one.posterior.covariance - one.likelihood.covariance for one in found], axis=0)
    assert means.std(0) / np.sqrt(np.diag(claimed)) == pytest.approx(np.ones(5), abs=0.4)
    assert abs(np.mean([one.posterior.correlations for one in found], 0) - LIKELIHOOD.correlations).max() < 0.1


@settings(max_examples=40)
@given(
    record=st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=5, max_size=5),
    estimate=st.lists(st.floats(-50, 50), min_size=5, max_size=5),
    size=st.floats(1e-6, 1e6),
)
def test_no_record_gives_a_longer_vector_than_one(record: list[float], estimate: list[float], size: float) -> None:
    question = {"estimate": np.array(estimate), "basis": size * np.eye(5)}
    with np.errstate(all="ignore"):
        vectors = METHOD.contributions(question, np.array([record]))
    assert vectors.shape == (1, METHOD.width)
    assert np.isfinite(vectors).all() and np.linalg.norm(vectors[0]) <= 1.0


def test_a_prior_rules_where_records_say_nothing() -> None:
    rng = generator(5, "prior")
    x = rng.standard_normal((4000, 2)) * [1.0, 1e-3]
    table = np.column_stack([x, x[:, 0] + rng.standard_normal(4000)])
    method = GaussNewton(Linear(("a", "b", "y"), 1.0), np.array([0.0, 0.0, 0.3]), np.array([1.0, 1.0, 0.1]))
    found = fit(method, [table], 0.0, rng).posterior
    assert found.mean[1] == pytest.approx(1.0, abs=0.06)
    assert found.mean[2] == pytest.approx(0.3, abs=0.02) and found.deviations[2] == pytest.approx(0.1, rel=0.02)


def test_logistic_regression_with_noise_finds_slopes() -> None:
    rng = generator(6, "logistic")
    x = rng.standard_normal((5000, 2))
    y = rng.uniform(size=5000) < 1 / (1 + np.exp(-(0.5 + x @ [1.0, -0.7])))
    found = fit(
        GaussNewton(Logistic(("a", "b", "y")), np.zeros(3), 3 * np.ones(3)), [np.column_stack([x, y])], 5.0, rng
    )
    assert abs((found.posterior.mean - [0.5, 1.0, -0.7]) / found.posterior.deviations).max() < 4
    assert (found.inflation < 1.3).all()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"start": np.zeros(4)}, "start must be 5"),
        ({"scale": -np.ones(5)}, "scale must be positive"),
        ({"rounds": 1}, "rounds"),
    ],
)
def test_bad_settings_are_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        GaussNewton(**({"likelihood": MODEL, "start": np.zeros(5), "scale": np.ones(5)} | change))


def test_too_small_a_budget_is_refused() -> None:
    with pytest.raises(ConfigError, match="budget is too small"):
        fit(METHOD, [TABLE[:300]], 10.0, generator(0, "few"))
    flat = TABLE.copy()
    flat[:, 1] = 1.0  # beta0 and beta2 cannot be told apart
    with pytest.raises(DataError, match="hides the information"):
        fit(METHOD, [flat], 10.0, generator(0, "flat"))


def test_at_an_epsilon_it_says_what_it_found_and_what_that_cost() -> None:
    found = private_posterior(METHOD, [TABLE[:3000], TABLE[3000:]], 5.0, 1e-5, generator(3, "epsilon"))
    assert 4.9 < found["privacy"]["epsilon"] <= 5.0 and found["privacy"]["rounds"] == METHOD.rounds
    assert list(found["parameters"]) == list(MODEL.names)
    for row, mean, deviation in zip(found["parameters"].values(), LIKELIHOOD.mean, LIKELIHOOD.deviations, strict=True):
        assert row["low"] < mean < row["high"] and row["sd"] == pytest.approx(deviation, rel=0.05)
        assert 1 < row["inflation"] < 1.1
    assert np.array(found["correlations"])[np.triu_indices(5, 1)] == pytest.approx(LIKELIHOOD.correlations, abs=0.05)
