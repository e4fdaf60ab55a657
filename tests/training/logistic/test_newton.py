"""Newton's sums are bounded by a patient and lead to the logistic regression of an optimizer; risks are calibrated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from polyclinic import RunResult
from polyclinic.config import RunConfig
from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import ConfigError
from polyclinic.privacy.streams import generator
from polyclinic.training.logistic.newton import Newton, Table
from polyclinic.types import Arrays, Floats, Ints

Quick = Callable[..., RunResult]
NEWTON = {"training.optimizer": "newton"}
#: The fixture takes two steps a round.
RUN = {**NEWTON, "training.local-steps": 1, "rounds": 8}


def _method(features: int, classes: int = 2, rounds: int = 8, recalibrates: bool = True) -> Newton:
    columns = [Column(name=f"x{number}", kind="continuous", bounds=(-1, 1)) for number in range(features)]
    label = Column(name="y", kind="categorical", role="label", categories=tuple(map(str, range(classes))))
    schema = Schema(name="made-up", unit="record", columns=(*columns, label))
    return Newton(
        Table(schema, np.zeros(features), np.ones(features), np.zeros(features, dtype=bool)), rounds, recalibrates
    )


def _made_up(patients: int, features: int, rate: float, seed: int = 0) -> tuple[Floats, Ints]:
    """Correlated features, of which one has a heavy tail, and an outcome that is logistic in them."""
    rng = generator(seed, "made-up")
    x = rng.standard_normal((patients, features)) @ (
        np.eye(features) + 0.3 * rng.standard_normal((features, features)) / np.sqrt(features)
    )
    x[:, -1] = np.exp(x[:, -1]) - 1.6
    logits = x @ (1.5 * rng.standard_normal(features) / np.sqrt(features))
    chance = 1 / (1 + np.exp(-(logits - np.quantile(logits, 1 - rate))))
    return x, (rng.random(patients) < chance).astype(np.int64)


def _fit(method: Newton, x: Floats, y: Ints, noise: float = 0.0, seed: int = 0) -> Floats:
    """(q, K-1) weights of every class less the first's after all rounds, with noise of this multiplier in each sum."""
    rng, patients = generator(seed, "noise"), len(y)
    z, state = method.layout.rows(x, y), {"patients": np.array([float(patients)])}
    for round in range(1, method.rounds + 1):
        question = method.question(round, state)
        total = method.contributions(round, question, z, np.arange(patients), patients).sum(axis=0)
        assert total.shape == (method.size(round, question),)
        total += noise * rng.standard_normal(len(total))
        state = method.absorb(round, state, total / patients, noise / patients)
    return _weights(method, state)


def _weights(method: Newton, state: Arrays) -> Floats:
    classes, features = method.layout.classes, method.layout.features
    model = method.arrays(state, {"0.weight": np.zeros((classes, features)), "0.bias": np.zeros(classes)})
    whole = np.concatenate([model["0.bias"][:, None], model["0.weight"]], axis=1)
    return (whole[1:] - whole[0]).T


def _risks(weights: Floats, x: Floats) -> Floats:
    return 1 / (1 + np.exp(-(weights[0, 0] + x @ weights[1:, 0])))


@pytest.mark.parametrize("classes", [2, 4])
def test_no_patient_moves_a_sum_by_more_than_one(classes: int) -> None:
    """Whatever the row, the question and the number of rows are."""
    method, rng = _method(5, classes), generator(1, "rows")
    x = rng.standard_normal((400, 5)) * 10.0 ** rng.integers(-3, 200, (400, 1))
    y, patient = rng.integers(0, classes, 400), np.arange(400) // 2
    asked: dict[str, Any] = {
        "basis": rng.standard_normal((6, 6)), "weights": rng.standard_normal((6, classes - 1)), "radius": np.array([0.7]),
    }  # fmt: skip
    last = {"centre": rng.standard_normal(classes - 1), "spread": np.array([0.1]), "most_rows": np.array([2.0])}
    for question in ({}, asked, asked | last):
        vectors = method.contributions(1, question, method.layout.rows(x, y), patient, 200)
        lengths = np.linalg.norm(vectors[np.isfinite(vectors).all(axis=1)], axis=1)
        assert 0.5 < lengths.max() <= 1 + 1e-12


