"""What returned scores say: means, Mann-Whitney, who was guessed rightly, and what so many patients cannot exclude.

Patients are the units. Several reviewers' scores of one patient are no independent patients, so the pooled comparison is of
each patient's mean over reviewers. It speaks of these reviewers; it does not count that others might judge otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any

import numpy as np
from scipy import stats

from polyclinic.evaluation.attacks.rates import LEVEL, wilson
from polyclinic.evaluation.review.answers import Bools, Floats, Key, Review
from polyclinic.evaluation.review.form_page import MOST_SCORE
from polyclinic.evaluation.review.verdict import NOTES, verdict
from polyclinic.evaluation.synthetic.resampling import Interval, bootstrap, interval, weighted_auroc
from polyclinic.privacy.streams import generator

RESAMPLES = 2000
FEWEST = 5  # patients of each kind, for an interval that is found by drawing again
POWER = 0.8


def analyse(reviews: Sequence[Review], key: Key) -> dict[str, Any]:
    """All of ``review.json`` (docs/reference/json.md); a value that the answers do not define is ``None``."""
    each = [_reviewer(one, key) for one in reviews]
    scores, guesses = (np.array([getattr(one, name) for one in reviews]) for name in ("scores", "guesses"))
    right = np.where(np.isnan(guesses), np.nan, guesses == key.real)
    pooled = {"scores": compare(_mean(scores), key.real), "guesses": _pooled_guesses(_mean(right), key.real)}
    if len(each) == 1:
        pooled = {name: each[0][name] for name in pooled}
    found = {
        "packet": key.packet, "patients": len(key.real), "real": int(key.real.sum()), "synthetic": int((~key.real).sum()),
        "confidence": LEVEL, "reviewers": each, "pooled": pooled, "agreement": agreement(reviews),
    }  # fmt: skip
    return {**found, "verdict": verdict(found), "notes": list(NOTES)}


def compare(scores: Floats, real: Bools) -> dict[str, Any]:
    """Scores of real against those of synthetic patients.

    scores: (n,), NaN where missing.  real: (n,).  difference: of means, real less synthetic, with Welch's interval (1947).
    u, p: Mann and Whitney 1947, of the real ones, two-sided.  auc: u / (n real x n synthetic), the chance that a real patient
    scores above a synthetic one, ties half, with its bootstrap interval over patients.  detectable: the difference that a
    review of this size and spread would find significant in 80 of 100 cases.
    """
    known = np.isfinite(scores)
    groups = scores[known & real], scores[known & ~real]
    found: dict[str, Any] = {
        name: {"patients": len(one), "mean": _finite(one.mean()) if len(one) else None,
               "sd": _finite(one.std(ddof=1)) if len(one) > 1 else None}
        for name, one in zip(("real", "synthetic"), groups, strict=True)
    }  # fmt: skip
    difference, detectable = _difference(*groups)
    u, p = stats.mannwhitneyu(*groups) if all(map(len, groups)) else (np.nan, np.nan)
    auc = _resampled(lambda weights: weighted_auroc(real[known], scores[known], weights), real[known], "auc")
    return found | {
        "difference": asdict(difference), "detectable": detectable, "u": _finite(u), "p": _finite(p), "auc": asdict(auc),
    }  # fmt: skip


def _difference(real: Floats, synthetic: Floats) -> tuple[Interval, float | None]:
    if not len(real) or not len(synthetic):
        return Interval(None), None
    apart = float(real.mean() - synthetic.mean())
    error = float(np.sqrt(sum(one.var(ddof=1) / len(one) for one in (real, synthetic) if len(one) > 1)))
    if min(len(real), len(synthetic)) < 2 or error == 0:
        return Interval(apart), None
    span = stats.ttest_ind(real, synthetic, equal_var=False).confidence_interval(LEVEL)
    factor = stats.norm.isf((1 - LEVEL) / 2) + stats.norm.ppf(POWER)
    return Interval(apart, float(span.low), float(span.high)), float(factor * error)


def guess_rates(guesses: Floats, real: Bools) -> dict[str, Any]:
    """One reviewer's guesses (n,), 1 for real and NaN where missing, with Wilson intervals, against chance.

    accuracy: share that is right; p: exact binomial test against one half, two-sided.  sensitivity: share of the synthetic
    patients called synthetic.  specificity: share of the real ones called real.
    """
    known = np.isfinite(guesses)
    right = guesses[known] == real[known]
    truth = real[known]
    return {
        "patients": len(right),
        "accuracy": asdict(wilson(int(right.sum()), len(right))),
        "p": float(stats.binomtest(int(right.sum()), len(right), 0.5).pvalue) if len(right) else None,
        "sensitivity": asdict(wilson(int(right[~truth].sum()), int((~truth).sum()))),
        "specificity": asdict(wilson(int(right[truth].sum()), int(truth.sum()))),
    }


def _pooled_guesses(share: Floats, real: Bools) -> dict[str, Any]:
    """As ``guess_rates``, of each patient's share of reviewers who were right (n,); intervals are over patients, no test."""
    found: dict[str, Any] = {"patients": int(np.isfinite(share).sum())}
    chosen = {
        "accuracy": np.isfinite(share),
        "sensitivity": np.isfinite(share) & ~real,
        "specificity": np.isfinite(share) & real,
    }
    for name, known in chosen.items():
        found[name] = asdict(_resampled(lambda w, of=share[known]: w @ of / w.sum(axis=1), real[known], name))
    return found | {"p": None}


