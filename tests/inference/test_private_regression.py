"""Regressions under noise: no patient is longer than one, nothing is bent by shortening, and intervals cover."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.errors import ConfigError, DataError
from polyclinic.inference.families import FAMILIES
from polyclinic.privacy.streams import generator
from polyclinic.privacy.sums import clipped_total
from polyclinic.training.regression.exact import ExactRegression
from polyclinic.training.regression.formula import design_of
from polyclinic.training.regression.private import PrivateRegression
from polyclinic.types import Arrays, Floats
from tests.inference.records import LAYOUT, records, rows

FORMULAS = {
    "linear": "stay ~ age + sex + C(region)",
    "logistic": "died ~ age + sex + C(region)",
    "poisson": "visits ~ age + sex",
}
Z = rows(records(4000, 1))


def method_of(family: str, formula: str = "", rounds: int = 10) -> PrivateRegression:
    return PrivateRegression.of(design_of(formula or FORMULAS[family], LAYOUT), FAMILIES[family], LAYOUT, rounds)


def state_of(method: PrivateRegression, z: Floats, multiplier: float, rng: np.random.Generator) -> Arrays:
    n = len(z)
    state: Arrays = {"patients": np.array([float(n)])}
    method.newton.check_noise(multiplier / n)
    for number in range(1, method.rounds + 1):
        question = method.question(number, state)
        total = clipped_total(
            lambda z, of, n, q=question: method.contributions(1, q, z, of, n), method.newton.width, z, np.arange(n), n
        )
        total = total + multiplier * rng.standard_normal(len(total))
        state = method.absorb(number, state | {"patients": np.array([float(n)])}, total / n, multiplier / n)
    return state


@pytest.mark.parametrize("family", FORMULAS)
def test_without_noise_it_is_near_the_exact_fit(family: str) -> None:
    from tests.inference.test_exact_regression import state_of as exact_state

    method, rng = method_of(family), generator(0, "none")
    table = records(4000, 1)
    z = rows(table.assign(visits=rng.poisson(np.exp(0.02 * table["age"].fillna(60) - 0.5))))
    fit = method.fit(state_of(method, z, 0.0, rng))
    exact = ExactRegression(method.design, FAMILIES[family], LAYOUT, 10, 5)
    expected = exact.fit(exact_state(exact, [z])[0])
    errors = np.sqrt(np.diag(expected.covariance))
    assert (np.abs(fit.estimates - expected.estimates) / errors).max() < 0.5
    assert np.sqrt(np.diag(fit.covariance)) == pytest.approx(errors, rel=0.12)
    assert fit.noise == pytest.approx(np.ones(len(fit.names))) and abs(fit.rows - expected.rows) <= 1
    if family == "linear":
        assert fit.deviation == pytest.approx(expected.deviation, rel=0.05)


@settings(max_examples=60)
@given(
    row=st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=6, max_size=6),
    estimate=st.lists(st.floats(-1e3, 1e3), min_size=6, max_size=6),
    size=st.floats(1e-6, 1e6), family=st.sampled_from(sorted(FORMULAS)),
)  # fmt: skip
def test_no_record_gives_a_longer_vector_than_one(
    row: list[float], estimate: list[float], size: float, family: str
) -> None:
    method = method_of(
        family, {"linear": "stay", "logistic": "died", "poisson": "visits"}[family] + " ~ age + sex + C(region)"
    ).newton
    k = len(method.start)
    question = {"estimate": np.array(estimate[:k]), "basis": size * np.eye(k), "bound": np.array([3.0])}
    record = np.array([row[: len(method.likelihood.columns) - 1] + row[-1:]])
    vectors = method.contributions(question, record)
    assert vectors.shape == (1, method.width) and np.isfinite(vectors).all() and np.linalg.norm(vectors) <= 1.0
    record[0, -1] = np.nan
    assert not method.contributions(question, record).any()


@pytest.mark.parametrize("family", FORMULAS)
def test_shortening_bends_nothing(family: str) -> None:
    """At the true parameters the mean of the shortened scores is zero, however many rows are shortened."""
    from scipy import special

    rng = generator(3, family)
    n, beta = 200_000, np.array([-2.0, 0.8, 0.5])
    x = np.column_stack([np.ones(n), np.clip(rng.standard_normal(n) ** 3 / 2, -5, 5), rng.integers(0, 2, n)])
    eta = x @ beta
    y: Any = {
        "linear": lambda: eta + rng.standard_normal(n), "logistic": lambda: rng.uniform(size=n) < special.expit(eta),
        "poisson": lambda: rng.poisson(np.exp(eta)),
    }[family]()  # fmt: skip
    method = method_of(
        family, {"linear": "stay", "logistic": "died", "poisson": "visits"}[family] + " ~ age + sex"
    ).newton
    k = len(method.start)
    question = {"estimate": np.append(beta, np.zeros(k - 3)), "basis": 2.0 * np.eye(k), "bound": np.array([1.0])}
    vectors = method.contributions(question, np.column_stack([x, np.asarray(y, float)]))
    weight = vectors[:, -2] / vectors[:, -1].max()
    assert weight.mean() < 0.5 and weight.max() < 1  # all are shortened
    scores = vectors[:, :k]
    assert (np.abs(scores.mean(axis=0)) < 4.5 * scores.std(axis=0) / np.sqrt(n)).all()


def test_a_family_without_bounded_scores_and_a_budget_that_hides_all_are_refused() -> None:
    with pytest.raises(ConfigError, match="no private fit; take poisson"):
        method_of("negative-binomial", "visits ~ age")
    with pytest.raises(ConfigError, match="budget is too small"):
        state_of(method_of("logistic"), Z[:200], 10.0, generator(0, "few"))
    with pytest.raises(DataError, match="hides the information|did not settle"):
        method = method_of("logistic", "died ~ sex + I(sex * 2)")
        method.fit(state_of(method, Z, 30.0, generator(0, "flat")))


def test_questions_of_another_form_are_refused() -> None:
    method = method_of("logistic")
    for wrong in ({"bound": np.zeros(1)}, {"basis": np.eye(3)[None]}, {"estimate": np.zeros((1, 5), dtype=np.float32)}):
        with pytest.raises(ConfigError, match="The question's"):
            method.contributions(1, method.question(1, {}) | wrong, Z[:2], np.arange(2), 2)