def test_without_noise_it_is_the_logistic_regression_of_shortened_rows() -> None:
    """Against another optimizer: normal features, of which few rows are shortened."""
    rng = generator(2, "normal")
    x = rng.standard_normal((20_000, 6)) @ (np.eye(6) + 0.4 * np.ones((6, 6)))
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    truth = np.array([-1.0, 0.5, -0.3, 0.8, 0.0, 0.2, -0.6])
    y = (rng.random(len(x)) < 1 / (1 + np.exp(-(truth[0] + x @ truth[1:])))).astype(np.int64)
    whole = np.concatenate([np.ones((len(x), 1)), x], axis=1)
    exact = minimize(
        lambda w: np.logaddexp(0.0, whole @ w).sum() - whole[y == 1].sum(axis=0) @ w, np.zeros(7), method="BFGS"
    )
    np.testing.assert_allclose(_fit(_method(6), x, y)[:, 0], exact.x, atol=0.05)


def test_three_classes_are_the_multinomial_regression() -> None:
    rng = generator(3, "classes")
    x = rng.standard_normal((20_000, 4))
    logits = np.concatenate([np.zeros((len(x), 1)), x @ rng.standard_normal((4, 2)) + np.array([0.5, -1.0])], axis=1)
    y = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    reference = LogisticRegression(C=np.inf, max_iter=1000).fit(x, y)
    exact = np.concatenate([reference.intercept_[:, None], reference.coef_], axis=1)
    np.testing.assert_allclose(_fit(_method(4, classes=3), x, y), (exact[1:] - exact[0]).T, atol=0.1)


@pytest.mark.parametrize("noise", [0.0, 20.0])
def test_rare_events_are_ranked_and_their_risks_are_true(noise: float) -> None:
    x, y = _made_up(30_000, 12, 0.07)
    half = len(y) // 2
    pooled = LogisticRegression(max_iter=1000).fit(x[:half], y[:half]).decision_function(x[half:])
    risks = _risks(_fit(_method(12), x[:half], y[:half], noise), x[half:])
    assert roc_auc_score(y[half:], risks) > roc_auc_score(y[half:], pooled) - (0.02 if noise else 0.005)
    assert abs(risks.mean() - y[half:].mean()) < 0.1 * y[half:].mean()


def test_recalibration_undoes_a_shift_and_a_shrinkage() -> None:
    x, y = _made_up(20_000, 6, 0.2)
    state: Arrays = {}
    method, z = _method(6, rounds=5), _method(6).layout.rows(x, y)
    for round in range(1, 6):
        if round == 5:
            state["weights"] = 0.7 * state["weights"]
            state["weights"][0] += 0.3
            state["centre"], state["spread"] = 0.7 * state["centre"] + 0.3, 0.7 * state["spread"]
            off = abs(_risks(_weights(method, state), x).mean() - y.mean())
        total = method.contributions(round, method.question(round, state), z, np.arange(len(y)), len(y)).mean(axis=0)
        state = method.absorb(round, state | {"patients": np.array([float(len(y))])}, total, 0.0)
    weights = _weights(method, state)
    assert abs(_risks(weights, x).mean() - y.mean()) < 0.25 * off  # one Newton step
    slope = LogisticRegression(C=np.inf).fit(x @ weights[1:] + weights[0], y).coef_[0, 0]
    assert 0.9 < slope < 1.15


def test_risks_are_true_by_row_where_patients_with_more_rows_have_more_events() -> None:
    """Two rows of each frequent patient, whose risk is four times as high at the same features."""
    rng, patients = generator(4, "rows"), 8000
    rows = 1 + (rng.random(patients) < 0.4)
    patient = np.repeat(np.arange(patients), rows)
    x = rng.standard_normal((len(patient), 4))
    y = (rng.random(len(x)) < np.where(rows[patient] > 1, 0.4, 0.1)).astype(np.int64)
    method, state = _method(4), {"patients": np.array([float(patients)])}
    z = method.layout.rows(x, y)
    for round in range(1, 9):
        total = method.contributions(round, method.question(round, state), z, patient, patients).mean(axis=0)
        state = method.absorb(round, state, total, 1e-4)
    assert _risks(_weights(method, state), x).mean() == pytest.approx(y.mean(), abs=0.01)
    by_patient = np.bincount(patient, y) / rows
    assert abs(by_patient.mean() - y.mean()) > 0.02


