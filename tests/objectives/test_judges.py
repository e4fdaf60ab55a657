"""The judges of predictions: against scikit-learn, against pairs counted one by one, and what is undefined."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import (
    average_precision_score,
    cohen_kappa_score,
    log_loss,
    mean_absolute_error,
    mean_pinball_loss,
    mean_poisson_deviance,
    r2_score,
    roc_auc_score,
    root_mean_squared_error,
)

from polyclinic.evaluation.assessment import Predictions, assess
from polyclinic.evaluation.judges import TITLES, Judge, judge_of
from polyclinic.types import Floats, Labels
from tests.objectives.test_objectives import TAKEN, made

ROWS = 300
RNG = np.random.default_rng(0)
SCORE, NOISE, WEIGHT = RNG.normal(size=ROWS), RNG.normal(size=ROWS), RNG.integers(0, 4, ROWS).astype(float)


def values(judge: Judge, labels: Labels, scores: Floats, weight: Floats = WEIGHT) -> dict[str, float]:
    return dict(zip(judge.titles, judge.with_weights(labels, scores, weight[None])[0].tolist(), strict=True))


def test_numbers_are_judged_as_scikit_learn_does_also_when_rows_are_weighted() -> None:
    y, predicted = 8 + 3 * SCORE + NOISE, 8 + 2 * SCORE
    metrics = values(judge_of(made("squared")), y, predicted[:, None])
    for name, metric in {"mae": mean_absolute_error, "rmse": root_mean_squared_error, "r2": r2_score}.items():
        assert metrics[name] == pytest.approx(metric(y, predicted, sample_weight=WEIGHT)), name
    assert metrics["calibration_in_the_large"] == pytest.approx(np.average(predicted - y, weights=WEIGHT))
    slope = np.polyfit(predicted, y, 1, w=np.sqrt(WEIGHT))[0]
    assert metrics["calibration_slope"] == pytest.approx(slope) and slope == pytest.approx(1.5, abs=0.1)
    assert metrics["loss"] == pytest.approx(np.average((y - predicted) ** 2, weights=WEIGHT) / 25 / 8)
    constant = values(judge_of(made("squared")), y, np.full((ROWS, 1), 8.0))
    assert np.isnan(constant["calibration_slope"]) and constant["r2"] <= 0


def test_quantiles_are_judged_by_their_loss_and_by_how_many_labels_they_hold() -> None:
    y = 8 + NOISE
    predicted = np.tile([8 - 1.2816, 8.0, 8 + 1.2816], (ROWS, 1))
    metrics = values(judge_of(made("quantile")), y, predicted)
    losses = [
        mean_pinball_loss(y, predicted[:, k], alpha=a, sample_weight=WEIGHT) for k, a in enumerate((0.1, 0.5, 0.9))
    ]
    assert metrics["pinball"] == pytest.approx(np.mean(losses))
    assert metrics["coverage"] == pytest.approx(0.8, abs=0.06)
    assert metrics["mae"] == pytest.approx(mean_absolute_error(y, np.full(ROWS, 8.0), sample_weight=WEIGHT))


def test_counts_have_the_deviance_of_their_distribution() -> None:
    mean = 3 * np.exp(0.4 * SCORE)
    counts = np.random.default_rng(1).poisson(mean).clip(0, 20).astype(float)
    predicted = mean.clip(0, 20)
    metrics = values(judge_of(made("poisson")), counts, predicted[:, None])
    assert metrics["deviance"] == pytest.approx(mean_poisson_deviance(counts, predicted, sample_weight=WEIGHT))
    size, y, mu = 2.0, counts, predicted  # dispersion 0.5
    unit = 2 * (np.where(y > 0, y * np.log(np.maximum(y, 1) / mu), 0) - (y + size) * np.log((y + size) / (mu + size)))
    metrics = values(judge_of(made("negative-binomial")), counts, predicted[:, None])
    assert metrics["deviance"] == pytest.approx(np.average(unit, weights=WEIGHT))


def test_ordered_classes_have_a_weighted_kappa() -> None:
    labels = np.digitize(SCORE, [-0.5, 0.5])
    scores = np.exp(-np.abs(np.arange(3) - labels[:, None] - NOISE[:, None]))
    scores /= scores.sum(axis=1, keepdims=True)
    judge = judge_of(made("ordinal"))
    row, guessed = values(judge, labels, scores), scores.argmax(axis=1)
    assert row["kappa"] == pytest.approx(cohen_kappa_score(labels, guessed, weights="quadratic", sample_weight=WEIGHT))
    assert row["rank_error"] == pytest.approx(mean_absolute_error(labels, guessed, sample_weight=WEIGHT))
    exact = judge.exact(labels, scores)
    assert exact["kappa"] == pytest.approx(cohen_kappa_score(labels, guessed, weights="quadratic"))
    assert exact["loss"] == pytest.approx(log_loss(labels, scores))


def test_several_labels_have_a_figure_each_and_their_mean() -> None:
    labels = np.stack([SCORE + NOISE > 0, SCORE > 1, np.zeros(ROWS, dtype=bool)], axis=1).astype(float)
    scores = 1 / (1 + np.exp(-np.stack([SCORE, NOISE + SCORE, NOISE], axis=1)))
    metrics = values(judge_of(made("multi-label")), labels, scores)
    areas = [roc_auc_score(labels[:, k], scores[:, k], sample_weight=WEIGHT) for k in (0, 1)]
    precisions = [average_precision_score(labels[:, k], scores[:, k], sample_weight=WEIGHT) for k in (0, 1)]
    assert [metrics["auroc of A"], metrics["auroc of B"]] == pytest.approx(areas) and np.isnan(metrics["auroc of C"])
    assert metrics["auroc"] == pytest.approx(np.mean(areas)) and metrics["auprc"] == pytest.approx(np.mean(precisions))
    assert metrics["brier"] == pytest.approx(np.average(((scores - labels) ** 2).mean(axis=1), weights=WEIGHT))


def test_survival_is_judged_by_pairs_and_by_the_error_of_what_was_observed() -> None:
    time = np.random.default_rng(2).exponential(40 * np.exp(-SCORE)).clip(0.1, 100)
    event = (np.random.default_rng(3).random(ROWS) < 0.7) & (time < 100)
    labels = np.stack([time, event.astype(float)], axis=1)
    scores = np.exp(-np.outer(np.exp(0.8 * SCORE), [0.2, 0.6, 1.2]))
    metrics = values(judge_of(made("hazards")), labels, scores, np.ones(ROWS))
    ends, risk = np.array([10.0, 30.0, 60.0]), -scores.sum(axis=1)
    right = pairs = 0.0
    for i in np.flatnonzero(event & (time <= 60)):
        later = time > time[i]
        pairs += later.sum()
        right += (risk[i] > risk[later]).sum() + (risk[i] == risk[later]).sum() / 2
    assert metrics["concordance"] == pytest.approx(right / pairs) and metrics["concordance"] > 0.65
    # Where nobody is censored, it is the plain Brier score, of whose three times the middle one lasts 25 of 50 days.
    whole = np.stack([time, np.ones(ROWS)], axis=1)
    metrics = values(judge_of(made("hazards")), whole, scores, np.ones(ROWS))
    assert metrics["brier"] == pytest.approx(np.mean(((scores - (time[:, None] > ends)) ** 2) @ [0.2, 0.5, 0.3]))
    assert metrics["calibration_in_the_large"] == pytest.approx(np.mean((time > 60) - scores[:, -1]))


@pytest.mark.parametrize("name", TAKEN)
def test_a_diverged_model_and_no_rows_define_nothing(name: str) -> None:
    objective, judge = made(name), judge_of(made(name))
    from polyclinic.objectives.objective import made_up_labels

    for rows, value in ((0, 0.5), (6, np.nan)):
        labels = made_up_labels(objective.labels, 6)[:rows]
        metrics = judge.exact(labels, np.full((rows, len(objective.columns)), value))
        assert metrics.pop("n") == rows and set(metrics.values()) == {None} and {*judge.by_round} <= {*metrics}
    assert {*judge.headline, *judge.by_round, *judge.of_groups} <= {*judge.titles} | {*TITLES}


def test_intervals_of_numbers_hold_the_truth_and_are_of_patients() -> None:
    y, patient = 8 + 3 * SCORE + NOISE, np.arange(ROWS) // 3
    result = assess({"a": Predictions(y, (8 + 3 * SCORE)[:, None], patient)}, seed=0, by=judge_of(made("squared")))
    mae = result["pooled"]["mae"]
    assert mae["low"] < np.sqrt(2 / np.pi) < mae["high"] and mae["low"] < mae["value"] < mae["high"]
    assert result["decision"] is None and result["curves"] == [] and len(result["calibration"]) == 10
    assert result["worst"]["mae"]["name"] == result["worst"]["r2"]["name"] == "a"


def test_the_worst_hospital_is_that_of_the_largest_error() -> None:
    sites = {
        name: Predictions(8 + SCORE, (8 + SCORE + off)[:, None], np.arange(ROWS))
        for name, off in (("a", 0.1), ("b", -2.0))
    }
    result = assess(sites, seed=0, by=judge_of(made("squared")))
    worst = {metric: result["worst"][metric]["name"] for metric in ("mae", "rmse", "r2", "calibration_in_the_large")}
    assert set(worst.values()) == {"b"}
