"""What the EHR experiment asks of synthetic patients: who is hypertensive, and how high the mean pulmonary pressure is.

A classifier and a regression learn from synthetic patients and are judged on real ones who were held out. dPAP and sPAP make
the outcome and are no predictors, nor does anything of them go into test patients' missing predictors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from polyclinic.ehr.encoding import column_values, encode
from polyclinic.ehr.imputation import impute_chained
from polyclinic.evaluation.synthetic.classifiers import fowlkes_mallows_cutoff
from polyclinic.synthesis.combining import combine
from polyclinic.types import Floats
from polyclinic_studies.ehr_flow.cohort import COLUMNS, HYPERTENSIVE, SCHEMA, Cohort, mean_pressure

_OF_OUTCOME = [COLUMNS.index(name) for name in ("dpap", "spap")]
FOLDS = 5
PREDICTORS = [place for place in range(len(COLUMNS)) if place not in _OF_OUTCOME]
_OF_PREDICTORS = SCHEMA.model_copy(
    update={"columns": tuple(c for c in SCHEMA.columns if c.name not in ("dpap", "spap"))}
)


@dataclass(frozen=True)
class Score:
    """accuracy: share called rightly.  error: mean square error.  each with the variance of its mean over test patients."""

    accuracy: float
    accuracy_variance: float
    error: float
    error_variance: float


def pressures(table: Floats) -> Floats:
    """(n,) mean pulmonary pressures of (n, 19) rows, mmHg."""
    return mean_pressure(*(table[:, place] for place in _OF_OUTCOME))


def imputed(records: pd.DataFrame, sets: int, seed: int, iterations: int = 5) -> list[Floats]:
    """``sets`` complete (n, 19) tables by chained equations over all (n) records at once: no guarantee holds of what is trained
    on them."""
    x = encode(records, SCHEMA).x
    return [values_of(one) for one in impute_chained(x, SCHEMA, seed, draws=sets, iterations=iterations)]


def held_out(cohort: Cohort, sets: int, seed: int, iterations: int = 5) -> list[Floats]:
    """``sets`` complete (n, 19) tables for judging: predictors imputed from predictors alone, by chained equations over all
    patients, and the outcome as it was measured, which only a simulation knows of everybody."""
    x = encode(cohort.records[[column.name for column in _OF_PREDICTORS.columns]], _OF_PREDICTORS).x
    names = [COLUMNS[place] for place in PREDICTORS]
    found = []
    for one in impute_chained(x, _OF_PREDICTORS, seed, draws=sets, iterations=iterations):
        table = cohort.measured.copy()
        table[:, PREDICTORS] = np.stack([column_values(one, _OF_PREDICTORS, name) for name in names], axis=1)
        found.append(table)
    return found


def values_of(x: Floats) -> Floats:
    """(n, 19) in units, of encoded rows."""
    return np.stack([column_values(x, SCHEMA, name) for name in COLUMNS], axis=1)


def learned(table: Floats, tests: Sequence[Floats], trees: int = 50) -> list[Score]:
    """Scores on each of ``tests``, (n, 19) complete, of what complete rows ``table`` teach of the mean pulmonary pressure."""
    seen = [(test[:, PREDICTORS], pressures(test)) for test in tests]
    return taught((table[:, PREDICTORS], pressures(table)), seen, HYPERTENSIVE, trees)


def taught(
    table: tuple[Floats, Floats], tests: Sequence[tuple[Floats, Floats]], above: float, trees: int
) -> list[Score]:
    """Scores on tests of what a table teaches, each (n, predictors) and (n,) outcomes: who is above, and how high it is.

    SVM with radial kernel, and the cut-off that is best by Fowlkes and Mallows' index on scores of five folds of ``table``, each
    by the others: scores of rows that a machine has learnt from are too far apart. Random forest.
    """
    x, outcome = table
    forest, called = regression(x, outcome, trees), classifier(x, outcome > above)
    return [
        scored(called(rows) == (truth > above), (np.asarray(forest.predict(rows)) - truth) ** 2)
        for rows, truth in tests
    ]


def scored(right: NDArray[np.bool_], squares: Floats) -> Score:
    """The means, and their variances; a share's as if two more patients of either kind had been seen, never 0."""
    n, share = len(right), (right.sum() + 2) / (len(right) + 4)
    return Score(
        float(right.mean()), float(share * (1 - share) / n), float(squares.mean()), float(squares.var(ddof=1) / n)
    )


def classifier(x: Floats, y: NDArray[np.bool_]) -> Callable[[Floats], Any]:
    """A function of rows that says which are positive; where a class has fewer rows than there are folds, the other one."""
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC

    if min(y.sum(), (~y).sum()) < FOLDS:
        return lambda rows: np.full(len(rows), bool(y.mean() > 0.5))
    machine = make_pipeline(StandardScaler(), SVC()).fit(x, y)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    cut = fowlkes_mallows_cutoff(y, cross_val_predict(machine, x, y, cv=folds, method="decision_function"))
    return lambda rows: machine.decision_function(rows) > cut


def regression(x: Floats, outcome: Floats, trees: int) -> Any:
    """A random forest."""
    from sklearn.ensemble import RandomForestRegressor

    return RandomForestRegressor(trees, random_state=0).fit(x, outcome)


def together(scores: Sequence[Sequence[Score]]) -> dict[str, float]:
    """[imputation][table] scores by Rubin's rules over imputations, each the mean over its tables, with standard errors.

    A table teaches something else than the next, but the test patients are the same: the variance within an imputation is
    that over test patients alone.
    """
    found: dict[str, float] = {}
    for name in ("accuracy", "error"):
        means = [fmean(getattr(one, name) for one in own) for own in scores]
        within = [fmean(getattr(one, f"{name}_variance") for one in own) for own in scores]
        rubin = combine(means, within, "multiple-imputation")
        found |= {name: float(rubin.estimate), f"{name}_se": float(rubin.standard_error)}
    return found
