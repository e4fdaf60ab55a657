"""The metrics of many resamples at once: rows are weighted instead of drawn, so that scores are sorted once.

Here an undefined value is NaN, so that arrays stay arrays; ``assessment`` makes it ``None`` before it is told.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyclinic.evaluation.metrics import SMALLEST_PROBABILITY, Floats

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
METRICS = (
    "auroc", "auprc", "accuracy", "f1", "sensitivity", "specificity", "sensitivity_at_90", "loss", "brier",
    "calibration_error", "calibration_in_the_large",
)  # fmt: skip
SPECIFICITY = 0.9
BINS = 10


def weighted_metrics(labels: Ints, scores: Floats, weights: Floats) -> Floats:
    """(B, M) the metrics in the order of ``METRICS``, NaN where one is undefined.

    labels: (n,) in 0..K-1, n > 0.  scores: (n, K) finite probabilities.  weights: (B, n), at least 0: how often each row
    counts; of ones, the values are those of ``classification_metrics``.
    auroc, auprc, f1: of class 1 for K = 2, else the mean over the classes in ``labels``, each against the rest.
    accuracy, f1, sensitivity, specificity: of the likeliest class.  sensitivity_at_90: the largest sensitivity at any
    threshold whose specificity is at least 0.9; these last three for K = 2 only.
    calibration_error: expected calibration error, over 10 bins of equal width (Naeini et al. 2015); calibration_in_the_
    large: mean probability less share; both of class 1 for K = 2, else of the likeliest class (Guo et al. 2017).
    """
    classes, total = scores.shape[1], weights.sum(axis=1)
    guessed, one_hot = scores.argmax(axis=1), labels[:, None] == np.arange(classes)
    squared = (scores - one_hot) ** 2
    of_label = scores[np.arange(len(labels)), labels].clip(SMALLEST_PROBABILITY, 1.0)
    chosen = [1] if classes == 2 else [int(one) for one in np.unique(labels)]
    ranked = np.mean([_ranked(one_hot[:, c], scores[:, c], weights) for c in chosen], axis=0)
    guessing = np.mean([_guessing(one_hot[:, c], guessed == c, weights) for c in chosen], axis=0)
    chance, event = judged(labels, scores)
    off = weights @ (binned(chance) * (chance - event)[:, None])
    unknown = np.full(len(weights), np.nan)
    brier = squared[:, 1] if classes == 2 else squared.sum(axis=1)
    found = {
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
    }
    return np.stack([found[name] for name in METRICS], axis=1)


def judged(labels: Ints, scores: Floats) -> tuple[Floats, Bools]:
    """(n,) the probabilities that calibration is of, and whether what they are of came about."""
    if scores.shape[1] == 2:
        return scores[:, 1], labels == 1
    return scores.max(axis=1), scores.argmax(axis=1) == labels


def binned(chance: Floats) -> Bools:
    """(n, 10) in which bin of equal width each probability (n,) is; 1 is in the last."""
    return np.asarray(np.minimum((chance * BINS).astype(np.int64), BINS - 1)[:, None] == np.arange(BINS))


def _guessing(positive: Bools, guessed: Bools, weights: Floats) -> Floats:
    """(3, B) F1, sensitivity and specificity of a yes or no."""
    hit, missed = weights @ (positive & guessed), weights @ (positive & ~guessed)
    false, right = weights @ (~positive & guessed), weights @ (~positive & ~guessed)
    with np.errstate(invalid="ignore", divide="ignore"):
        sensitivity, specificity = hit / (hit + missed), right / (right + false)
        return np.stack([2 * hit / (2 * hit + missed + false) + 0 * sensitivity, sensitivity, specificity])


def _ranked(positive: Bools, score: Floats, weights: Floats) -> Floats:
    """(3, B) AUROC, average precision, sensitivity at the fixed specificity; rows of one score enter together."""
    order = np.argsort(-score, kind="stable")
    begins = np.concatenate([[0], np.flatnonzero(np.diff(score[order])) + 1])
    placed = weights[:, order]
    gained = placed * positive[order]
    if len(begins) < len(order):
        placed, gained = (np.add.reduceat(part, begins, axis=1) for part in (placed, gained))
    seen, found = np.cumsum(placed, axis=1), np.cumsum(gained, axis=1)
    hits, misses = found[:, -1], seen[:, -1] - found[:, -1]
    area = _dot(placed, found) - _dot(gained, found) - (_dot(placed, gained) - _dot(gained, gained)) / 2
    allowed = seen - found <= (1 - SPECIFICITY) * misses[:, None] + 1e-9
    average = _dot(gained, np.divide(found, seen, out=np.zeros_like(seen), where=seen > 0))
    best = np.max(found, axis=1, where=allowed, initial=0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(hits * misses > 0, np.stack([area / misses, average, best]) / hits, np.nan)


def _dot(left: Floats, right: Floats) -> Floats:
    """(B,) the product of each row of one with the same row of the other, both (B, n)."""
    return np.asarray(np.einsum("bi,bi->b", left, right))
