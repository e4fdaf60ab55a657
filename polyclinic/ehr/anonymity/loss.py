"""What a release loses of the table: how coarse its classes and labels are, and what a model still learns from it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from polyclinic.ehr.anonymity.hierarchies import Ladder
from polyclinic.ehr.labels import midpoint
from polyclinic.ehr.shard import is_test_patient
from polyclinic.errors import DataError
from polyclinic.types import Bools, Floats, Ints

_HELD_OUT = 0.25
_MOST_LABELS = 200


def discernibility(sizes: Ints, suppressed: int) -> int:
    """Rows from which a row cannot be told, summed over rows: a class's rows, and all of them for a suppressed row.

    sizes: rows of each class. Bayardo and Agrawal 2005.
    """
    return int((sizes**2).sum()) + suppressed * (int(sizes.sum()) + suppressed)


def average_class_size(sizes: Ints, k: int) -> float | None:
    """Rows per class in multiples of k; 1 is the best there is. LeFevre, DeWitt and Ramakrishnan 2006, C_AVG."""
    return float(sizes.mean() / k) if len(sizes) else None


def height(ladders: Sequence[Ladder], levels: Sequence[int]) -> float:
    """The share of all levels that were climbed: 0 the table as it is, 1 nothing but ``*``. Samarati 2001."""
    return sum(levels) / sum(ladder.top for ladder in ladders)


def precision(ladders: Sequence[Ladder], levels: Sequence[int], kept: Bools) -> float:
    """1 less the mean share of its ladder that a cell was lifted, a suppressed one to the top. Sweeney 2002, Prec."""
    lifted = np.mean([level / ladder.top for ladder, level in zip(ladders, levels, strict=True)])
    return float(1.0 - (kept.mean() * lifted + (~kept).mean()))


def downstream_auroc(
    before: pd.DataFrame, after: pd.DataFrame, label: str, patients: Sequence[str], without: Sequence[str] = ()
) -> dict[str, float | int | None]:
    """AUROC on held-out patients of a logistic regression fitted to the records and to their release.

    before, after: the same rows. label: the column to predict, of two values. patients: (rows,) each row's patient, by
    whom a quarter is held out (by hash, so that it is always the same). without: columns that are no features.
    Intervals count by their middle; other columns one-hot. Both models are tested on the same held-out rows, each as its
    table has them. A value is None where a side of the split has one class only. Exact, hence not private.
    Raises DataError unless the label has two values and none is missing.
    """
    y = pd.factorize(before[label], sort=True)[0]
    if len(np.unique(y)) != 2 or (y < 0).any():
        raise DataError(f"label: column {label!r} must hold two values and no missing cell; give another, or none.")
    held_out = np.array([is_test_patient(patient, _HELD_OUT) for patient in patients], dtype=bool)
    features = [name for name in before.columns if name != label and name not in without]
    return {
        "before": _auroc(before[features], y, held_out), "after": _auroc(after[features], y, held_out),
        "rows": len(y), "held_out": int(held_out.sum()),
    }  # fmt: skip


def _auroc(table: pd.DataFrame, y: Ints, held_out: Bools) -> float | None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if any(len(np.unique(y[side])) < 2 for side in (held_out, ~held_out)):
        return None
    x = np.concatenate([_features(table[name], ~held_out) for name in table.columns], axis=1)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    model.fit(x[~held_out], y[~held_out])
    return float(roc_auc_score(y[held_out], model.decision_function(x[held_out])))


def _features(values: pd.Series, training: Bools) -> Floats:
    """(rows, m) numbers: a numeric column or one of intervals with what is missing apart, else one-hot."""
    if is_numeric_dtype(values) and not is_bool_dtype(values):
        number = values.to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        place, labels = pd.factorize(values)
        middle = np.array([*(midpoint(str(label)) for label in labels), np.nan])
        if np.isnan(middle).sum() > 1 + ("*" in labels):
            known = pd.Series(place[training]).value_counts().index[:_MOST_LABELS].to_numpy()
            return np.asarray(place[:, None] == known[None, :], dtype=np.float64)
        number = middle[place]
    missing = np.isnan(number)
    mean = number[training & ~missing].mean() if (training & ~missing).any() else 0.0
    return np.stack([np.where(missing, mean, number), missing.astype(np.float64)], axis=1)
