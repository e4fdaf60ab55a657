"""Models that a run is compared with: fitted as well as scikit-learn fits them."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import nn

from polyclinic.ehr.schema import Column
from polyclinic.ehr.shard import Rows
from polyclinic.inspection.result import RunResult
from polyclinic.models.tabular import initialise, mlp
from polyclinic.objectives.sets import MultiLabel
from polyclinic.training import classification
from polyclinic.training.classification import Towards
from polyclinic.training.converged import fit, scale_of
from polyclinic.training.preparation import standardised
from polyclinic.types import Arrays, Builder


def cohort(patients: int, classes: int, seed: int = 0) -> Rows:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(patients, 6)) * [1, 50, 0.01, 1, 3, 1] + 7
    logits = ((x - 7) / [1, 50, 0.01, 1, 3, 1]) @ draw.normal(size=(6, classes)) + draw.gumbel(size=(patients, classes))
    rows = Rows(x, logits.argmax(1), np.arange(patients), patients)
    return standardised(rows, scale_of(rows))


def fitted(build: Builder, rows: Rows) -> tuple[Arrays, np.ndarray]:
    first = {name: value.numpy() for name, value in initialise(build, 0).items()}
    model = fit(classification, build, first, rows, seed=1)
    return model, classification.evaluate(build, model, [rows])[0]


@pytest.mark.parametrize(("patients", "classes"), [(60, 2), (2000, 2), (300, 4)])
def test_a_logistic_regression_is_scikit_learns(patients: int, classes: int) -> None:
    rows = cohort(patients, classes)
    model, chances = fitted(lambda: nn.Linear(6, classes), rows)
    theirs = LogisticRegression(max_iter=10_000, tol=1e-8).fit(rows.x, rows.y)
    np.testing.assert_allclose(chances, theirs.predict_proba(rows.x), atol=2e-4)
    assert {name: value.dtype for name, value in model.items()} == dict.fromkeys(
        ("weight", "bias"), np.dtype(np.float32)
    )


def test_two_labels_at_once_are_two_regressions() -> None:
    rows = cohort(300, 4)
    labels = np.column_stack([rows.y % 2, rows.y // 2])
    objective = MultiLabel(tuple(Column(name=name, kind="binary", role="label") for name in ("parity", "half")))
    build, both = lambda: nn.Linear(6, 2), replace(rows, y=labels)
    first = {name: value.numpy() for name, value in initialise(build, 0).items()}
    model = fit(Towards(objective), build, first, both, seed=1)
    for place in range(2):
        theirs = LogisticRegression(max_iter=10_000, tol=1e-8).fit(rows.x, labels[:, place])
        np.testing.assert_allclose(model["weight"][place], theirs.coef_[0], atol=2e-3)


def test_a_patients_rows_count_as_one() -> None:
    rows = cohort(200, 2)
    twice = Rows(np.repeat(rows.x, 2, 0), np.repeat(rows.y, 2), np.repeat(rows.patient, 2), 200)
    once, again = (fitted(lambda: nn.Linear(6, 2), part)[0] for part in (rows, twice))
    np.testing.assert_allclose(once["weight"], again["weight"], atol=1e-4)


def test_a_perceptron_learns_what_a_line_cannot_and_stops_before_it_knows_patients_by_heart() -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(3000, 4))
    y = (x[:, 0] * x[:, 1] + 0.5 * draw.normal(size=3000) > 0).astype(np.int64)
    seen, unseen = (Rows(x[part], y[part], np.arange(1500), 1500) for part in (slice(0, 1500), slice(1500, None)))
    build = partial(mlp, 4, 2, (64,))
    model, _ = fitted(build, seen)
    learned = roc_auc_score(unseen.y, classification.evaluate(build, model, [unseen])[0][:, 1])
    assert learned > 0.85 > 0.6 > roc_auc_score(unseen.y, fitted(lambda: nn.Linear(4, 2), seen)[1][:1500, 1])
    names = Rows(draw.normal(size=(300, 50)), draw.integers(0, 2, 300), np.arange(300), 300)  # nothing to learn
    assert -np.log(fitted(partial(mlp, 50, 2, (64,)), names)[1][np.arange(300), names.y]).mean() > 0.3


def test_a_comparison_is_with_models_that_converged(quick: Callable[..., RunResult], tmp_path: Path) -> None:
    """However short the run: else federating would look like a gain."""
    result = quick(rounds=1, comparison=True)
    simulation = result.folder.simulation("")
    rows = {site: simulation.rows(site) for site in simulation.shards}

    def theirs(train: Rows, test: Rows) -> float:
        mean, deviation = scale_of(train)
        model = LogisticRegression(max_iter=10_000).fit((train.x - mean) / deviation, train.y)
        return float(roc_auc_score(test.y, model.predict_proba((test.x - mean) / deviation)[:, 1]))

    comparison = result.summary["comparison"]
    together = theirs(*(Rows.join([pair[side] for pair in rows.values()]) for side in (0, 1)))
    assert comparison["without_dp"]["pooled"]["auroc"] == pytest.approx(together, abs=2e-3)
    for site, pair in rows.items():
        assert comparison["alone"]["sites"][site]["auroc"] == pytest.approx(theirs(*pair), abs=1e-2), site
