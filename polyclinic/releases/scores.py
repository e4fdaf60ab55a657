"""Private metrics: a model's quality on held-out patients from noised counts of their scores, and the error of that noise.

A hospital counts its held-out patients by class and by the bin of their predicted probability, adds noise once, and releases
the counts. Noise is added to the counts of all bins together, of each half, quarter, eighth and of each bin, and least squares
makes them one set of bins: sums of many bins, which AUROC and accuracy are made of, then have less noise (Hay, Rastogi,
Miklau and Suciu 2010, "Boosting the accuracy of differentially private histograms through consistency"). What follows is
post-processing, which costs nothing: counts of several hospitals are added, and figures follow from them.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from dp_accounting import DpEvent

from polyclinic.privacy.accounting import calibrate_noise_multiplier, gaussian_event
from polyclinic.privacy.mechanisms import FINE, gaussian
from polyclinic.privacy.streams import Stream, generator
from polyclinic.releases.question import Pricing
from polyclinic.types import Floats, Ints

#: Log-odds at which the public bins of a probability end: equal steps, so that rare outcomes are resolved too; 0 is 1/2.
CUTS = np.arange(-3.5, 3.51, 0.5)
BINS = len(CUTS) + 1
#: The probability that stands for all scores of a bin: that of its middle, in log-odds.
MIDDLES: Floats = np.asarray(1 / (1 + np.exp(-np.append(CUTS - 0.25, CUTS[-1] + 0.25))), dtype=np.float64)
# Which bins each noised count is of: (31, 16), the halves of halves, from all bins down to each.
_PARTS: Floats = np.concatenate([np.kron(np.eye(BINS // width), np.ones(width)) for width in (16, 8, 4, 2, 1)])
_LEVELS = 5
_BINS_OF: Floats = np.asarray(np.linalg.pinv(_PARTS), dtype=np.float64)
# Standard deviation of the sum of all bins, over that of one noised count.
_OF_SUM = float(np.linalg.norm(_BINS_OF.sum(axis=0)))
METRICS = ("auroc", "accuracy", "loss", "brier", "calibration_in_the_large", "patients")
_RANGE = {"auroc": (0.0, 1.0), "accuracy": (0.0, 1.0), "calibration_in_the_large": (-1.0, 1.0)}
DRAWS = 1000
_MIDDLE = (0.1587, 0.8413)  # as much as lies within a standard deviation of a normal distribution
# Counts that are fewer than so many deviations of their own noise define no ratio.
_LEAST = 2.0


@dataclass(frozen=True)
class Scores:
    """The question that private metrics ask: how many patients of each class there are in each bin of a model's scores.

    noise_multiplier: relative to what one patient can change in all noised counts, in L2.
    """

    classes: int
    noise_multiplier: float

    @classmethod
    def within(cls, classes: int, epsilon: float, releases: int, pricing: Pricing) -> Scores:
        """With the least noise at which ``releases`` releases together cost at most ``epsilon``.

        Raises ConfigError where no noise reaches it.
        """
        return cls(classes, _least_noise(epsilon, releases, pricing))

    @classmethod
    def of_deviation(cls, classes: int, deviation: float) -> Scores:
        """With noised counts of the standard deviation ``deviation``, in patients."""
        return cls(classes, deviation * FINE / cls(classes, 1.0).sensitivity)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the counts. Of two classes there is one table; else one of each class against the rest, and one of the likeliest."""
        return (1 if self.classes == 2 else self.classes + 1), 2, BINS

    @property
    def sensitivity(self) -> int:
        """The most, in L2 and in points of ``FINE``, by which one patient added or removed changes all noised counts, rounded up.

        A patient has a weight of one in each level of each table, spread over its bins: no more than one in L2.
        """
        return math.isqrt(_LEVELS * self.shape[0] * FINE**2 - 1) + 1

    @property
    def event(self) -> DpEvent:
        """What one release costs."""
        return gaussian_event(self.noise_multiplier)

    def answer(self, counts: Ints, stream: Stream) -> ScoreCounts:
        """``count_scores`` of one hospital with noise, to be called only after ``event`` was charged."""
        parts = (counts @ _PARTS.T.astype(np.int64)).reshape(-1)
        noisy = gaussian(self.noise_multiplier, self.sensitivity).release(parts, stream).value / FINE
        tables = noisy.reshape(*self.shape[:2], len(_PARTS)) @ _BINS_OF.T
        return ScoreCounts(tables, self.noise_multiplier * self.sensitivity / FINE)


@lru_cache(maxsize=64)
def _least_noise(epsilon: float, releases: int, pricing: Pricing) -> float:
    return calibrate_noise_multiplier(
        epsilon, pricing.delta, lambda noise: gaussian_event(noise, releases), pricing.accountant, pricing.relation
    )


def count_scores(labels: Ints, scores: Floats, patient: Ints, points: int = FINE) -> Ints:
    """(tables, 2, BINS) whole numbers: patients, times ``points``, by whether the event came about and by the score's bin.

    labels: (n,) in 0..K-1.  scores: (n, K) probabilities; one that is not finite counts as 0.  patient: (n,) numbers; the
    rows of a patient share its weight, rounded down.  Of two classes the one table is of class 1; of more, table c is of
    class c against the rest, and the last of the likeliest class and whether it is right.
    One patient added or removed changes each table by at most ``points`` in L1.
    """
    classes = scores.shape[1]
    finite = np.nan_to_num(scores, nan=0.0, posinf=0.0, neginf=0.0).clip(0.0, 1.0)
    events = [(finite[:, c], labels == c) for c in ([1] if classes == 2 else range(classes))]
    if classes > 2:
        events.append((finite.max(axis=1), finite.argmax(axis=1) == labels))
    _, number, rows = np.unique(patient, return_inverse=True, return_counts=True)
    weight = points // rows[number]
    edges = 1 / (1 + np.exp(-CUTS))
    counts = np.zeros((len(events), 2, BINS), dtype=np.int64)
    for table, (score, event) in zip(counts, events, strict=True):
        np.add.at(table, (event.astype(np.int64), np.searchsorted(edges, score, side="left")), weight)
    return counts


