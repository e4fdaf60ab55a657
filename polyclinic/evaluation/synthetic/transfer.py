"""Train on synthetic, test on real: four classifiers, their scores beside those of classifiers trained on real rows.

Esteban, Hyland and Raetsch 2017 (TSTR); Beaulieu-Jones et al. 2019 (the four classifiers, and whether they lean on the
same features). Differences are paired: each resample of the test rows is scored by both.
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
from polyclinic.types import Floats, Ints

REAL = "real"
METRICS = ("accuracy", "auroc", "f1")
CLASSIFIERS = {
    "lr": "logistic regression",
    "rf": "random forest",
    "svm": "linear SVM",
    "knn": "5 nearest neighbours",
}
TREES, NEIGHBOURS = 100, 5

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
    """What classifiers trained on each table are worth on real test rows: by table ("real" first), then by classifier.

    A table is x (n, F) finite numbers and y (n,) classes 0..K-1; ``test`` holds real rows that trained nothing.
    patients: (n,) of the test rows, drawn together where a patient has several.  Metrics: accuracy; AUROC and F1 of
    class 1, for K > 2 their mean over the classes of the test rows. A table of one class trains nothing: all ``None``.
    Features are standardised by the table that trains, except for the forest.
    Raises DataError where a table is not as above, ConfigError for a classifier that is not in ``CLASSIFIERS`` or a
    synthetic table named "real".
    """
    if REAL in synthetic:
        raise ConfigError(f"synthetic: a table is named {REAL!r}, which is kept for the real one.")
    for name in classifiers:
        if name not in CLASSIFIERS:
            raise ConfigError(f"classifiers: {name!r} is not one of {', '.join(CLASSIFIERS)}.")
    tables = {name: _checked(name, table) for name, table in {REAL: real, **synthetic}.items()}
    x, y = _checked("test", test)
    if unlike := [name for name, table in tables.items() if table[0].shape[1] != x.shape[1]]:
        raise DataError(f"table {unlike[0]!r} has another number of features than the test rows' {x.shape[1]}.")
    classes = 1 + max(int(labels.max()) for _, labels in (*tables.values(), (x, y)))
    found: dict[str, dict[str, Judged]] = {name: {} for name in tables}
    for kind in classifiers:
        trained = [_train(kind, table, x, max(classes, 2), seed) for table in tables.values()]
        for name, judged in zip(tables, _judge(trained, y, seed, resamples, patients), strict=True):
            found[name][kind] = judged
    return found


def scores(y: Ints, predicted: Ints, margins: Floats, weights: Floats) -> Floats:
    """(b, 3) accuracy, AUROC and F1 of each resample, NaN where undefined; the last two as ``transfer`` says.

    y, predicted: (n,).  margins: (n, K), higher for the likelier class.  weights: (b, n).
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
    from scipy.stats import rankdata

    return float(np.corrcoef(rankdata(a), rankdata(b))[0, 1])


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
            if not i or one is None or real is None or one.weights is None or real.weights is None
            else spearman(real.weights, one.weights),
        )
        for i, one in enumerate(trained)
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
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import LinearSVC

    state = seed % 2**32
    if kind == "rf":
        return make_pipeline(RandomForestClassifier(TREES, random_state=state, n_jobs=1))
    if kind == "lr":
        return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000, random_state=state))
    if kind == "svm":
        return make_pipeline(StandardScaler(), LinearSVC(dual=False, random_state=state))
    return make_pipeline(StandardScaler(), KNeighborsClassifier(min(NEIGHBOURS, rows)))


def _checked(name: str, table: Table) -> tuple[Floats, Ints]:
    x, y = np.asarray(table[0], dtype=np.float64), np.asarray(table[1])
    if x.ndim != 2 or y.shape != x.shape[:1] or not len(y):
        raise DataError(f"table {name!r} must be features (n, F) and labels (n,), n > 0, not {x.shape} and {y.shape}.")
    if not np.isfinite(x).all():
        raise DataError(f"table {name!r} has a missing or infinite feature; encode or impute it first.")
    labels = y.astype(np.int64)
    if not np.array_equal(labels, y) or (labels < 0).any():
        raise DataError(f"table {name!r} has a label that is not a whole number from 0.")
    return x, labels
