"""Classifier two-sample test: can a classifier tell synthetic rows from real ones it has not seen?

Lopez-Paz and Oquab 2017. An AUROC of one half says that neither of two classifiers can; 1 that one always does. Below
one half says that the synthetic table repeats rows of the real one: a twin of the other kind was in the training part.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from polyclinic.errors import DataError
from polyclinic.evaluation.intervals import Interval, bootstrap, percentiles, weighted_auroc
from polyclinic.privacy.streams import generator
from polyclinic.types import Bools, Floats, Ints

JUDGES = {"lr": "logistic regression", "gbm": "gradient boosting"}
FOLDS = 5


def two_sample(
    real: ArrayLike,
    synthetic: ArrayLike,
    *,
    seed: int = 0,
    resamples: int = 1000,
    patients: tuple[ArrayLike, ArrayLike] | None = None,
) -> dict[str, Interval]:
    """AUROC of telling synthetic from real rows by judge (``JUDGES``), with 95 % intervals.

    real, synthetic: (n, F), (m, F) numbers; NaN is a missing value, filled with the column's mean for the regression.
    Rows are scored in five folds by models of the other four, and the AUROC is the mean over folds; the interval is
    the bootstrap's over scored rows, without refitting.  patients: the patient of each row of both tables, who stays
    in one fold and is drawn whole.  ``None`` where a table has fewer rows (patients) than folds.
    Raises DataError if the tables do not match or have an infinite entry.
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
    found = {}
    for judge in JUDGES:
        score = _scores(judge, x, made, fold, seed % 2**32)

        def statistic(weights: Floats, score: Floats = score) -> Floats:
            parts = [weighted_auroc(made[fold == f], score[fold == f], weights[:, fold == f]) for f in range(FOLDS)]
            return np.asarray(np.mean(parts, axis=0))

        value, draws = bootstrap(
            statistic,
            len(x),
            generator(seed, "two-sample", "bootstrap"),
            resamples,
            None if patients is None else people,
        )
        found[judge] = percentiles(float(value), draws)
    return found


def _folds(people: Ints, made: Bools, rng: np.random.Generator) -> Ints:
    """The fold of each row: people of each table dealt round in random order."""
    fold = np.empty(int(people.max()) + 1, dtype=np.int64)
    for kind in (False, True):
        own = np.unique(people[made == kind])
        fold[rng.permutation(own)] = np.arange(len(own)) % FOLDS
    return fold[people]


def _scores(judge: str, x: Floats, made: Bools, fold: Ints, state: int) -> Floats:
    score = np.empty(len(x))
    for number in range(FOLDS):
        left = fold == number
        # A column that is missing in all rows to learn from tells nothing; scikit-learn's trees fail on it.
        known = np.where(np.isnan(x[~left]).all(axis=0), 0.0, x)
        model = _model(judge, state).fit(known[~left], made[~left])
        score[left] = model.decision_function(known[left])
    return score


def _model(judge: str, state: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if judge == "gbm":
        return HistGradientBoostingClassifier(early_stopping=False, random_state=state)
    return make_pipeline(
        SimpleImputer(keep_empty_features=True), StandardScaler(), LogisticRegression(max_iter=1000, random_state=state)
    )
