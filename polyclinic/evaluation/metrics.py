"""Numbers that say how well class probabilities match labels, in plain numpy.

A value that the data does not define (one class only, no rows, a model that diverged) is ``None``. It is never NaN and
never a stand-in such as 0.5, so that an average over sites cannot swallow it. Of many resamples at once, whose rows are
weighted so that scores are sorted once, it is NaN, so that arrays stay arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyclinic.evaluation.intervals import weighted_auroc
from polyclinic.types import Bools, Floats, Ints

Metrics = dict[str, float | None]

SMALLEST_PROBABILITY = float(np.finfo(np.float64).eps)
SUM_TOLERANCE = 1e-3  # rows come from a float32 softmax, sometimes in half precision
METRICS = (
    "auroc", "auprc", "accuracy", "f1", "sensitivity", "specificity", "sensitivity_at_90", "loss", "brier",
    "calibration_error", "calibration_in_the_large", "calibration_slope",
)  # fmt: skip
#: The metrics that hospitals' replies carry, of training and of evaluation; others are a strategy's own.
REPLIED = frozenset({
    "num-examples", "steps", "train_loss", "simulated-seconds", "loss", "auroc", "auprc", "accuracy", "brier", "patients",
    "held-out-patients", "n",
})  # fmt: skip
SPECIFICITY = 0.9
_SLOPE_STEPS, _SETTLED = 8, 1e-4
BINS = 10


def classification_metrics(y: ArrayLike, scores: ArrayLike) -> Metrics:
    """Return ``{"auroc", "auprc", "accuracy", "loss", "brier", "n"}`` of class probabilities against labels.

    Scores with a non-finite entry (a model that diverged) define nothing but n. Nothing here is private: the numbers
    are exact functions of the rows.

    Args:
        y: (n,) integers in 0..K-1.
        scores: (n, K) probabilities, K >= 2, every row summing to 1.

    Returns:
        auroc, auprc: Of class 1 for K = 2, else the macro mean of one class against the rest over the classes present
            in ``y``. Both are ``None`` when ``y`` holds one class only. auprc is the average precision.
        accuracy: Of the likeliest class.
        loss: Mean cross-entropy in nats.
        brier: Mean squared error of ``scores[:, 1]`` for K = 2, else of all K columns summed.
        n: Rows.

    Raises:
        ValueError: Where shapes, labels or probabilities are not as above.
    """
    labels, probabilities = _check(np.asarray(y), np.asarray(scores, dtype=np.float64))
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


def auroc(positive: Bools, score: Floats) -> float | None:
    """Chance that a positive row scores above a negative one, ties counting half; ``None`` with one class only.

    positive: (n,) bool.  score: (n,) finite.  Hanley and McNeil 1982 (the Mann-Whitney statistic).
    """
    area = float(weighted_auroc(positive, score, np.ones((1, len(score))))[0]) if len(score) else np.nan
    return area if np.isfinite(area) else None


def average_precision(positive: Bools, score: Floats) -> float | None:
    """Precision averaged over the steps of recall, without interpolation; ``None`` with one class only.

    positive: (n,) bool.  score: (n,) finite.  Rows with equal scores enter together.
    """
    hits = int(positive.sum())
    if hits == 0 or hits == positive.size:
        return None
    order = np.argsort(-score, kind="stable")
    last_of_tie = np.append(np.flatnonzero(np.diff(score[order])), positive.size - 1)
    true_positives = np.cumsum(positive[order])[last_of_tie]
    return float(np.sum(np.diff(true_positives, prepend=0) / hits * true_positives / (last_of_tie + 1)))


def macro_average(sites: Iterable[Mapping[str, float | None]]) -> Metrics:
    """Unweighted mean of each metric over the sites that define it; ``n`` is summed.

    A metric that no site defines is ``None``. Keys are those of the first site; no sites give an empty dict.
    """
    rows = list(sites)
    keys = list(rows[0]) if rows else []
    averages = {key: _mean(row.get(key) for row in rows) for key in keys}
    return averages | {"n": int(sum(row.get("n") or 0 for row in rows))} if "n" in averages else averages


def _check(y: NDArray[np.generic], scores: Floats) -> tuple[Ints, Floats]:
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


def weighted_metrics(labels: Ints, scores: Floats, weights: Floats) -> Floats:
    """Return (B, M) the metrics in the order of ``METRICS``, NaN where one is undefined.

    Args:
        labels: (n,) in 0..K-1, n > 0.
        scores: (n, K) finite probabilities.
        weights: (B, n), at least 0: how often each row counts. Of ones, the values are those of
            ``classification_metrics``.

    Returns:
        auroc, auprc, f1: Of class 1 for K = 2, else the mean over the classes in ``labels``, each against the rest.
        accuracy, f1, sensitivity, specificity: Of the likeliest class; the last two for K = 2 only.
        sensitivity_at_90: The largest sensitivity at any threshold whose specificity is at least 0.9; for K = 2 only.
        calibration_error: Expected calibration error, over 10 bins of equal width (Naeini et al. 2015).
        calibration_in_the_large: Mean probability less share. Like the error it is of class 1 for K = 2, else of the
            likeliest class (Guo et al. 2017).
        calibration_slope: Of a logistic regression of whether it came about on the probability's logit (Cox 1958). 1 is
            true, below 1 probabilities are too extreme.
    """
    classes, total = scores.shape[1], weights.sum(axis=1)
    guessed, one_hot = scores.argmax(axis=1), labels[:, None] == np.arange(classes)
    squared = (scores - one_hot) ** 2
    of_label = scores[np.arange(len(labels)), labels].clip(SMALLEST_PROBABILITY, 1.0)
    chosen = [1] if classes == 2 else [int(label) for label in np.unique(labels)]
    ranked = np.mean([_rank_metrics(one_hot[:, c], scores[:, c], weights) for c in chosen], axis=0)
    guessing = np.mean([_guessing(one_hot[:, c], guessed == c, weights) for c in chosen], axis=0)
    chance, event = calibration_events(labels, scores)
    off = weights @ (bin_chances(chance) * (chance - event)[:, None])
    unknown = np.full(len(weights), np.nan)
    brier = squared[:, 1] if classes == 2 else squared.sum(axis=1)
    by_metric = {
        "auroc": ranked[0],
        "auprc": ranked[1],
        "accuracy": weights @ (guessed == labels) / total,
        "f1": guessing[0],
        "sensitivity": guessing[1] if classes == 2 else unknown,
        "specificity": guessing[2] if classes == 2 else unknown,
        "sensitivity_at_90": ranked[2] if classes == 2 else unknown,
        "loss": weights @ -np.log(of_label) / total,
        "brier": weights @ brier / total,
        "calibration_error": np.abs(off).sum(axis=1) / total,
        "calibration_in_the_large": off.sum(axis=1) / total,
        "calibration_slope": _slope(chance, event, weights),
    }
    return np.stack([by_metric[name] for name in METRICS], axis=1)


def _slope(chance: Floats, event: Bools, weights: Floats) -> Floats:
    """(B,) slopes of weighted logistic regressions on (n,) logits, by Newton's method; NaN where it does not settle, or all
    or nothing came about."""
    bounded = chance.clip(SMALLEST_PROBABILITY, 1 - SMALLEST_PROBABILITY)
    logit = np.log(bounded / (1 - bounded))
    middle, spread = float(logit.mean()), float(logit.std())
    if not spread > 0:
        return np.full(len(weights), np.nan)
    z = (logit - middle) / spread
    powers = np.stack([np.ones_like(z), z, z**2], axis=1)
    wanted = weights @ (event[:, None] * powers[:, :2])
    level, slope = np.full(len(weights), middle), np.full(len(weights), spread)
    with np.errstate(all="ignore"):
        for _ in range(_SLOPE_STEPS):
            guess = 1 / (1 + np.exp(-(level[:, None] + slope[:, None] * z)))
            short = wanted - (weights * guess) @ powers[:, :2]
            total, tilt, square = ((weights * guess * (1 - guess)) @ powers).T
            determinant = total * square - tilt**2
            step = (total * short[:, 1] - tilt * short[:, 0]) / determinant
            level = level + (square * short[:, 0] - tilt * short[:, 1]) / determinant
            slope = slope + step
        is_settled = np.abs(step) < _SETTLED * (1 + np.abs(slope))
    events = wanted[:, 0]  # of none, or of all, the level alone goes on
    return np.where(is_settled & (events > 0) & (events < weights.sum(axis=1)), slope / spread, np.nan)


def calibration_events(labels: Ints, scores: Floats) -> tuple[Floats, Bools]:
    """(n,) the probabilities that calibration is of, and whether what they are of came about."""
    if scores.shape[1] == 2:
        return scores[:, 1], labels == 1
    return scores.max(axis=1), scores.argmax(axis=1) == labels


def bin_chances(chance: Floats) -> Bools:
    """(n, 10) in which bin of equal width each probability (n,) is; 1 is in the last."""
    return np.asarray(np.minimum((chance * BINS).astype(np.int64), BINS - 1)[:, None] == np.arange(BINS))


def _guessing(positive: Bools, guessed: Bools, weights: Floats) -> Floats:
    """(3, B) F1, sensitivity and specificity of a yes or no."""
    hit, missed = weights @ (positive & guessed), weights @ (positive & ~guessed)
    false, right = weights @ (~positive & guessed), weights @ (~positive & ~guessed)
    with np.errstate(invalid="ignore", divide="ignore"):
        sensitivity, specificity = hit / (hit + missed), right / (right + false)
        return np.stack([2 * hit / (2 * hit + missed + false) + 0 * sensitivity, sensitivity, specificity])


def _rank_metrics(positive: Bools, score: Floats, weights: Floats) -> Floats:
    """(3, B) AUROC, average precision, sensitivity at the fixed specificity; rows of one score enter together."""
    order = np.argsort(-score, kind="stable")
    begins = np.concatenate([[0], np.flatnonzero(np.diff(score[order])) + 1])
    placed = weights[:, order]
    gained = placed * positive[order]
    if len(begins) < len(order):
        placed, gained = (np.add.reduceat(part, begins, axis=1) for part in (placed, gained))
    seen, positives = np.cumsum(placed, axis=1), np.cumsum(gained, axis=1)
    hits, misses = positives[:, -1], seen[:, -1] - positives[:, -1]
    area = _dot(placed, positives) - _dot(gained, positives) - (_dot(placed, gained) - _dot(gained, gained)) / 2
    allowed = seen - positives <= (1 - SPECIFICITY) * misses[:, None] + 1e-9
    average = _dot(gained, np.divide(positives, seen, out=np.zeros_like(seen), where=seen > 0))
    best = np.max(positives, axis=1, where=allowed, initial=0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(hits * misses > 0, np.stack([area / misses, average, best]) / hits, np.nan)


def _dot(left: Floats, right: Floats) -> Floats:
    """(B,) the product of each row of one with the same row of the other, both (B, n)."""
    return np.asarray(np.einsum("bi,bi->b", left, right))
