"""Rounds of boosting: sums are bounded by a patient, and lead to the additive model that an optimizer finds."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, PoissonRegressor
from sklearn.metrics import roc_auc_score

from polyclinic.config import RunConfig, train_settings
from polyclinic.ehr.schema import Column, Schema
from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError
from polyclinic.models.additive import Basis, additive
from polyclinic.models.forest import forest
from polyclinic.objectives.classes import Binary, Classification, Ordinal
from polyclinic.objectives.counts import Poisson
from polyclinic.objectives.numbers import Squared
from polyclinic.objectives.objective import Objective, made_up_labels
from polyclinic.objectives.sets import MultiLabel
from polyclinic.objectives.survival import Hazards
from polyclinic.privacy.streams import generator, keyed_stream
from polyclinic.synthesis.sums import clipped_total
from polyclinic.training.boosting.outcome import Outcome
from polyclinic.training.boosting.shapes import Shapes, ShapesTask, Table
from polyclinic.training.boosting.trees import Directions, Trees
from polyclinic.training.logistic.moments import drawn_in_by_pair
from polyclinic.training.synthesis import ROUND, SUM
from polyclinic.training.task import SiteWork
from polyclinic.types import Arrays, Floats, Labels

BINARY = Column(name="died", kind="binary", role="label")
GRADE = Column(name="grade", kind="categorical", role="label", categories=("a", "b", "c"))
NUMBER = Column(name="los", kind="continuous", role="label", bounds=(0, 8), centre=4.0, spread=1.0)
COUNT = Column(name="visits", kind="integer", role="label", bounds=(0, 40), centre=4.0, spread=2.0)
TIME = Column(name="days", kind="continuous", role="label", bounds=(0, 10))
SEVERAL = (BINARY, Column(name="stroke", kind="binary", role="label"))
OBJECTIVES = [
    Classification((BINARY,)), Binary((BINARY,)), Classification((GRADE,)), MultiLabel(SEVERAL), Squared((NUMBER,)),
    Poisson((COUNT,)), Hazards((TIME, BINARY), edges=(2.5, 5.0, 10.0)),
]  # fmt: skip

# So slowly do few functions fade that exact sums fit them as an optimizer without a prior does.
WAVES = {"components": 4, "smoothness": 1}


def _method(
    objective: Objective, features: int = 3, rounds: int = 10, private: bool = True, model: str = "ebm", **options: int
) -> Shapes:
    columns = [
        Column(name=f"x{number}", kind="continuous", bounds=(-1, 1), nullable=True) for number in range(features)
    ]
    schema = Schema(name="made-up", unit="record", columns=(*columns, *objective.labels))
    outcome = Outcome(objective, private)
    functions, method = {"ebm": (Basis, Shapes), "trees": (Directions, Trees)}[model]
    return method(Table.of_functions(schema, functions.of(schema, **options), outcome), outcome, rounds, private)


SMALL: dict[str, dict[str, int]] = {"ebm": {}, "trees": {"trees": 32, "depth": 3, "directions": 40}}


def _fit(method: Shapes, x: Floats, y: Labels, noise: float = 0.0, seed: int = 0) -> Arrays:
    rng, patients = generator(seed, "noise"), len(x)
    z, state = method.layout.rows(x, y), {"patients": np.array([float(patients)])}
    for round in range(1, method.rounds + 1):
        total = clipped_total(method, round, method.question(round, state), z, np.arange(patients), patients)
        total += noise * rng.standard_normal(len(total))
        state = method.absorb(round, state, total / patients, noise / patients)
    return state


def _outputs(method: Shapes, state: Arrays, x: Floats) -> Floats:
    moved = (method.layout.basis.rows(x) - state["centre"]) @ state["weights"] @ method.outcome.contrasts.T
    return np.asarray(moved + method.outcome.levels @ state["intercept"])


def _additive(patients: int, seed: int = 0) -> tuple[Floats, Floats]:
    """Correlated rows, and a sum of a step, a valley and nothing of them."""
    rng = generator(seed, "rows")
    x = rng.standard_normal((patients, 3)) @ (np.eye(3) + 0.3)
    x /= x.std(axis=0)
    return x, np.where(x[:, 0] > 0.3, 1.2, -0.8) + 0.8 * x[:, 1] ** 2 - 1.2


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda one: f"{one.name}-{one.outputs}")
@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("model", ["ebm", "trees"])
def test_no_patient_moves_a_sum_by_more_than_one(objective: Objective, private: bool, model: str) -> None:
    """Whatever the rows, the labels and the question are, also before sums are clipped."""
    method, rng = _method(objective, private=private, model=model, **SMALL[model]), generator(1, "rows")
    x = rng.standard_normal((300, 3)) * 10.0 ** rng.integers(-3, 30, (300, 1))
    x[rng.random(x.shape) < 0.1] = np.nan
    z = method.layout.rows(x, made_up_labels(objective.labels, 300))
    q, patient = method.layout.features, np.arange(300) // 2
    asked = {
        "centre": rng.standard_normal(q), "basis": rng.standard_normal((q, q)), "intercept": rng.standard_normal(method._levels),
        "weights": rng.standard_normal((q, method._contrasts)), "radius": np.array([0.7]),
    }  # fmt: skip
    for question in ({}, asked):
        vectors = method.contributions(1, question, z, patient, 150)
        assert vectors.shape == (150, method.size(1, question))
        lengths = np.linalg.norm(vectors, axis=1)
        assert 1e-3 < lengths.max() <= 1 + 1e-9


def test_without_noise_it_is_the_logistic_regression_on_the_functions() -> None:
    x, logits = _additive(20_000)
    y = (generator(1, "labels").random(len(x)) < 1 / (1 + np.exp(-logits))).astype(np.int64)
    method = _method(Classification((BINARY,)), private=False, **WAVES)
    state = _fit(method, x, y)
    rows = method.layout.basis.rows(x)
    exact = LogisticRegression(C=1.0, max_iter=1000).fit(rows, y).decision_function(rows)
    outputs = _outputs(method, state, x)
    assert np.abs(outputs[:, 1] - outputs[:, 0] - exact).max() < 0.1


def test_three_classes_are_the_multinomial_regression() -> None:
    x, first = _additive(20_000)
    rng = generator(2, "labels")
    logits = np.stack([first, np.sin(2 * x[:, 2]), 0 * first], axis=1)
    y = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    method = _method(Classification((GRADE,)), private=False, **WAVES)
    chances = method.outcome.chances(_outputs(method, _fit(method, x, y), x))
    rows = method.layout.basis.rows(x)
    exact = LogisticRegression(C=1.0, max_iter=1000).fit(rows, y).predict_proba(rows)
    assert np.abs(chances - exact).max() < 0.05


def test_numbers_and_counts_are_the_regressions_on_the_functions() -> None:
    x, middle = _additive(20_000)
    rng = generator(3, "labels")
    rows, whole = _method(Squared((NUMBER,)), **WAVES).layout.basis.rows(x), np.ones((len(x), 1))
    y = np.clip(4 + 0.5 * middle + 0.3 * rng.standard_normal(len(x)), 0, 8)
    method = _method(Squared((NUMBER,)), private=False, **WAVES)
    design = np.concatenate([whole, rows], axis=1)
    exact = design @ np.linalg.lstsq(design, (y - 4), rcond=None)[0]
    assert np.abs(_outputs(method, _fit(method, x, y), x)[:, 0] - exact).max() < 0.05
    counts = rng.poisson(4 * np.exp(0.3 * middle)).clip(0, 40).astype(np.float64)
    method = _method(Poisson((COUNT,)), private=False, **WAVES)
    means = 4 * np.exp(_outputs(method, _fit(method, x, counts), x)[:, 0])
    exact = PoissonRegressor(alpha=1e-6, max_iter=1000).fit(rows, counts).predict(rows)
    # Ten steps with one curvature for all rows are near it, and farthest where hardly anybody is.
    assert np.abs(means / exact - 1).mean() < 0.1 and np.abs(means / exact - 1).max() < 0.2


def test_hazards_are_one_regression_over_all_intervals() -> None:
    x, risk = _additive(10_000)
    rng, edges = generator(4, "labels"), np.array([2.5, 5.0, 10.0])
    hazards = 1 / (1 + np.exp(-(np.array([-2.0, -1.5, -1.0]) + 0.5 * risk[:, None])))
    hit = rng.random(hazards.shape) < hazards
    last = np.where(hit.any(axis=1), hit.argmax(axis=1), 2)
    y = np.stack([edges[last], hit.any(axis=1)], axis=1).astype(np.float64)
    method = _method(Hazards((TIME, BINARY), edges=tuple(edges)), private=False, **WAVES)
    outputs = _outputs(method, _fit(method, x, y), x)
    there = np.arange(3) <= last[:, None]
    person, interval = np.nonzero(there)
    rows = np.concatenate([method.layout.basis.rows(x)[person], np.eye(3)[interval]], axis=1)
    events = (interval == last[person]) & hit.any(axis=1)[person]
    exact = LogisticRegression(C=1.0, max_iter=1000, fit_intercept=False).fit(rows, events)
    assert np.abs(outputs[there] - exact.decision_function(rows)).max() < 0.15


def test_leaves_without_noise_are_the_logistic_regression_on_their_directions() -> None:
    """A patient's risk is high where exactly one of two columns is; more rounds come nearer to the regression."""
    x, _ = _additive(10_000)
    y = (generator(7, "labels").random(len(x)) < np.where((x[:, 0] > 0) != (x[:, 1] > 0), 0.7, 0.3)).astype(np.int64)
    off = []
    for rounds in (2, 10):
        method = _method(
            Binary((BINARY,)), rounds=rounds, private=False, model="trees", trees=64, depth=3, directions=40
        )
        state = _fit(method, x, y)
        rows = method.layout.basis.rows(x)
        exact = LogisticRegression(C=1.0, max_iter=1000).fit(rows, y).decision_function(rows)
        off.append(float(np.abs(_outputs(method, state, x)[:, 0] - exact).mean()))
    assert off[1] < 0.05 and off[1] < off[0]
    grown = forest(3, 1, method.layout.schema, trees=64, depth=3, directions=40)
    like = {name: value.numpy() for name, value in grown.state_dict().items()}
    grown.load_state_dict({name: torch.from_numpy(value) for name, value in method.arrays(state, like).items()})
    outputs = grown(torch.from_numpy(x.astype(np.float32))).detach().numpy()
    np.testing.assert_allclose(outputs, _outputs(method, state, x), atol=1e-4)
    assert roc_auc_score(y, outputs[:, 0]) > 0.65


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda one: f"{one.name}-{one.outputs}")
def test_hospitals_sums_of_leaves_are_the_pooled_gradients(objective: Objective) -> None:
    """By the leaves themselves: of each, the patients in it times their residuals, turned to the directions."""
    method = _method(objective, private=False, model="trees", **SMALL["trees"])
    x, y = _additive(400)[0], made_up_labels(objective.labels, 400)
    state = _fit(method, x, y)
    question, directions = method.question(3, state), cast(Directions, method.layout.basis)
    parts = [slice(0, 150), slice(150, 400)]
    found = sum(
        clipped_total(method, 3, question, method.layout.rows(x[at], y[at]), np.arange(len(x[at])), len(x[at]))
        for at in parts
    )
    leaves = np.zeros((400, len(directions.tables)))
    np.put_along_axis(leaves, directions._places(x), 1.0, axis=1)
    outputs = _outputs(method, state, x)
    residuals = method.outcome.residuals(outputs, method.outcome.labels(y))
    rows = leaves @ directions.tables - directions.offset - question["centre"]
    along = question["basis"].T @ (rows.T @ (residuals @ method.outcome.contrasts))
    pooled = np.concatenate([(residuals @ method.outcome.levels).sum(axis=0), along.ravel()]) / question["radius"]
    np.testing.assert_allclose(found, pooled, rtol=1e-9, atol=1e-9)