def agreement(reviews: Sequence[Review]) -> dict[str, Any]:
    """kappa: Cohen's (1960) of two reviewers' guesses.  icc: of all reviewers' scores, (2,1) of Shrout and Fleiss 1979."""
    scores = np.array([one.scores for one in reviews]).T
    pairs = [
        {"reviewers": [a.reviewer, b.reviewer], "kappa": kappa(a.guesses, b.guesses)}
        for a, b in combinations(reviews, 2)
    ]
    return {"pairs": pairs, "icc": icc(scores[np.isfinite(scores).all(axis=1)])}


def kappa(a: Floats, b: Floats) -> float | None:
    """Cohen's kappa of two reviewers' guesses (n,) where both guessed; None where chance alone would always agree."""
    both = np.isfinite(a) & np.isfinite(b)
    if not both.any():
        return None
    a, b = a[both], b[both]
    chance = a.mean() * b.mean() + (1 - a.mean()) * (1 - b.mean())
    return None if chance == 1 else float(((a == b).mean() - chance) / (1 - chance))


def icc(scores: Floats) -> float | None:
    """ICC(2,1) of scores (patients, reviewers) without a missing one; None where it is not defined."""
    n, k = scores.shape
    if n < 2 or k < 2:
        return None
    rows, columns = scores.mean(axis=1, keepdims=True), scores.mean(axis=0, keepdims=True)
    between = float(k * rows.var(ddof=1))
    judges = float(n * columns.var(ddof=1))
    error = float(((scores - rows - columns + scores.mean()) ** 2).sum() / ((n - 1) * (k - 1)))
    below = between + (k - 1) * error + k * (judges - error) / n
    return None if below <= 0 else (between - error) / below


def _reviewer(one: Review, key: Key) -> dict[str, Any]:
    missing = {name: _numbers(np.isnan(getattr(one, name))) for name in ("scores", "guesses")}
    counts = {
        name: np.bincount(one.scores[np.isfinite(one.scores) & of].astype(np.int64), minlength=MOST_SCORE + 1).tolist()
        for name, of in (("real", key.real), ("synthetic", ~key.real))
    }
    return {
        "reviewer": one.reviewer, "file": one.file, "scores": compare(one.scores, key.real),
        "guesses": guess_rates(one.guesses, key.real), "missing": missing, "distribution": counts,
    }  # fmt: skip


def _numbers(chosen: Bools) -> list[int]:
    """The packet numbers that are chosen."""
    return [int(place) + 1 for place in np.flatnonzero(chosen)]


def _mean(values: Floats) -> Floats:
    """(n,) each patient's mean over the reviewers (reviewers, n) who answered; NaN where none did."""
    known = np.isfinite(values)
    count = known.sum(axis=0)
    return np.where(count > 0, np.where(known, values, 0.0).sum(axis=0) / np.maximum(count, 1), np.nan)


def _resampled(statistic: Any, real: Bools, name: str) -> Interval:
    """The statistic with its bootstrap interval over patients; none where they are too few or all resamples agree."""
    if not len(real):
        return Interval(None)
    labels = real.astype(np.int64)
    value, draws = bootstrap(statistic, len(real), generator(0, "review", name), RESAMPLES, labels=labels)
    found = interval(float(value), draws, LEVEL)
    few = min(np.unique(labels, return_counts=True)[1]) < FEWEST
    return Interval(found.value) if few or found.low == found.high else found


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
