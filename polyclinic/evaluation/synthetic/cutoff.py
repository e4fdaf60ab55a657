"""The cut-off of a score that is best by the index of Fowlkes and Mallows (1983), the root of precision times recall."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from polyclinic.errors import ConfigError
from polyclinic.types import Floats, Ints

FOLDS = 5


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
    truth, said = np.asarray(y, dtype=bool), np.asarray(called, dtype=bool)
    if not truth.any() or not said.any():
        return None
    return float((truth & said).sum() / np.sqrt(float(said.sum()) * float(truth.sum())))


def cutoff_on(table: tuple[Floats, Ints], test: tuple[Floats, Ints], seed: int = 0) -> dict[str, float | None]:
    """What the cut-off of a logistic regression's probability, both fitted to ``table``, is worth on ``test``.

    table, test: x (n, F) finite and y (n,) 0 or 1. The cut-off is of scores of five folds, each by the others' model. The answer
    has ``cutoff``, ``index`` (on ``test``), ``sensitivity`` and ``specificity``; None is what the data do not define, all of it
    where a class of ``table`` has fewer rows than there are folds.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    (x, y), (seen, truth) = table, test
    if min(int((y == 1).sum()), int((y == 0).sum())) < FOLDS:
        return dict.fromkeys(("cutoff", "index", "sensitivity", "specificity"))
    model: Any = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
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
