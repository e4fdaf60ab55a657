"""Cox's regression with privacy: no patient is longer than one, shortening bends nothing, and intervals cover."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.config import RunConfig
from polyclinic.ehr.schema import Schema
from polyclinic.inference.bounded_newton import Regressed
from polyclinic.inference.cox import BoundedHazards
from polyclinic.inference.families import Poisson
from polyclinic.privacy.accounting import calibrate_noise_multiplier, gaussian_event
from polyclinic.privacy.sums import clipped_total
from polyclinic.programs import program_of
from polyclinic.programs.analyses.cox import Cox
from polyclinic.training.survival.cox import PrivateCox
from polyclinic.types import Arrays, Floats, Ints

SCHEMA = Schema.from_dict({
    "name": "made-up", "unit": "record",
    "columns": [
        {"name": "age", "kind": "continuous", "bounds": [30, 90], "centre": 60, "spread": 12},
        {"name": "smoker", "kind": "binary"},
        {"name": "stage", "kind": "categorical", "categories": ["I", "II", "III"]},
        {"name": "years", "kind": "continuous", "role": "duration", "bounds": [0, 5]},
        {"name": "died", "kind": "binary", "role": "event"},
    ],
})  # fmt: skip
TRUE = np.array([0.04, 0.5, 0.3, 0.9])


def method_of(rounds: int = 10, terms: str = "age + smoker + stage") -> PrivateCox:
    options = {"terms": terms, "intervals": 5}
    program = program_of(RunConfig(task="cox", task_options=options, rounds=rounds))
    assert isinstance(program, Cox)
    method = program.method(SCHEMA)
    assert isinstance(method, PrivateCox)
    return method


def patients(method: PrivateCox, count: int, rng: np.random.Generator) -> Floats:
    """Rows of patients whose hazard grows with time, and is in proportion to exp(x ``TRUE``)."""
    age, smoker, stage = rng.normal(60, 12, count).clip(30, 90), rng.random(count) < 0.4, rng.integers(0, 3, count)
    risk = np.exp(TRUE[0] * (age - 60) + TRUE[1] * smoker + np.append(0.0, TRUE[2:])[stage])
    died, left = (rng.exponential(1.0, count) / (0.03 * risk)) ** (1 / 1.3), rng.uniform(1, 8, count).clip(max=5.0)
    x = np.column_stack([(age - 30) / 30 - 1, smoker, np.eye(3)[stage]])
    return method.layout.rows(x, np.column_stack([np.minimum(died, left), died <= left]))


def state_of(method: PrivateCox, z: Floats, multiplier: float, rng: np.random.Generator) -> Arrays:
    n = len(z)
    state: Arrays = {"patients": np.array([float(n)])}
    method.newton.check_noise(multiplier / n)
    for number in range(1, method.rounds + 1):
        question = method.question(number, state)

        def vectors(z: Floats, of: Ints, count: int, asked: Arrays = question) -> Floats:
            return method.contributions(1, asked, z, of, count)

        total = clipped_total(vectors, method.newton.width, z, np.arange(n), n)
        noisy = total + multiplier * rng.standard_normal(len(total))
        state = method.absorb(number, state | {"patients": np.array([float(n)])}, noisy / n, multiplier / n)
    return state


@settings(max_examples=60)
@given(
    row=st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=4, max_size=4),
    estimate=st.lists(st.floats(-1e3, 1e3), min_size=5, max_size=5), size=st.floats(1e-6, 1e6),
)  # fmt: skip
def test_no_patient_gives_a_longer_vector_than_one(row: list[float], estimate: list[float], size: float) -> None:
    model = Regressed(Poisson(), ("until 1", "until 2", "until 3", "a", "b"))
    newton = BoundedHazards(model, np.zeros(5), np.ones(5), 8, (0.0, 1.0, 2.0, 3.0))
    question = {"estimate": np.array(estimate), "basis": size * np.eye(5), "bound": np.array([3.0])}
    vectors = newton.contributions(question, np.array([row]))
    assert vectors.shape == (1, newton.width) and np.isfinite(vectors).all() and np.linalg.norm(vectors) <= 1.0
    assert not newton.contributions(question, np.array([[*row[:3], np.nan]])).any()


def test_shortening_bends_nothing() -> None:
    """At the true parameters the mean of the shortened scores is zero, however many patients are shortened."""
    rng, n = np.random.default_rng(0), 200_000
    x = np.column_stack([rng.standard_normal(n) ** 3 / 2, rng.integers(0, 2, n)]).clip(-3, 3)
    rate = 0.2 * np.exp(x @ [0.8, 0.5])
    died, left = rng.exponential(1 / rate), rng.uniform(0, 6, n)
    records = np.column_stack([x, np.minimum(died, left), died <= left])
    model = Regressed(Poisson(), ("until 1", "until 2", "until 4", "a", "b"))
    newton = BoundedHazards(model, np.zeros(5), np.ones(5), 8, (0.0, 1.0, 2.0, 4.0))
    estimate = np.array([np.log(0.2), np.log(0.2), np.log(0.4), 0.8, 0.5])
    vectors = newton.contributions({"estimate": estimate, "basis": 2.0 * np.eye(5), "bound": np.array([1.0])}, records)
    assert (vectors[:, -2] / vectors[:, -1]).mean() < 0.7  # most are shortened
    assert (np.abs(vectors[:, :5].mean(axis=0)) < 4.5 * vectors[:, :5].std(axis=0) / np.sqrt(n)).all()


def test_without_noise_it_is_near_coxs_own_estimate() -> None:
    import pandas as pd
    from lifelines import CoxPHFitter

    method, rng = method_of(), np.random.default_rng(1)
    z = patients(method, 3000, rng)
    fit = method.fit(state_of(method, z, 0.0, rng))
    x, event, _ = method.design.rows(z[:, :-1])
    table = pd.DataFrame(x, columns=list(method.design.names)).assign(T=z[:, -1], E=event)
    theirs = CoxPHFitter().fit(table, "T", "E")
    errors = theirs.standard_errors_.to_numpy()
    assert (np.abs(fit.estimates - theirs.params_.to_numpy()) < 0.35 * errors).all()
    assert np.sqrt(np.diag(fit.covariance)) == pytest.approx(errors, rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "count", "runs"), [(1.0, 15_000, 80), (3.0, 5_000, 120), (10.0, 2_000, 200)])
def test_intervals_cover(epsilon: float, count: int, runs: int) -> None:
    from dp_accounting import SelfComposedDpEvent

    method, rng, covered = method_of(), np.random.default_rng(2), np.zeros(4)
    noise = calibrate_noise_multiplier(epsilon, 1e-5, lambda s: SelfComposedDpEvent(gaussian_event(s), method.rounds))
    wider = []
    for _ in range(runs):
        fit = method.fit(state_of(method, patients(method, count, rng), noise, rng))
        covered += np.abs(fit.estimates - TRUE) < 1.96 * np.sqrt(np.diag(fit.covariance))
        wider.append(fit.noise)
    print(epsilon, noise, covered / runs, np.mean(wider, axis=0))
    assert (covered / runs > 0.91).all() and covered.mean() / runs > 0.93 and covered.mean() / runs < 0.975
