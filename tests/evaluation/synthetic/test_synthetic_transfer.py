"""Transfer: what classifiers learn from synthetic rows, against scikit-learn, and the two-sample test."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, roc_auc_score
from sklearn.preprocessing import StandardScaler

from polyclinic.errors import ConfigError, DataError
from polyclinic.evaluation.intervals import bootstrap, percentiles, resamples, weighted_auroc
from polyclinic.evaluation.metrics import auroc
from polyclinic.evaluation.synthetic.classifiers import CLASSIFIERS, scores, transfer, two_sample
from polyclinic.privacy.streams import generator

SLOPES = np.array([2.0, 1.0, -1.0, 0.5, 0.0])


def table(rows: int, seed: int = 0, classes: int = 2, lean: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, len(SLOPES)))
    z = lean * x @ SLOPES + rng.logistic(size=rows)
    return x, np.digitize(z, [0.0] if classes == 2 else [-1.0, 1.0])


@given(st.integers(0, 10_000), st.booleans())
@settings(max_examples=30)
def test_weighted_auroc_is_that_of_rows_repeated(seed: int, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    positive, score = rng.random(30) < 0.5, rng.normal(size=30)
    score = score.round() if ties else score
    weights = rng.integers(0, 4, size=(3, 30)).astype(float)
    for found, row in zip(weighted_auroc(positive, score, weights), weights, strict=True):
        times = row.astype(int)
        expected = auroc(positive.repeat(times), score.repeat(times))
        assert np.isnan(found) if expected is None else found == pytest.approx(expected)
    assert weighted_auroc(positive, score, np.ones((1, 30)))[0] == pytest.approx(roc_auc_score(positive, score))


def test_scores_of_three_classes_agree_with_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    y, margins = rng.integers(0, 3, 80), rng.dirichlet(np.ones(3), 80)
    found = scores(y, margins.argmax(axis=1), margins, np.ones((1, 80)))[0]
    expected = [
        (margins.argmax(axis=1) == y).mean(),
        roc_auc_score(y, margins, multi_class="ovr"),
        f1_score(y, margins.argmax(axis=1), average="macro"),
    ]
    assert found == pytest.approx(expected)


def test_a_class_without_scores_ranks_nothing() -> None:
    y = np.array([0, 0, 1, 1])
    assert weighted_auroc(y == 1, np.full(4, -np.inf), np.ones((1, 4))) == pytest.approx([0.5])


def test_resamples_of_patients_move_their_rows_together_and_keep_the_number_of_patients() -> None:
    patients = np.array(["a", "a", "b", "c", "c", "c"])
    weights = np.concatenate(list(resamples(6, 500, np.random.default_rng(0), patients)))
    assert weights.shape == (500, 6)
    assert (weights[:, 0] == weights[:, 1]).all() and (weights[:, 3] == weights[:, 5]).all()
    assert (weights[:, [0, 2, 3]].sum(axis=1) == 3).all()
    assert weights.mean(axis=0) == pytest.approx(np.ones(6), abs=0.15)


def test_bootstrap_of_a_mean_has_its_standard_error() -> None:
    values = np.random.default_rng(2).normal(size=400)
    value, draws = bootstrap(lambda w: w @ values / w.sum(axis=1), 400, np.random.default_rng(3), 4000)
    assert value == pytest.approx(values.mean())
    found = percentiles(float(value), draws)
    assert found.low is not None and found.high is not None
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * values.std() / 20, rel=0.06)


def test_real_rows_are_worth_what_scikit_learn_says_and_a_copy_as_much() -> None:
    real, test = table(400), table(300, seed=1)
    found = transfer(real, {"copy": real}, test, resamples=200)
    assert list(found) == ["real", "copy"] and list(found["real"]) == list(CLASSIFIERS)
    scaler = StandardScaler().fit(real[0])
    model = LogisticRegression().fit(scaler.transform(real[0]), real[1])
    x = scaler.transform(test[0])
    value = found["real"]["lr"].scores
    assert value["accuracy"].value == pytest.approx(model.score(x, test[1]))
    assert value["auroc"].value == pytest.approx(roc_auc_score(test[1], model.decision_function(x)))
    assert value["f1"].value == pytest.approx(f1_score(test[1], model.predict(x)))
    for kind, judged in found["copy"].items():
        assert judged.scores == found["real"][kind].scores and 0.7 < (judged.scores["accuracy"].value or 0) < 1
        assert {(d.value, d.low, d.high) for d in judged.minus_real.values()} == {(0.0, 0.0, 0.0)}
        assert judged.importance == (None if kind == "knn" else pytest.approx(1.0))
        assert found["real"][kind].minus_real == {} and found["real"][kind].importance is None


def test_worse_tables_are_told_from_good_ones_by_the_interval_of_the_difference() -> None:
    real, test = table(500), table(500, seed=1)
    shuffled = real[0], np.random.default_rng(5).permutation(real[1])
    upside_down = real[0], 1 - real[1]
    tables = {"again": table(500, seed=2), "shuffled": shuffled, "upside down": upside_down}
    found = transfer(real, tables, test, resamples=300, classifiers=["lr", "svm"])
    for kind in ("lr", "svm"):
        again, bad = found["again"][kind].minus_real["auroc"], found["shuffled"][kind].minus_real["auroc"]
        assert again.low is not None and again.high is not None and again.low - 0.01 <= 0 <= again.high + 0.01
        assert bad.high is not None and bad.high < -0.1
        assert found["again"][kind].importance == pytest.approx(1.0, abs=0.11)
        assert found["upside down"][kind].importance == pytest.approx(-1.0)


def test_one_class_is_undefined_and_never_a_number() -> None:
    real, test = table(100), table(80, seed=1)
    found = transfer(real, {"one class": (real[0], np.zeros(100, int))}, test, resamples=20)
    for judged in found["one class"].values():
        assert {s.value for s in (*judged.scores.values(), *judged.minus_real.values())} == {None}
        assert judged.importance is None
    alone = transfer(real, {}, (test[0], np.zeros(80, int)), resamples=20, classifiers=["lr"])["real"]["lr"].scores
    assert alone["auroc"].value is None and alone["accuracy"].value is not None


def test_a_class_that_synthetic_rows_lack_is_never_predicted() -> None:
    x, y = table(300, classes=3)
    without = x[y < 2], y[y < 2]
    found = transfer((x, y), {"two of three": without}, table(300, seed=1, classes=3), resamples=20)
    for kind, judged in found["two of three"].items():
        assert (judged.scores["f1"].value or 1) < (found["real"][kind].scores["f1"].value or 0)
        assert judged.scores["auroc"].value is not None


def test_the_same_seed_gives_the_same_result() -> None:
    real, test = table(120), table(100, seed=1)
    assert transfer(real, {"s": test}, test, seed=3, resamples=30) == transfer(
        real, {"s": test}, test, seed=3, resamples=30
    )


@pytest.mark.parametrize(
    ("real", "words"),
    [
        ((np.full((4, 5), np.nan), np.array([0, 1, 0, 1])), "'real' has a missing or infinite feature"),
        ((np.zeros((4, 5)), np.array([0, 1, 0])), "'real' must be features"),
        ((np.zeros((4, 3)), np.array([0, 1, 0, 1])), "'real' has another number of features"),
        ((np.zeros((4, 5)), np.array([0, 0.5, 0, 1])), "not a whole number"),
    ],
)
def test_bad_tables_are_refused(real: tuple[np.ndarray, np.ndarray], words: str) -> None:
    with pytest.raises(DataError, match=words):
        transfer(real, {}, table(20))


def test_bad_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="'real'"):
        transfer(table(20), {"real": table(20)}, table(20))
    with pytest.raises(ConfigError, match="'tree' is not one of lr"):
        transfer(table(20), {}, table(20), classifiers=["tree"])


def test_two_sample_test_is_a_coin_toss_for_the_same_law_and_certain_for_another() -> None:
    a, b = table(400)[0], table(400, seed=1)[0]
    same, other = two_sample(a, b, resamples=200), two_sample(a, b + 3, resamples=200)
    for judge in ("lr", "gbm"):
        low, high = same[judge].low, same[judge].high
        assert low is not None and high is not None and low - 0.03 <= 0.5 <= high + 0.03 and high - low < 0.12
        assert (other[judge].value or 0) > 0.97


def test_only_boosting_sees_what_is_not_in_the_means() -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(size=(400, 2))
    b = np.stack([c := rng.normal(size=400), c], axis=1)
    found = two_sample(a, b, resamples=50)
    assert abs((found["lr"].value or 0) - 0.5) < 0.1 and (found["gbm"].value or 0) > 0.9


def test_repeated_real_rows_are_below_a_coin_toss() -> None:
    a = table(300)[0]
    assert (two_sample(a, a, resamples=20)["gbm"].value or 1) < 0.45


def test_rows_of_a_patient_stay_in_one_fold() -> None:
    # Twenty patients of each kind, whose rows are nearly the same: to be recognised is not to be told apart.
    rng = np.random.default_rng(4)
    patient = np.arange(20).repeat(10)
    a, b = (rng.normal(size=(20, 4)).repeat(10, axis=0) + 0.01 * rng.normal(size=(200, 4)) for _ in range(2))
    alone = two_sample(a, b, resamples=50)["gbm"].value or 0
    together = two_sample(a, b, resamples=50, patients=(patient, patient))["gbm"]
    assert alone > 0.95 and (together.value or 1) < 0.75
    assert together.low is not None and together.high is not None and together.high - together.low > 0.2


def test_missing_values_are_allowed_and_too_few_rows_are_undefined() -> None:
    a, b = table(60)[0], table(60, seed=1)[0]
    a[::7, 0] = np.nan
    assert two_sample(a, b, resamples=10)["lr"].value is not None
    assert {found.value for found in two_sample(a[:4], b, resamples=10).values()} == {None}
    with pytest.raises(DataError, match="infinite"):
        two_sample(a, np.full_like(b, np.inf))
    with pytest.raises(DataError, match="same F"):
        two_sample(a, b[:, :2])


def test_resamples_are_at_least_one() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        list(resamples(3, 0, generator(0), None))
