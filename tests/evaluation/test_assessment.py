"""Metrics with intervals: against scikit-learn, by their coverage, and what is not told."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import (
    average_precision_score,
    brier_score_loss,
    f1_score,
    log_loss,
    recall_score,
    roc_auc_score,
    roc_curve,
)

from polyclinic.ehr.encoding import encode
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError
from polyclinic.evaluation.assessment import (
    THRESHOLDS,
    Predictions,
    assess,
    calibration_curve,
    error_by_chance,
    estimate,
    judge,
    net_benefit,
    treat_all,
)
from polyclinic.evaluation.groups import group_names, group_numbers
from polyclinic.evaluation.intervals import resamples
from polyclinic.evaluation.metrics import METRICS, classification_metrics, weighted_metrics

Floats = NDArray[np.float64]


def predictions(rows: int, seed: int = 0, classes: int = 2, groups: int = 2, shift: float = 1.5) -> Predictions:
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(classes), rng.integers(0, classes, rows - classes)])
    scores = rng.normal(size=(rows, classes))
    scores[np.arange(rows), labels] += shift
    scores = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    return Predictions(labels, scores, np.arange(rows), rng.integers(0, groups, rows))


def by_name(values: Floats) -> dict[str, float]:
    return dict(zip(METRICS, (float(value) for value in values), strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_two_classes_agree_with_scikit_learn_also_when_rows_are_weighted(seed: int) -> None:
    one = predictions(80, seed)
    chance = one.scores[:, 1].round(1) if seed == 2 else one.scores[:, 1]  # ties
    scores = np.stack([1 - chance, chance], axis=1)
    weights = np.random.default_rng(seed).integers(0, 4, (2, 80)).astype(float)
    for values, weight in zip(weighted_metrics(one.labels, scores, weights), weights, strict=True):
        y, found = one.labels, by_name(values)
        guessed, given_weight = (scores.argmax(axis=1), {"sample_weight": weight})
        fpr, tpr, _ = roc_curve(y, chance, drop_intermediate=False, **given_weight)
        known = {
            "auroc": roc_auc_score(y, chance, **given_weight),
            "auprc": average_precision_score(y, chance, **given_weight),
            "f1": f1_score(y, guessed, **given_weight),
            "sensitivity": recall_score(y, guessed, **given_weight),
            "specificity": recall_score(1 - y, 1 - guessed, **given_weight),
            "sensitivity_at_90": tpr[fpr <= 0.1 + 1e-9].max(),
            "brier": brier_score_loss(y, chance, **given_weight),
            "loss": log_loss(y, scores.clip(1e-15, 1), **given_weight),
            "calibration_in_the_large": np.average(chance, weights=weight) - np.average(y, weights=weight),
        }
        logit = np.log(chance.clip(1e-9, 1 - 1e-9) / (1 - chance).clip(1e-9, 1))[:, None]
        regression = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(logit, y, sample_weight=weight)
        if seed < 2:  # otherwise some chances are 0 and 1, which is taken otherwise
            assert found["calibration_slope"] == pytest.approx(regression.coef_[0, 0], rel=1e-3)
        for name, value in known.items():
            assert found[name] == pytest.approx(value, abs=1e-6), name


def test_several_classes_agree_with_scikit_learn() -> None:
    one = predictions(120, classes=4)
    found = by_name(weighted_metrics(one.labels, one.scores, np.ones((1, 120)))[0])
    assert found["auroc"] == pytest.approx(roc_auc_score(one.labels, one.scores, multi_class="ovr"))
    assert found["f1"] == pytest.approx(f1_score(one.labels, one.scores.argmax(axis=1), average="macro"))
    assert np.isnan(found["sensitivity"]) and np.isnan(found["sensitivity_at_90"])


@settings(max_examples=30)
@given(st.integers(2, 40), st.integers(2, 4), st.integers(0, 10**6))
def test_weights_of_one_give_the_metrics_of_every_round(rows: int, classes: int, seed: int) -> None:
    one = predictions(max(rows, classes), seed, classes)
    labels = one.labels if seed % 3 else np.zeros_like(one.labels)
    found = by_name(weighted_metrics(labels, one.scores, np.ones((1, len(labels))))[0])
    for name, value in classification_metrics(labels, one.scores).items():
        if name in found:
            assert found[name] == pytest.approx(np.nan if value is None else value, nan_ok=True, abs=1e-12), name


def test_calibration_error_of_a_worked_example() -> None:
    chance = np.array([0.05, 0.05, 0.62, 0.68, 1.0])
    labels = np.array([0, 1, 1, 0, 1])
    found = by_name(weighted_metrics(labels, np.stack([1 - chance, chance], 1), np.ones((1, 5)))[0])
    assert found["calibration_error"] == pytest.approx((abs(0.1 - 1) + abs(1.3 - 1) + 0) / 5)
    curve = calibration_curve(chance, labels == 1)
    assert [(bin["share"], bin["predicted"], bin["observed"]) for bin in curve] == [
        (0.4, pytest.approx(0.05), 0.5), (0.4, pytest.approx(0.65), 0.5), (0.2, 1.0, 1.0)
    ]  # fmt: skip
    # Wilson's interval of one of two, from Brown, Cai and DasGupta 2001, formula (4).
    assert (curve[0]["low"], curve[0]["high"]) == (pytest.approx(0.0945, abs=1e-4), pytest.approx(0.9055, abs=1e-4))


def test_net_benefit_of_a_worked_example() -> None:
    chance, event = np.array([0.1, 0.3, 0.6, 0.9]), np.array([False, True, False, True])
    benefit = net_benefit(chance, event)(np.ones((1, 4)))[0]
    at = {round(float(t), 2): i for i, t in enumerate(THRESHOLDS)}
    assert benefit[at[0.2]] == pytest.approx(2 / 4 - 1 / 4 * 0.25)
    assert benefit[at[0.5]] == pytest.approx(1 / 4 - 1 / 4)
    assert benefit[at[0.05]] == pytest.approx(treat_all(event)[at[0.05]])


def test_a_resample_keeps_every_class_and_every_patient_whole() -> None:
    patient = np.array([0, 0, 1, 2, 2, 3, 4, 5])
    labels = np.array([0, 1, 0, 0, 0, 1, 1, 0])
    weights = np.concatenate(list(resamples(8, 500, np.random.default_rng(0), patient, labels)))
    assert (weights[:, 0] == weights[:, 1]).all() and (weights[:, 3] == weights[:, 4]).all()
    assert (weights @ (labels == 1) > 0).all() and (weights @ (labels == 0) > 0).all()
    assert len(np.unique(weights @ (labels == 1))) > 3, "the share of a class is chance too"


def test_of_very_many_rare_classes_drawing_ends_and_there_is_no_interval() -> None:
    rows = 60
    scores = np.full((rows, rows), 1 / rows)
    found = judge(Predictions(np.arange(rows), scores, np.arange(rows)), 50, np.random.default_rng(0)).metrics
    assert found["auroc"] == {"value": 0.5, "low": None, "high": None}


@pytest.mark.parametrize("metric", ["auroc", "accuracy", "brier", "calibration_in_the_large"])
def test_intervals_cover_the_truth_as_often_as_they_say(metric: str) -> None:
    rng, trials, shift = np.random.default_rng(1), 150, 1.2

    def draw(rows: int) -> tuple[NDArray[np.int64], Floats]:
        labels = rng.integers(0, 2, rows)  # how many are ill is chance, as at a hospital
        chance = 1 / (1 + np.exp(shift * shift / 2 - shift * (rng.normal(size=rows) + shift * labels)))
        return labels, np.stack([1 - chance, chance], axis=1)

    labels, scores = draw(200_000)
    truth = by_name(weighted_metrics(labels, scores, np.ones((1, 200_000)))[0])[metric]
    covered = 0
    for _ in range(trials):
        labels, scores = draw(100)
        found = judge(Predictions(labels, scores, np.arange(100)), 200, rng).metrics[metric]
        assert found["low"] is not None and found["high"] is not None
        covered += found["low"] <= truth <= found["high"]
    # A variable of Binomial(150, 0.95) is below 133 once in 1,000; small samples cover a little less.
    assert covered >= 130, covered


def test_patients_with_many_rows_make_wider_intervals_than_their_rows_would() -> None:
    one = predictions(60, seed=3)
    many = Predictions(np.repeat(one.labels, 9), np.repeat(one.scores, 9, axis=0), np.repeat(one.patient, 9))
    alone = Predictions(many.labels, many.scores, np.arange(540))

    def width(rows: Predictions) -> float:
        found = judge(rows, 400, np.random.default_rng(0)).metrics["auroc"]
        return float(found["high"] or 0) - float(found["low"] or 0)

    assert width(many) == pytest.approx(width(one), rel=0.2)
    assert width(alone) < width(one) / 2


def test_error_by_chance_is_what_a_calibrated_model_stays_below() -> None:
    rng = np.random.default_rng(0)
    chance = rng.random(300)
    limit = error_by_chance(chance, 500, rng)
    above = 0
    for _ in range(300):
        labels = (rng.random(300) < chance).astype(np.int64)
        value = by_name(weighted_metrics(labels, np.stack([1 - chance, chance], 1), np.ones((1, 300)))[0])
        above += value["calibration_error"] > limit
    assert 3 <= above <= 30  # of 300, 15 expected


def test_what_is_not_defined_is_none_with_a_reason() -> None:
    nobody = assess({}, 0)
    assert "policy" in nobody["undefined"] and "pooled" not in nobody
    broken = predictions(20)
    broken.scores[3] = np.nan
    assert "probabilities" in assess({"a": broken}, 0)["undefined"]
    found = assess(
        {"ill": Predictions(np.ones(20, int), predictions(20).scores, np.arange(20)), "b": predictions(60)}, 0
    )
    ill = found["sites"]["ill"]
    assert ill["auroc"] == {"value": None, "low": None, "high": None} and ill["specificity"]["value"] is None
    assert ill["brier"]["low"] is not None
    assert found["macro"]["auroc"]["value"] == found["sites"]["b"]["auroc"]["value"]
    assert found["gap"]["auroc"] is None and found["worst"]["auroc"]["name"] == "b"


@pytest.mark.parametrize("few", [1, 4])
def test_few_patients_of_a_class_have_a_value_and_no_interval(few: int) -> None:
    one = predictions(40)
    labels = np.zeros(40, dtype=np.int64)
    labels[:few] = 1
    found = judge(Predictions(labels, one.scores, one.patient), 200, np.random.default_rng(0)).metrics
    assert found["auroc"]["value"] is not None and found["auroc"]["low"] is None
    assert found["brier"]["low"] is not None


def test_a_perfect_value_has_no_interval_of_width_nothing() -> None:
    assert estimate(1.0, np.ones(200)) == {"value": 1.0, "low": None, "high": None}


def test_gap_and_worst_are_of_the_hospitals_that_they_name() -> None:
    sites = {"good": predictions(80, 1, shift=3.0), "fair": predictions(80, 2), "poor": predictions(80, 3, shift=0.5)}
    found = assess(sites, 0)
    gap = found["gap"]["auroc"]
    assert (gap["highest"], gap["lowest"]) == ("good", "poor") and found["worst"]["auroc"]["name"] == "poor"
    assert gap["value"] == pytest.approx(
        found["sites"]["good"]["auroc"]["value"] - found["sites"]["poor"]["auroc"]["value"]
    )
    assert 0 < gap["low"] < gap["value"] < gap["high"]
    assert found == assess(sites, 0) and found != assess(sites, 1)


def test_of_groups_only_large_ones_are_told_over_all_hospitals_and_about() -> None:
    one, other = predictions(70, 1), predictions(50, 2)
    for part in (one, other):
        assert part.group is not None
        part.group[:] = np.arange(len(part.labels)) % 2
        part.group[:4] = 2
    found = assess({"a": one, "b": other}, 0, "sex", ["f", "m", "missing"])["groups"]
    assert found["undefined"] is None and found["groups"]["missing"] == {"about": None, "metrics": None}
    assert [found["groups"][name]["about"] for name in "fm"] == [60, 60]  # 56 of each
    assert set(found["gap"]["auroc"]) == {"highest", "lowest", "value", "low", "high"}
    silent = Predictions(other.labels, other.scores, other.patient)
    kept = assess({"a": one, "b": silent}, 0, "sex", ["f", "m", "missing"])["groups"]
    assert "policy of 1 of 2 hospitals" in kept["undefined"] and not kept["groups"]


@pytest.mark.parametrize("make", [lambda: predictions(60, classes=3), lambda: predictions(60)])
def test_curves_are_of_two_classes(make: Callable[[], Predictions]) -> None:
    found = assess({"a": make()}, 0)
    two = make().scores.shape[1] == 2
    assert (found["decision"] is not None) == two
    if two:
        low, model, high = (np.array(found["decision"][key]) for key in ("low", "model", "high"))
        assert (low <= model + 0.05).all() and (model <= high + 0.05).all() and len(model) == 99


def test_groups_are_categories_or_quarters_of_public_bounds() -> None:
    columns = [
        {"name": "sex", "kind": "categorical", "categories": ["f", "m"], "nullable": True},
        {"name": "age", "kind": "integer", "bounds": [0, 120], "unit": "years", "nullable": True},
        {"name": "note", "kind": "code_set", "categories": ["x"]},
        {"name": "died", "kind": "binary", "role": "label"},
    ]
    schema = Schema.from_dict({"name": "s", "unit": "record", "columns": columns})
    table = pd.DataFrame({"sex": ["m", None, "f"], "age": [30, 120, None], "note": ["x", "", ""], "died": [0, 1, 0]})
    x = encode(table, schema).x
    assert [group_names(schema, "sex")[n] for n in group_numbers(x, schema, "sex")] == ["m", "missing", "f"]
    quarters = [group_names(schema, "age")[n] for n in group_numbers(x, schema, "age")]
    assert quarters == ["30 to 60 years", "90 to 120 years", "missing"]
    for name in ("note", "died", "sx"):
        with pytest.raises(ConfigError, match=f"'evaluation.groups' has the value '{name}'"):
            group_names(schema, name)


def test_a_slope_that_no_regression_has_is_undefined() -> None:
    chance, labels = np.array([0.1, 0.2, 0.8, 0.9]), np.array([0, 0, 1, 1])
    for scores in (np.stack([1 - chance, chance], 1), np.full((4, 2), 0.5)):  # told apart without error; all alike
        assert np.isnan(by_name(weighted_metrics(labels, scores, np.ones((1, 4)))[0])["calibration_slope"])
