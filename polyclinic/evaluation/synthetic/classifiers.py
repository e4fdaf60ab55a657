"""What classifiers say of a synthetic table: what they learn from it, whether they tell it from the real one, and a cut-off.

Train on synthetic, test on real: Esteban, Hyland and Raetsch 2017 (TSTR); Beaulieu-Jones et al. 2019 (the four classifiers, and
whether they lean on the same features). Differences are paired: each resample of the test rows is scored by both.

Classifier two-sample test: can a classifier tell synthetic rows from real ones it has not seen? Lopez-Paz and Oquab 2017. An
AUROC of one half says that neither of two classifiers can; 1 that one always does. Below one half says that the synthetic table
repeats rows of the real one: a twin of the other kind was in the training part.

The cut-off of a score is the one that is best by the index of Fowlkes and Mallows (1983), the root of precision times recall.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyclinic.errors import ConfigError, DataError
from polyclinic.evaluation.intervals import Interval, bootstrap, percentiles, ratio, weighted_auroc
from polyclinic.privacy.streams import generator
from polyclinic.types import Bools, Floats, Ints

REAL = "real"
METRICS = ("accuracy", "auroc", "f1")
CLASSIFIERS = {
    "lr": "logistic regression",
    "rf": "random forest",
    "svm": "linear SVM",
    "knn": "5 nearest neighbours",
}
JUDGES = {"lr": "logistic regression", "gbm": "gradient boosting"}
TREES, NEIGHBOURS, FOLDS = 100, 5, 5

Table = tuple[ArrayLike, ArrayLike]


@dataclass(frozen=True)
class Judged:
    """One classifier trained on one table: scores on real test rows by metric, with 95 % intervals.

    minus_real: the score less that of the same classifier trained on real rows, paired; empty for real rows themselves.
    importance: Spearman correlation of its feature weights with those learned from real rows (None for neighbours).
    """

    scores: dict[str, Interval]
    minus_real: dict[str, Interval]
    importance: float | None


@dataclass(frozen=True)
class _Trained:
    predicted: Ints
    scores: Floats
    weights: Floats | None


def transfer(
    real: Table,
    synthetic: Mapping[str, Table],
    test: Table,
    *,
    seed: int = 0,
    resamples: int = 1000,
    patients: NDArray[np.generic] | None = None,
    classifiers: Sequence[str] = tuple(CLASSIFIERS),
) -> dict[str, dict[str, Judged]]:
    """Return what classifiers trained on each table are worth on real test rows: by table ("real" first), then by classifier.

    A table is x (n, F) finite numbers and y (n,) classes 0..K-1. Metrics: accuracy; AUROC and F1 of class 1, for K > 2
    their mean over the classes of the test rows. A table of one class trains nothing: all ``None``. Features are
    standardised by the table that trains, except for the forest.

    Args:
        real: The real table that trains.
        synthetic: Synthetic tables by name.
        test: Real rows that trained nothing.
        seed: Of classifiers and resamples.
        resamples: Of the intervals.
        patients: (n,) of the test rows, drawn together where a patient has several.
        classifiers: Keys of ``CLASSIFIERS`` or ``JUDGES``.

    Raises:
        DataError: Where a table is not as above.
        ConfigError: For a classifier that is not in ``CLASSIFIERS`` or ``JUDGES`` or a synthetic table named "real".
    """
    if REAL in synthetic:
        raise ConfigError(f"synthetic: a table is named {REAL!r}, which is kept for the real one.")
    for name in classifiers:
        if name not in CLASSIFIERS | JUDGES:
            raise ConfigError(f"classifiers: {name!r} is not one of {', '.join(CLASSIFIERS | JUDGES)}.")
    tables = {name: _check(name, table) for name, table in {REAL: real, **synthetic}.items()}
    x, y = _check("test", test)
    if unlike := [name for name, table in tables.items() if table[0].shape[1] != x.shape[1]]:
        raise DataError(f"table {unlike[0]!r} has another number of features than the test rows' {x.shape[1]}.")
    classes = 1 + max(int(labels.max()) for _, labels in (*tables.values(), (x, y)))
    judgements: dict[str, dict[str, Judged]] = {name: {} for name in tables}
    for kind in classifiers:
        trained = [_train(kind, table, x, max(classes, 2), seed) for table in tables.values()]
        for name, judged in zip(tables, _judge(trained, y, seed, resamples, patients), strict=True):
            judgements[name][kind] = judged
    return judgements


def scores(y: Ints, predicted: Ints, margins: Floats, weights: Floats) -> Floats:
    """Return (b, 3) accuracy, AUROC and F1 of each resample, NaN where undefined; the last two as ``transfer`` says.

    Args:
        y: (n,) classes.
        predicted: (n,) predicted classes.
        margins: (n, K), higher for the likelier class.
        weights: (b, n) how often each row counts.
    """
    chosen = [1] if margins.shape[1] == 2 else list(np.unique(y))
    columns = [ratio(weights @ (predicted == y), weights.sum(axis=1))]
    areas = np.stack([weighted_auroc(y == c, margins[:, c], weights) for c in chosen])
    hits = np.stack([weights @ ((predicted == c) & (y == c)) for c in chosen])
    named = np.stack([weights @ (1.0 * (predicted == c) + (y == c)) for c in chosen])
    return np.stack([*columns, _mean(areas), _mean(ratio(2 * hits, named))], axis=1)


def spearman(a: Floats, b: Floats) -> float | None:
    """Rank correlation of two vectors (n,); ``None`` where either is constant or has fewer than two entries."""
    if a.size < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    from scipy.stats import spearmanr

    return float(spearmanr(a, b).statistic)


def _mean(rows: Floats) -> Floats:
    defined = np.isfinite(rows)
    return ratio(np.where(defined, rows, 0.0).sum(axis=0), defined.sum(axis=0).astype(np.float64))


def _judge(
    trained: Sequence[_Trained | None],
    y: Ints,
    seed: int,
    count: int,
    patients: NDArray[np.generic] | None,
) -> list[Judged]:
    """Each of the trained, the first of which learned from real rows."""

    def statistic(weights: Floats) -> Floats:
        undefined = np.full((len(weights), len(METRICS)), np.nan)
        return np.stack(
            [undefined if t is None else scores(y, t.predicted, t.scores, weights) for t in trained], axis=1
        )

    value, draws = bootstrap(statistic, len(y), generator(seed, "transfer", "bootstrap"), count, patients)
    less, draws_less = value - value[0], draws - draws[:, :1]
    real = trained[0]
    return [
        Judged(
            {metric: percentiles(value[i, m], draws[:, i, m]) for m, metric in enumerate(METRICS)},
            {metric: percentiles(less[i, m], draws_less[:, i, m]) for m, metric in enumerate(METRICS)} if i else {},
            None
            if not i or result is None or real is None or result.weights is None or real.weights is None
            else spearman(real.weights, result.weights),
        )
        for i, result in enumerate(trained)
    ]


def _train(kind: str, table: tuple[Floats, Ints], test: Floats, classes: int, seed: int) -> _Trained | None:
    x, y = table
    if np.ptp(y) == 0:
        return None
    model = _classifier(kind, len(x), seed).fit(x, y)
    last = model[-1]
    raw = np.asarray(model.decision_function(test) if hasattr(last, "decision_function") else model.predict_proba(test))
    if raw.ndim == 1:
        raw = np.stack([-raw, raw], axis=1)
    margins = np.full((len(test), classes), -np.inf)  # a class that the table lacks is never likelier
    margins[:, last.classes_] = raw
    weights = getattr(last, "feature_importances_", getattr(last, "coef_", None))
    if weights is not None and weights.ndim == 2:
        full = np.zeros((classes, weights.shape[1]))
        full[last.classes_ if len(weights) > 1 else last.classes_[1:]] = weights
        weights = full[1:] if classes == 2 else full
    return _Trained(model.predict(test).astype(np.int64), margins, None if weights is None else np.ravel(weights))


def _classifier(kind: str, rows: int, seed: int) -> Any:
    """An unfitted classifier of ``CLASSIFIERS`` or ``JUDGES``, to be fitted to so many rows."""
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import LinearSVC

    state = seed % 2**32
    if kind == "gbm":
        return make_pipeline(HistGradientBoostingClassifier(early_stopping=False, random_state=state))
    if kind == "rf":
        return make_pipeline(RandomForestClassifier(TREES, random_state=state, n_jobs=1))
    if kind == "lr":  # for the two-sample test, whose rows may have missing values
        return make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression(max_iter=1000, random_state=state))
    if kind == "svm":
        return make_pipeline(StandardScaler(), LinearSVC(dual=False, random_state=state))
    return make_pipeline(StandardScaler(), KNeighborsClassifier(min(NEIGHBOURS, rows)))


def _check(name: str, table: Table) -> tuple[Floats, Ints]:
    x, y = np.asarray(table[0], dtype=np.float64), np.asarray(table[1])
    if x.ndim != 2 or y.shape != x.shape[:1] or not len(y):
        raise DataError(f"table {name!r} must be features (n, F) and labels (n,), n > 0, not {x.shape} and {y.shape}.")
    if not np.isfinite(x).all():
        raise DataError(f"table {name!r} has a missing or infinite feature; encode or impute it first.")
    labels = y.astype(np.int64)
    if not np.array_equal(labels, y) or (labels < 0).any():
        raise DataError(f"table {name!r} has a label that is not a whole number from 0.")
    return x, labels


def two_sample(
    real: ArrayLike,
    synthetic: ArrayLike,
    *,
    seed: int = 0,
    resamples: int = 1000,
    patients: tuple[ArrayLike, ArrayLike] | None = None,
) -> dict[str, Interval]:
    """Return the AUROC of telling synthetic from real rows by judge (``JUDGES``), with 95 % intervals.

    Rows are scored in five folds by models of the other four, and the AUROC is the mean over folds. The interval is the
    bootstrap's over scored rows, without refitting.

    Args:
        real, synthetic: (n, F), (m, F) numbers; NaN is a missing value, filled with the column's mean for the
            regression.
        seed: Of folds, models and resamples.
        resamples: Of the intervals.
        patients: The patient of each row of both tables, who stays in one fold and is drawn whole. None means a patient
            a row.

    Returns:
        Undefined intervals where a table has fewer rows (patients) than folds.

    Raises:
        DataError: If the tables do not match or have an infinite entry.
    """
    tables = [np.asarray(table, dtype=np.float64) for table in (real, synthetic)]
    if any(table.ndim != 2 or table.shape[1] != tables[0].shape[1] for table in tables) or not tables[0].shape[1]:
        raise DataError(f"tables must be (n, F) of the same F > 0, not {tables[0].shape} and {tables[1].shape}.")
    x = np.concatenate(tables)
    if np.isinf(x).any():
        raise DataError("the tables must hold finite numbers or NaN, and one has an infinite entry.")
    made = np.repeat([False, True], [len(table) for table in tables])
    given = [np.arange(len(table)) for table in tables] if patients is None else [np.asarray(p) for p in patients]
    if [len(each) for each in given] != [len(table) for table in tables]:
        raise DataError("patients must have one entry for each row of its table.")
    numbers = [np.unique(each, return_inverse=True)[1] for each in given]
    # A synthetic patient is never a real one, whatever they are called.
    people = np.concatenate([numbers[0], numbers[1] + numbers[0].max(initial=-1) + 1])
    if min(int(each.max(initial=-1)) + 1 for each in numbers) < FOLDS:
        return dict.fromkeys(JUDGES, Interval(None))
    fold = _folds(people, made, generator(seed, "two-sample", "folds"))
    intervals = {}
    for judge in JUDGES:
        score = _scores(judge, x, made, fold, seed)

        def statistic(weights: Floats, score: Floats = score) -> Floats:
            parts = [weighted_auroc(made[fold == f], score[fold == f], weights[:, fold == f]) for f in range(FOLDS)]
            return np.asarray(np.mean(parts, axis=0))

        rng, units = generator(seed, "two-sample", "bootstrap"), None if patients is None else people
        value, draws = bootstrap(statistic, len(x), rng, resamples, units)
        intervals[judge] = percentiles(float(value), draws)
    return intervals


def _folds(people: Ints, made: Bools, rng: np.random.Generator) -> Ints:
    """The fold of each row: people of each table dealt round in random order."""
    fold = np.empty(int(people.max()) + 1, dtype=np.int64)
    for kind in (False, True):
        own = np.unique(people[made == kind])
        fold[rng.permutation(own)] = np.arange(len(own)) % FOLDS
    return fold[people]


def _scores(judge: str, x: Floats, made: Bools, fold: Ints, seed: int) -> Floats:
    """(n,) the score of each row by a model of the other folds."""
    score = np.empty(len(x))
    for number in range(FOLDS):
        left = fold == number
        # A column that is missing in all rows to learn from tells nothing; scikit-learn's trees fail on it.
        features = np.where(np.isnan(x[~left]).all(axis=0), 0.0, x)
        score[left] = (
            _classifier(judge, len(x), seed).fit(features[~left], made[~left]).decision_function(features[left])
        )
    return score


def fowlkes_mallows_cutoff(y: ArrayLike, score: ArrayLike) -> float:
    """The number above which a score counts as positive: in the middle below the score of the largest index, the larger of ties.

    y: (n,) 0 or 1; score: (n,). Fitted to synthetic rows it costs no privacy; fitted to real ones it does.
    Raises ConfigError unless both classes are there and scores are finite.
    """
    truth, values = np.asarray(y, dtype=bool), np.asarray(score, dtype=np.float64)
    if truth.all() or not truth.any() or not np.isfinite(values).all():
        raise ConfigError("A cut-off needs rows of both classes and finite scores.")
    levels = np.unique(values)
    called = len(values) - np.searchsorted(np.sort(values), levels)
    hits = truth.sum() - np.searchsorted(np.sort(values[truth]), levels)
    index = hits / np.sqrt(called * float(truth.sum()))
    best = len(levels) - 1 - int(np.argmax(index[::-1]))
    below = levels[best - 1] if best else levels[0] - 1.0
    return float((levels[best] + below) / 2)


def fowlkes_mallows_index(y: ArrayLike, called: ArrayLike) -> float | None:
    """TP / sqrt((TP + FP)(TP + FN)) of (n,) truths and calls, 0 to 1; None where none is positive or none is called so."""
    truth, predicted = np.asarray(y, dtype=bool), np.asarray(called, dtype=bool)
    if not truth.any() or not predicted.any():
        return None
    return float((truth & predicted).sum() / np.sqrt(float(predicted.sum()) * float(truth.sum())))


def cutoff_on(table: tuple[Floats, Ints], test: tuple[Floats, Ints], seed: int = 0) -> dict[str, float | None]:
    """Return what the cut-off of a logistic regression's probability, both fitted to ``table``, is worth on ``test``.

    The cut-off is of scores of five folds, each by the others' model.

    Args:
        table, test: x (n, F) finite and y (n,) 0 or 1.
        seed: Of the folds and the model.

    Returns:
        ``cutoff``, ``index`` (on ``test``), ``sensitivity`` and ``specificity``. None is what the data do not define.
        All are None where a class of ``table`` has fewer rows than there are folds.
    """
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    (x, y), (seen, truth) = table, test
    if min(int((y == 1).sum()), int((y == 0).sum())) < FOLDS:
        return dict.fromkeys(("cutoff", "index", "sensitivity", "specificity"))
    model = _classifier("lr", len(x), seed)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed % 2**32)
    cut = fowlkes_mallows_cutoff(y, cross_val_predict(model, x, y, cv=folds, method="predict_proba")[:, 1])
    called = model.fit(x, y).predict_proba(seen)[:, 1] > cut
    positive = truth == 1
    return {
        "cutoff": cut,
        "index": fowlkes_mallows_index(positive, called),
        "sensitivity": float(called[positive].mean()) if positive.any() else None,
        "specificity": float((~called[~positive]).mean()) if (~positive).any() else None,
    }
