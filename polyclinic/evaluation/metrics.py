"""Numbers that say how well class probabilities match labels, in plain numpy.

A value that the data does not define (one class only, no rows, a model that diverged) is ``None``, never NaN
and never a stand-in such as 0.5, so that an average over sites cannot swallow it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

Metrics = dict[str, float | None]
Floats = NDArray[np.float64]

SMALLEST_PROBABILITY = float(np.finfo(np.float64).eps)
SUM_TOLERANCE = 1e-3  # rows come from a float32 softmax, sometimes in half precision


def classification_metrics(y: ArrayLike, scores: ArrayLike) -> Metrics:
    """``{"auroc", "auprc", "accuracy", "loss", "brier", "n"}`` of class probabilities against labels.

    y: (n,) integers in 0..K-1.  scores: (n, K) probabilities, K >= 2, every row summing to 1.
    auroc and auprc (average precision): class 1 for K = 2, else the macro mean of one class against the rest
    over the classes present in ``y``; both ``None`` when ``y`` holds one class only.
    loss: mean cross-entropy in nats.  brier: mean squared error of ``scores[:, 1]`` for K = 2, else of all K
    columns summed.  n: rows.  Scores with a non-finite entry (a model that diverged) define nothing but n.
    Nothing here is private: the numbers are exact functions of the rows.
    Raises ValueError where shapes, labels or probabilities are not as above.
    """
    labels, probabilities = _checked(np.asarray(y), np.asarray(scores, dtype=np.float64))
    rows, classes = probabilities.shape
    if rows == 0 or not np.isfinite(probabilities).all():
        return {"auroc": None, "auprc": None, "accuracy": None, "loss": None, "brier": None, "n": rows}
    one_hot = labels[:, None] == np.arange(classes)
    squared = (probabilities - one_hot) ** 2
    of_label = probabilities[np.arange(rows), labels].clip(SMALLEST_PROBABILITY, 1.0)
    present = np.unique(labels)
    ranked = () if present.size == 1 else (1,) if classes == 2 else tuple(present)
    return {
        "auroc": _mean(auroc(one_hot[:, c], probabilities[:, c]) for c in ranked),
        "auprc": _mean(average_precision(one_hot[:, c], probabilities[:, c]) for c in ranked),
        "accuracy": float((probabilities.argmax(axis=1) == labels).mean()),
        "loss": float(-np.log(of_label).mean()),
        "brier": float(squared[:, 1].mean() if classes == 2 else squared.sum(axis=1).mean()),
        "n": rows,
    }


def auroc(positive: NDArray[np.bool_], score: Floats) -> float | None:
    """Chance that a positive row scores above a negative one, ties counting half; ``None`` with one class only.

    positive: (n,) bool.  score: (n,) finite.  Hanley and McNeil 1982 (the Mann-Whitney statistic).
    """
    hits = int(positive.sum())
    misses = positive.size - hits
    if hits == 0 or misses == 0:
        return None
    _, place, count = np.unique(score, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(count) - (count - 1) / 2
    above = float(mean_rank[place][positive].sum()) - hits * (hits + 1) / 2
    return above / (hits * misses)


def average_precision(positive: NDArray[np.bool_], score: Floats) -> float | None:
    """Precision averaged over the steps of recall, without interpolation; ``None`` with one class only.

    positive: (n,) bool.  score: (n,) finite.  Rows with equal scores enter together.
    """
    hits = int(positive.sum())
    if hits == 0 or hits == positive.size:
        return None
    order = np.argsort(-score, kind="stable")
    last_of_tie = np.append(np.flatnonzero(np.diff(score[order])), positive.size - 1)
    found = np.cumsum(positive[order])[last_of_tie]
    return float(np.sum(np.diff(found, prepend=0) / hits * found / (last_of_tie + 1)))


def macro_average(sites: Iterable[Mapping[str, float | None]]) -> Metrics:
    """Unweighted mean of each metric over the sites that define it; ``n`` is summed.

    A metric that no site defines is ``None``. Keys are those of the first site; no sites give an empty dict.
    """
    rows = list(sites)
    keys = list(rows[0]) if rows else []
    averages = {key: _mean(row.get(key) for row in rows) for key in keys}
    return averages | {"n": int(sum(row.get("n") or 0 for row in rows))} if "n" in averages else averages


def _checked(y: NDArray[np.generic], scores: Floats) -> tuple[NDArray[np.int64], Floats]:
    if scores.ndim != 2 or scores.shape[1] < 2:
        raise ValueError(f"scores must have shape (n, K) with K >= 2, not {scores.shape}")
    if y.shape != scores.shape[:1]:
        raise ValueError(f"y must have shape ({scores.shape[0]},) to match scores, not {y.shape}")
    labels = y.astype(np.int64)
    if not np.array_equal(labels, y) or (labels < 0).any() or (labels >= scores.shape[1]).any():
        raise ValueError(f"y must hold whole numbers from 0 to {scores.shape[1] - 1}")
    finite = scores[np.isfinite(scores).all(axis=1)]
    if (finite < 0).any() or (abs(finite.sum(axis=1) - 1) > SUM_TOLERANCE).any():
        raise ValueError("scores must be probabilities: no entry below 0 and every row summing to 1")
    return labels, scores


def _mean(values: Iterable[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return sum(defined) / len(defined) if defined else None