def test_so_much_noise_that_nothing_is_seen_gives_the_usual_risk() -> None:
    x, y = _made_up(300, 20, 0.3)
    for seed in range(20):
        weights = _fit(_method(20), x, y, noise=3000.0, seed=seed)
        assert np.isfinite(weights).all() and np.abs(weights[1:]).max() < 0.5
        assert 0.02 < _risks(weights, x).mean() < 0.98


def test_many_features_ask_for_no_products() -> None:
    x, y = _made_up(4000, 12, 0.3)
    wide = _method(400)
    padded = np.concatenate([x, np.zeros((len(x), 388))], axis=1)
    assert wide.size(1, {}) == 401 + 401 + 400 + 1
    assert roc_auc_score(y, _risks(_fit(wide, padded, y), padded)) > 0.7


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"basis": np.eye(3)}, "'basis' must be float64 of shape"),
        ({"radius": np.zeros(1)}, "'radius' is 0"),
        ({"spread": np.ones(1)}, "which no round of newton asks"),
    ],
)
def test_a_question_that_no_round_asks_is_refused(change: Arrays, said: str) -> None:
    method = _method(3)
    asked = {"basis": np.eye(4), "weights": np.zeros((4, 1)), "radius": np.ones(1)} | change
    with pytest.raises(ConfigError, match=said):
        method.contributions(2, asked, np.zeros((1, 5)), np.zeros(1, dtype=np.int64), 1)


@pytest.mark.parametrize(
    "options",
    [
        {"privacy.dp": False},
        {"privacy.epsilon": 8.0},
        pytest.param(
            {"privacy.epsilon": 8.0, "secure.aggregation": True, "secure.shared-noise": True}, marks=pytest.mark.slow
        ),
        pytest.param(
            {"privacy.epsilon": 8.0, "secure.aggregation": True, "secure.clip-norm": 100.0}, marks=pytest.mark.slow
        ),
    ],
    ids=["no privacy", "own noise", "shared noise", "secure sum"],
)
def test_a_run_ends_in_a_logistic_model(quick: Quick, options: dict[str, Any]) -> None:
    result = quick(**RUN | options)
    assert set(result.arrays) >= {"0.weight", "0.bias", "standardiser.mean", "standardiser.std"}
    assert result.summary["metrics"]["pooled"]["auroc"] > 0.95
    for site in result.summary["statement"]["sites"].values() if options.get("privacy.dp", True) else ():
        assert site["epsilon"] <= 8.0


@pytest.mark.slow
def test_a_run_depends_on_no_number_of_workers(quick: Quick) -> None:
    first, second = (quick(**RUN | {"rounds": 3, "workers": workers}) for workers in (1, 2))
    assert first.summary["model_sha256"] == second.summary["model_sha256"]


def test_without_recalibration_the_last_round_is_a_gradient(quick: Quick) -> None:
    short = RUN | {"rounds": 4, "privacy.dp": False}
    plain = quick(**short | {"training.recalibrate": False})
    assert plain.summary["model_sha256"] != quick(**short).summary["model_sha256"]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"model": "mlp"}, "model is 'mlp'"),
        ({"strategy": "fedadam"}, "strategy is 'fedadam'"),
        ({"training.local-steps": 5}, "training.local-steps is 5"),
        ({"central.epsilon": 2.0}, "central.epsilon"),
    ],
)
def test_keys_that_newton_has_no_place_for_are_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        RunConfig.build({**NEWTON, **keys})


def test_newton_has_defaults_of_its_own_that_a_file_keeps() -> None:
    config = RunConfig.build(NEWTON)
    assert (config.rounds, config.data.standardise, config.privacy.statistics_share) == (8, "measured", 0.3)
    assert config.minimal() == {"task": "classification", "strategy": "fedavg", "training.optimizer": "newton"}
    assert RunConfig.build(config.minimal()) == config