def test_released_sums_of_leaves_have_noise_of_the_stated_size() -> None:
    method = _method(Binary((BINARY,)), model="trees", **SMALL["trees"])
    x, y, build = _additive(50)[0], np.arange(50) % 2, forest
    rows = Rows(x, y, np.arange(50), 50)
    task = ShapesTask(method).with_question({ROUND: np.array([1])})
    exact = clipped_total(method, 1, {}, method.layout.rows(x, y), np.arange(50), 50)
    settings = train_settings(RunConfig.build({"model": "trees"}), 3.0)
    noise = []
    for seed in range(5):
        work = SiteWork(rows, keyed_stream(seed, "batches"), keyed_stream(seed, "noise"), 50.0)
        (update,) = task.train(build, {}, [work], settings)
        noise.append(50 * update.arrays[SUM] - exact)
    drawn = np.concatenate(noise)
    assert abs(drawn.std() / 3.0 - 1) < 4 / np.sqrt(2 * len(drawn)) and abs(drawn.mean()) < 4 * 3 / np.sqrt(len(drawn))


def test_the_band_holds_shape_functions_that_the_prior_expects() -> None:
    """Over true functions drawn from the prior, patients and noise."""
    method, held = _method(Binary((BINARY,))), []
    basis = method.layout.basis
    like = {name: value.numpy() for name, value in additive(3, 1, method.layout.schema).state_dict().items()}
    for seed in range(8):
        x, rng = _additive(3000, seed)[0], generator(seed, "truth")
        weights = rng.standard_normal(len(basis.feature)) / np.sqrt(basis.usual.sum())
        logits = basis.rows(x) @ weights
        y = (rng.random(len(x)) < 1 / (1 + np.exp(-logits))).astype(np.int64)
        model = method.arrays(_fit(method, x, y, noise=8.0, seed=seed), like)
        for feature in range(3):
            own = basis.feature == feature
            true = basis.tables[own].T @ weights[own]
            true -= (basis.rows(x)[:, own] @ weights[own]).mean()
            off = model["shapes"][feature, :32, 0] - true[:32]
            off -= off.mean()  # the level of a function is that of the noisy mean patient
            held.append((np.abs(off) < 1.96 * model["deviations"][feature, :32]).mean())
    assert 0.88 < np.mean(held) < 0.99


