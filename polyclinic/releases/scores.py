"""Private metrics of probabilities: noised counts of held-out patients by class and by bin of their predicted probability.

Noise is added to the counts of all bins together, of each half, quarter, eighth and of each bin. Least squares makes them one
set of bins. Sums of many bins, which AUROC and accuracy are made of, then have less noise. Hay, Rastogi, Miklau and Suciu 2010,
"Boosting the accuracy of differentially private histograms through consistency".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from polyclinic.privacy.mechanisms import FINE
from polyclinic.releases.measured import Measured, Noised
from polyclinic.types import Bools, Floats, Ints, Labels

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
# Counts that are fewer than so many deviations of their own noise define no ratio.
LEAST = 2.0


@dataclass(frozen=True)
class Scores(Measured):
    """How many patients of each class there are in each bin of a model's scores.

    A patient has a weight of one in each level of each table, spread over its bins: no more than one in L2.
    """

    classes: int
    noise_multiplier: float

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of two classes there is one table; else one of each class against the rest, and one of the likeliest."""
        return (1 if self.classes == 2 else self.classes + 1), 2, BINS

    @property
    def weight(self) -> int:
        return _LEVELS * self.shape[0]

    def count(self, labels: Labels, scores: Floats, patient: Ints) -> Ints:
        return count_scores(labels, scores, patient)

    def parts(self, counts: Ints) -> Ints:
        return counts @ _PARTS.T.astype(np.int64)

    def whole(self, parts: Floats) -> Floats:
        return np.asarray(parts @ _BINS_OF.T)

    def noisy_answer(self, counts: Floats, deviation: float) -> Noised:
        return ScoreCounts(counts, deviation)


@dataclass(frozen=True)
class LabelScores(Scores):
    """The same of several labels, each of which is there or not: a table for each of the ``classes``."""

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.classes, 2, BINS

    def count(self, labels: Labels, scores: Floats, patient: Ints) -> Ints:
        return _count([(scores[:, label], labels[:, label] > 0) for label in range(self.classes)], patient, FINE)

    def noisy_answer(self, counts: Floats, deviation: float) -> Noised:
        return LabelCounts(counts, deviation)


def count_scores(labels: Ints, scores: Floats, patient: Ints, points: int = FINE) -> Ints:
    """(tables, 2, BINS) whole numbers: patients, times ``points``, by whether the event came about and by the score's bin.

    Of two classes the one table is of class 1. Of more, table c is of class c against the rest, and the last of the likeliest
    class and whether it is right. One patient added or removed changes each table by at most ``points`` in L1.

    Args:
        labels: (n,) in 0..K-1.
        scores: (n, K) probabilities; one that is not finite counts as 0.
        patient: (n,) numbers; the rows of a patient share its weight, rounded down.
        points: Weight of a patient.
    """
    classes, finite = scores.shape[1], _finite(scores)
    events = [(finite[:, c], labels == c) for c in ([1] if classes == 2 else range(classes))]
    if classes > 2:
        events.append((finite.max(axis=1), finite.argmax(axis=1) == labels))
    return _count(events, patient, points)


def _count(events: Sequence[tuple[Floats, Bools]], patient: Ints, points: int) -> Ints:
    """(tables, 2, BINS) points of each table's (n,) scores and events."""
    _, number, rows = np.unique(patient, return_inverse=True, return_counts=True)
    weight = points // rows[number]
    edges = 1 / (1 + np.exp(-CUTS))
    counts = np.zeros((len(events), 2, BINS), dtype=np.int64)
    for table, (score, event) in zip(counts, events, strict=True):
        np.add.at(table, (event.astype(np.int64), np.searchsorted(edges, _finite(score), side="left")), weight)
    return counts


def _finite(scores: Floats) -> Floats:
    return np.nan_to_num(scores, nan=0.0, posinf=0.0, neginf=0.0).clip(0.0, 1.0)


@dataclass(frozen=True, eq=False)
class ScoreCounts(Noised):
    """``counts``: (tables, 2, BINS) patients."""

    names: ClassVar[tuple[str, ...]] = METRICS
    ranges: ClassVar[dict[str, tuple[float, float]]] = {
        "auroc": (0.0, 1.0), "accuracy": (0.0, 1.0), "calibration_in_the_large": (-1.0, 1.0),
    }  # fmt: skip

    def noise(self, rng: np.random.Generator, draws: int) -> Floats:
        return np.asarray(rng.standard_normal((draws, len(self.counts), 2, len(_PARTS))) @ _BINS_OF.T)

    def calibration(self) -> list[dict[str, float]]:
        """Of each bin of the first table (the last of more than two classes): its probability, the patients, the events."""
        table = self.counts[0 if len(self.counts) == 1 else -1]
        return [
            {"probability": float(chance), "patients": float(no + yes), "events": float(yes)}
            for chance, no, yes in zip(MIDDLES, *table, strict=True)
        ]

    def metrics(self, counts: Floats, deviation: float) -> Floats:
        binary = counts.shape[1] == 1
        last = counts[:, -1]
        least = LEAST * deviation * _OF_SUM
        patients, total = _patients(counts, least)
        ranked = counts if binary else counts[:, :-1]
        no, yes = ranked[:, :, 0], ranked[:, :, 1]
        right = last[:, 1].sum(axis=1)
        if binary:
            right = last[:, 0, : BINS // 2].sum(axis=1) + last[:, 1, BINS // 2 :].sum(axis=1)
        surprise = yes @ -np.log(MIDDLES) + (no @ -np.log1p(-MIDDLES) if binary else 0.0)
        squared = yes @ (1 - MIDDLES) ** 2 + no @ MIDDLES**2
        off = last.sum(axis=1) @ MIDDLES - last[:, 1].sum(axis=1)
        figures = [
            _auroc(no, yes, least),
            *(part / total for part in (right, surprise.sum(axis=1), squared.sum(axis=1), off)),
        ]
        return np.stack([*figures, patients], axis=1)


@dataclass(frozen=True, eq=False)
class LabelCounts(ScoreCounts):
    """A table for each of several labels."""

    names: ClassVar[tuple[str, ...]] = ("auroc", "loss", "brier", "calibration_in_the_large", "patients")

    def calibration(self) -> list[dict[str, float]]:
        """Of each bin, of all labels together."""
        return ScoreCounts(self.counts.sum(axis=0)[None], self.deviation).calibration()

    def metrics(self, counts: Floats, deviation: float) -> Floats:
        least = LEAST * deviation * _OF_SUM
        patients, total = _patients(counts, least)
        no, yes = counts[:, :, 0], counts[:, :, 1]
        surprise = (yes @ -np.log(MIDDLES) + no @ -np.log1p(-MIDDLES)).sum(axis=1)
        squared = (yes @ (1 - MIDDLES) ** 2 + no @ MIDDLES**2).mean(axis=1)
        off = ((no + yes) @ MIDDLES - yes.sum(axis=2)).mean(axis=1)
        return np.stack([_auroc(no, yes, least), surprise / total, squared / total, off / total, patients], axis=1)


def _patients(counts: Floats, least: float) -> tuple[Floats, Floats]:
    """(B,) the patients by the mean of all tables, and the same or NaN where noise drowns them."""
    patients = counts.sum(axis=(2, 3)).mean(axis=1)
    tables = counts.shape[1]
    return patients, np.where(patients > least * math.sqrt(2 / tables), patients, np.nan)


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