@dataclass(frozen=True, eq=False)
class ScoreCounts:
    """Counts, (tables, 2, BINS) patients, and the standard deviation of the noise on each count that they were made of."""

    counts: Floats
    deviation: float

    def estimates(self) -> dict[str, dict[str, float | None]]:
        """``{"value", "error"}`` of each of ``METRICS``: the error is the standard error of the noise alone.

        It is half the width of the middle 68.3 % over redrawn noise of the known size (a parametric bootstrap), before figures
        are cut to their range: near its ends the noise would seem to be small. It says nothing of how few patients were held
        out. None where the noise drowns the counts that a figure is a ratio of.
        """
        rng = generator(0, "private metrics", len(self.counts))
        noise = rng.standard_normal((DRAWS, len(self.counts), 2, len(_PARTS))) @ _BINS_OF.T
        redrawn = self.counts + self.deviation * noise
        values, draws = _within(_metrics(self.counts[None], self.deviation))[0], _metrics(redrawn, 0.0)
        found: dict[str, dict[str, float | None]] = {}
        for index, name in enumerate(METRICS):
            defined = draws[np.isfinite(draws[:, index]), index]
            known = bool(np.isfinite(values[index])) and len(defined) > DRAWS // 2
            found[name] = {"value": float(values[index]) if known else None,
                           "error": float(np.diff(np.quantile(defined, _MIDDLE))[0] / 2) if known else None}  # fmt: skip
        return found

    def values(self) -> dict[str, float | None]:
        """The value of each of ``METRICS``, without its error."""
        return {name: estimate["value"] for name, estimate in self.estimates().items()}

    def summary(self) -> dict[str, Any]:
        """The estimates and the calibration, as a run's summary has them."""
        return {"metrics": self.estimates(), "calibration": self.calibration(), "deviation": self.deviation}

    @classmethod
    def pooled(cls, parts: Collection[ScoreCounts]) -> ScoreCounts:
        """The counts of several hospitals, whose patients are different ones, added; their noises are independent."""
        total = np.sum([part.counts for part in parts], axis=0)
        return cls(total, math.sqrt(sum(part.deviation**2 for part in parts)))

    def calibration(self) -> list[dict[str, float]]:
        """Of each bin of the first table (the last of more than two classes): its probability, the patients, the events."""
        table = self.counts[0 if len(self.counts) == 1 else -1]
        return [
            {"probability": float(chance), "patients": float(no + yes), "events": float(yes)}
            for chance, no, yes in zip(MIDDLES, *table, strict=True)
        ]


def _metrics(counts: Floats, deviation: float) -> Floats:
    """(B, M) of counts (B, tables, 2, BINS), in the order of ``METRICS``; NaN where a ratio is not defined.

    Noise may take them out of their range; ``_within`` cuts them to it.
    """
    binary = counts.shape[1] == 1
    last = counts[:, -1]
    least = _LEAST * deviation * _OF_SUM
    patients = counts.sum(axis=(2, 3)).mean(axis=1)
    total = np.where(patients > least * math.sqrt(2 / counts.shape[1]), patients, np.nan)
    ranked = counts if binary else counts[:, :-1]
    no, yes = ranked[:, :, 0], ranked[:, :, 1]
    right = last[:, 1].sum(axis=1)
    if binary:
        right = last[:, 0, : BINS // 2].sum(axis=1) + last[:, 1, BINS // 2 :].sum(axis=1)
    surprise = yes @ -np.log(MIDDLES) + (no @ -np.log1p(-MIDDLES) if binary else 0.0)
    squared = yes @ (1 - MIDDLES) ** 2 + no @ MIDDLES**2
    found = {
        "auroc": _auroc(no, yes, least),
        "accuracy": right / total,
        "loss": surprise.sum(axis=1) / total,
        "brier": squared.sum(axis=1) / total,
        "calibration_in_the_large": (last.sum(axis=1) @ MIDDLES - last[:, 1].sum(axis=1)) / total,
        "patients": patients,
    }
    return np.stack([found[name] for name in METRICS], axis=1)


def _within(metrics: Floats) -> Floats:
    """(B, M) cut to the range that each of ``METRICS`` can have."""
    low, high = zip(*(_RANGE.get(name, (0.0, np.inf)) for name in METRICS), strict=True)
    return metrics.clip(low, high)


def _auroc(no: Floats, yes: Floats, least: float) -> Floats:
    """(B,) the mean over tables whose classes both stand out of the noise; scores of one bin are ties, which count half."""
    misses, hits = no.sum(axis=2), yes.sum(axis=2)
    above = (yes * (np.cumsum(no, axis=2) - no / 2)).sum(axis=2)
    seen = (misses > least) & (hits > least)
    area = np.divide(above, misses * hits, out=np.full(above.shape, np.nan), where=seen)
    count = seen.sum(axis=1)
    return np.asarray(
        np.divide(np.nansum(area, axis=1), count, out=np.full(len(area), np.nan), where=count > 0), dtype=np.float64
    )
