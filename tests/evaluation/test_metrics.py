"""Classification metrics against scikit-learn, against values worked out by hand, and where they are undefined."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as reference

from polyclinic.evaluation.metrics import classification_metrics, macro_average


def binary(p: list[float]) -> np.ndarray:
    return np.column_stack([1 - np.asarray(p), np.asarray(p)])


def random_case(seed: int, rows: int, classes: int, decimals: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels with every class present and probabilities rounded so that ties occur."""
    rng = np.random.default_rng(seed)
    y = np.concatenate([np.arange(classes), rng.integers(0, classes, rows - classes)])
    weights = np.round(rng.random((rows, classes)), decimals) + 0.1
    return y, weights / weights.sum(axis=1, keepdims=True)


@given(st.integers(0, 10_000), st.integers(2, 60), st.sampled_from([1, 2, 8]))
def test_binary_metrics_equal_scikit_learn(seed: int, rows: int, decimals: int) -> None:
    y, scores = random_case(seed, rows, 2, decimals)
    found = classification_metrics(y, scores)
    assert found["auroc"] == pytest.approx(reference.roc_auc_score(y, scores[:, 1]), abs=1e-12)
    assert found["auprc"] == pytest.approx(reference.average_precision_score(y, scores[:, 1]), abs=1e-12)
    assert found["accuracy"] == pytest.approx(reference.accuracy_score(y, scores.argmax(1)), abs=1e-12)
    assert found["loss"] == pytest.approx(reference.log_loss(y, scores, labels=[0, 1]), abs=1e-12)
    assert found["brier"] == pytest.approx(reference.brier_score_loss(y, scores[:, 1]), abs=1e-12)
    assert found["n"] == rows


@given(st.integers(0, 10_000), st.integers(3, 5), st.integers(6, 60))
def test_multiclass_metrics_equal_scikit_learn(seed: int, classes: int, rows: int) -> None:
    y, scores = random_case(seed, rows, classes, 2)
    one_hot = np.eye(classes)[y]
    found = classification_metrics(y, scores)
    assert found["auroc"] == pytest.approx(reference.roc_auc_score(y, scores, multi_class="ovr"), abs=1e-12)
    assert found["auprc"] == pytest.approx(reference.average_precision_score(one_hot, scores), abs=1e-12)
    assert found["loss"] == pytest.approx(reference.log_loss(y, scores), abs=1e-12)
    assert found["brier"] == pytest.approx(((scores - one_hot) ** 2).sum(axis=1).mean(), abs=1e-12)


KNOWN = [  # y, probability of class 1, metric, value by hand
    ([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8], "auroc", 0.75),
    ([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8], "auprc", 5 / 6),
    ([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8], "accuracy", 0.75),
    ([0, 1], [0.5, 0.5], "auroc", 0.5),
    ([0, 1], [0.5, 0.5], "auprc", 0.5),
    ([0, 1], [0.5, 0.5], "loss", math.log(2)),
    ([0, 1], [0.5, 0.5], "brier", 0.25),
    ([0, 1, 1], [0.0, 1.0, 1.0], "auroc", 1.0),
    ([1, 0], [0.0, 1.0], "auroc", 0.0),
    ([1, 0], [0.0, 1.0], "brier", 1.0),
]


@pytest.mark.parametrize(("y", "p", "name", "value"), KNOWN)
def test_known_values(y: list[int], p: list[float], name: str, value: float) -> None:
    assert classification_metrics(y, binary(p))[name] == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize("label", [0, 1])
def test_one_class_leaves_ranking_undefined_and_the_rest_defined(label: int) -> None:
    found = classification_metrics([label] * 3, binary([0.2, 0.9, 0.6]))
    assert found["auroc"] is None and found["auprc"] is None
    assert all(math.isfinite(found[name] or 0.0) for name in ("accuracy", "loss", "brier"))
    assert found["accuracy"] == pytest.approx(1 / 3 if label == 0 else 2 / 3)


def test_multiclass_averages_over_the_classes_present() -> None:
    scores = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.5, 0.2, 0.3], [0.1, 0.7, 0.2]])
    y = np.array([0, 1, 0, 1])
    expected = np.mean([reference.roc_auc_score(y == c, scores[:, c]) for c in (0, 1)])
    assert classification_metrics(y, scores)["auroc"] == pytest.approx(expected)


def test_certain_and_wrong_has_finite_loss() -> None:
    loss = classification_metrics([0, 1], binary([1.0, 0.0]))["loss"]
    assert loss is not None and 30 < loss < 40


def test_no_rows_and_diverged_model_define_nothing() -> None:
    diverged = classification_metrics([0, 1], [[0.5, 0.5], [math.nan, math.nan]])
    empty = classification_metrics(np.empty(0, dtype=int), np.empty((0, 2)))
    for found, rows in ((diverged, 2), (empty, 0)):
        assert found.pop("n") == rows
        assert set(found.values()) == {None}


def test_result_is_json_without_nan() -> None:
    json.dumps(classification_metrics(np.ones(2, dtype=np.int64), np.full((2, 2), 0.5, np.float32)), allow_nan=False)


BAD = [
    ([0, 1], [[0.5], [0.5]], "K >= 2"),
    ([0, 1], [0.5, 0.5], "shape"),
    ([0, 1, 1], [[0.5, 0.5]] * 2, "y must have shape"),
    ([0, 2], [[0.5, 0.5]] * 2, "whole numbers from 0 to 1"),
    ([0, 0.5], [[0.5, 0.5]] * 2, "whole numbers"),
    ([0, 1], [[2.0, -1.0]] * 2, "probabilities"),
    ([0, 1], [[3.0, 4.0]] * 2, "probabilities"),
]


@pytest.mark.parametrize(("y", "scores", "words"), BAD)
def test_impossible_input_is_refused(y: list[float], scores: list[object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        classification_metrics(y, scores)  # type: ignore[arg-type]


def test_macro_average_leaves_out_undefined_sites() -> None:
    sites = [{"auroc": 0.8, "auprc": None, "n": 10}, {"auroc": None, "auprc": None, "n": 5}, {"auroc": 0.6, "n": 1}]
    found = macro_average(sites)
    assert found == {"auroc": pytest.approx(0.7), "auprc": None, "n": 16}
    assert macro_average([]) == {}