def test_noise_leaves_the_order_of_risks_and_of_importances() -> None:
    x, logits = _additive(4000)
    y = (generator(5, "labels").random(len(x)) < 1 / (1 + np.exp(-logits))).astype(np.int64)
    method = _method(Binary((BINARY,)))
    like = {name: value.numpy() for name, value in additive(3, 1, method.layout.schema).state_dict().items()}
    for seed in range(3):
        state = _fit(method, x, y, noise=4.0, seed=seed)
        assert roc_auc_score(y, _outputs(method, state, x)[:, 0]) > roc_auc_score(y, logits) - 0.04
        importances = method.arrays(state, like)["importances"]
        assert (importances[:2] > importances[2]).all()


def test_so_much_noise_that_nothing_is_seen_gives_the_usual_risk() -> None:
    x, logits = _additive(300)
    y = (logits > 0).astype(np.int64)
    for seed in range(10):
        outputs = _outputs(_method(Binary((BINARY,))), _fit(_method(Binary((BINARY,))), x, y, 3000.0, seed), x)
        assert np.isfinite(outputs).all() and np.abs(outputs).max() < 6


def test_questions_and_objectives_that_it_does_not_take_are_refused() -> None:
    method = _method(Binary((BINARY,)))
    q = method.layout.features
    asked = {
        "centre": np.zeros(q), "basis": np.eye(q), "weights": np.zeros((q, 1)), "intercept": np.zeros(1), "radius": np.ones(1),
    }  # fmt: skip
    method.check(asked)
    for change, said in (
        ({"basis": np.eye(2)}, "'basis' must be float64 of shape"), ({"radius": np.zeros(1)}, "'radius' is 0"),
        ({"more": np.zeros(1)}, "which no round of ebm asks"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=said):
            method.check(asked | change)
    ranks = Column(name="rank", kind="ordinal", role="label", categories=("a", "b", "c"))
    for objective in (Ordinal((ranks,)), Classification((BINARY,), weights=(1.0, 2.0))):
        with pytest.raises(ConfigError, match="takes the objectives classification"):
            Outcome(objective)


def test_a_site_without_rows_adds_nothing() -> None:
    method = _method(Binary((BINARY,)))
    z = method.layout.rows(np.zeros((0, 3)), np.zeros(0, dtype=np.int64))
    assert method.contributions(1, {}, z, np.zeros(0, dtype=np.int64), 0).shape == (0, method.size(1, {}))


def test_noise_hides_what_rare_columns_say_together_before_what_numbers_do() -> None:
    """Of two numbers and two rare columns, all pairs correlated by a half; noise as large as the rare ones' covariance."""
    usual = np.array([1.0, 1.0, 0.01, 0.01])
    exact = np.sqrt(np.outer(usual, usual)) * (0.5 + 0.5 * np.eye(4))
    same, left = drawn_in_by_pair(exact, usual, 0.0)
    np.testing.assert_allclose(same, exact)
    assert not left.any()
    error, trusts = 0.01, []
    for seed in range(20):
        noise = np.triu(generator(seed, "noise").standard_normal((4, 4)) * error / np.sqrt(2), 1)
        noisy = exact + noise + noise.T
        drawn, left = drawn_in_by_pair(noisy, usual, error)
        trusts.append([drawn[0, 1] / noisy[0, 1], drawn[2, 3] / noisy[2, 3]])
        assert (left < 3 * error**2 / 2).all() and left[0] > left[2]
    numbers, rare = np.mean(trusts, axis=0)
    assert numbers > 0.99 and 0.2 < rare < 0.5
